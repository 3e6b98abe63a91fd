"""How training fails: NaN losses, a loss plateau at chance, memory that ran out."""

from collections.abc import Sequence
from statistics import fmean

from longrm.errors import TrainingError
from longrm.training.batches import Example

# Above this share of the loss of a model that knows nothing, nothing has been learned.
_PLATEAU = 0.98
_NAMED = 3


def nan_error(what: str, step: int, value: float, examples: Sequence[Example]) -> TrainingError:
    """The error for a loss or gradient that is not finite; names the examples that it comes from."""
    return TrainingError(
        f"the {what} of step {step} is {value}, from {list_ids(examples)}; try a lower optimizer.learning_rate, a "
        "longer optimizer.warmup_ratio, or check the data for extreme rows"
    )


def out_of_memory_error(where: str, examples: Sequence[Example]) -> TrainingError:
    """The error for work that did not fit; names its longest example, where there is one, and what would make room."""
    longest = max(examples, key=lambda each: each.size, default=None)
    example = ""
    if longest is not None:
        responses = len(longest.tokens.responses)
        example = (
            f", whose longest example is '{longest.id}' ({longest.size:,} tokens with {responses} responses)"
        )
    return TrainingError(
        f"memory ran out {where}{example}; in this order: a smaller memory.tokens_per_forward, "
        "memory.gradient_checkpointing, memory.tiled_mlp, memory.activation_offloading, "
        'model.lora, model.precision = "bfloat16"; longrm plan computes what each saves'
    )


def check_plateau(losses: Sequence[float], steps: int, chance: float | None) -> None:
    """Stops a run whose loss stays, over many steps, at or above that of a model that knows nothing.

    Args:
        losses: Of all steps so far.
        steps: Over how many; 0 never stops.
        chance: The loss of a model that knows nothing; None where there is no such loss.

    Raises:
        TrainingError: The loss is on a plateau at chance.
    """
    if chance is None or not steps or len(losses) < steps:
        return
    window, half = losses[-steps:], steps // 2
    mean, sooner, later = fmean(window), fmean(window[:-half] or window), fmean(window[-half:])
    # A scorer with wide scores begins far above the loss at chance, and learns while it falls.
    if mean > _PLATEAU * chance and later > _PLATEAU * sooner:
        raise TrainingError(
            f"loss plateau at chance: {mean:.3f} over {steps} steps (a model that knows nothing has {chance:.3f}); "
            "try another learning rate, shorter contexts first, or check that the gold order is right; "
            "plateau_steps = 0 trains on regardless"
        )


def list_ids(examples: Sequence[Example]) -> str:
    """The ids of the first examples, and how many more there are."""
    first = ", ".join(f"'{example.id}'" for example in examples[:_NAMED])
    more = len(examples) - _NAMED
    return f"{first} and {more} more" if more > 0 else first
