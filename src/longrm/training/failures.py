"""How training fails: a number that is none, a loss that stands still, memory that ran out."""

from collections.abc import Sequence
from statistics import fmean

from longrm.errors import LongRMError, TrainingError
from longrm.runs.records import StepRecord
from longrm.training.batches import Example

# Above this share of the loss of a model that knows nothing, nothing has been learned.
_STALLED = 0.98
_NAMED = 3


def diverged(what: str, step: int, value: float, examples: Sequence[Example]) -> TrainingError:
    """The error for a loss or gradient that is not finite; names the examples that it comes from."""
    return TrainingError(
        f"the {what} of step {step} is {value}, from {named(examples)}; try a lower optimizer.learning_rate, a longer "
        "optimizer.warmup, or check the data for extreme rows"
    )


def out_of_memory(where: str, examples: Sequence[Example]) -> TrainingError:
    """The error for work that did not fit; names its longest example, where there is one, and what would make room."""
    longest = max(examples, key=lambda example: example.size, default=None)
    told = ""
    if longest is not None:
        responses = len(longest.tokens.responses)
        told = (
            f", whose longest example is '{longest.id}' ({longest.size:,} tokens with {responses} responses)"
        )
    return TrainingError(
        f"memory ran out {where}{told}; in this order: a smaller memory.tokens_per_forward, "
        'memory.checkpointing, memory.tiled_mlp, memory.offload, model.lora, model.precision = "bfloat16"; what '
        "each saves is told by longrm plan"
    )


def evaluation_failed(step: int, error: Exception) -> LongRMError:
    """The error for an evaluation on the way that cannot be finished, which is none of the training itself."""
    if isinstance(error, LongRMError):
        return type(error)(f"the evaluation after step {step}: {error}")
    return TrainingError(
        f"memory ran out in the evaluation after step {step}; evaluation.settings.judge.max_length bounds what it "
        "reads, and without [evaluation] the model can be evaluated by longrm evaluate"
    )


class StallWatch:
    """Stops a run that learns nothing: over many steps a loss of a model that knows nothing, or worse, and no less.

    Args:
        steps: Over how many; 0 never stops.
        chance: The loss of a model that knows nothing; None where there is no such loss.
    """

    def __init__(self, steps: int, chance: float | None) -> None:
        self._window = steps if chance is not None else 0
        self._chance = chance or 0.0
        self._losses: list[float] = []

    def watch(self, record: StepRecord) -> None:
        """Takes notice of a finished step.

        Raises:
            TrainingError: The loss stands still.
        """
        if not self._window:
            return
        self._losses = [*self._losses, record.loss][-self._window :]
        if len(self._losses) < self._window:
            return
        half = self._window // 2
        sooner, later = fmean(self._losses[:-half] or self._losses), fmean(self._losses[-half:])
        mean = fmean(self._losses)
        # A scorer with wide scores begins far above a coin's loss, and learns while it falls.
        if mean > _STALLED * self._chance and later > _STALLED * sooner:
            raise TrainingError(
                f"the loss stalled at {mean:.3f} over {self._window} steps (a model that knows nothing has "
                f"{self._chance:.3f}); try another learning rate, shorter contexts first, or check that the gold "
                "order is right; stall_steps = 0 trains on regardless"
            )


def named(examples: Sequence[Example]) -> str:
    """The ids of the first examples, and how many more there are."""
    named = ", ".join(f"'{example.id}'" for example in examples[:_NAMED])
    more = len(examples) - _NAMED
    return f"{named} and {more} more" if more > 0 else named
