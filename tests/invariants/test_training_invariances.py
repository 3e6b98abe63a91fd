"""A step's loss, metrics and gradients do not depend on how it is cut into micro-batches, packed, ordered or sharded.

There is no padding, as the token counts show.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.modeling.attention import SHARED_PREFIX
from longrm.rng import Rng
from longrm.training.batches import Batches, MicroBatch
from longrm.training.objectives import PRM, SFT, BradleyTerry, Objective, Preference
from longrm.training.settings import LossSettings

VOCABULARY = 97
TOLERANCE = 2e-5  # fp32, relative to the largest value of a tensor
# Tokens of the prompt and of the responses; ranks, of which some tie.
SHAPES = [
    (61, (9, 17, 4), (2, 1, 3)),
    (61, (12, 5), (1, 2)),  # about the same document as the first
    (83, (7, 7, 21, 3), (2, 2, 1, 4)),
    (40, (1, 2), (2, 1)),
    (29, (13, 6, 8), (3, 1, 2)),
    (57, (5, 30), (2, 1)),
    (70, (11, 4, 6), (1, 2, 2)),
    (18, (3, 8), (1, 2)),
]
RESPONSES = sum(len(responses) for _, responses, _ in SHAPES)
WHOLE, MIDDLE, SINGLE = 100_000, 250, 1
"""Token budgets: one micro-batch, some of different sizes, one per row."""


def make_examples() -> list[Example]:
    rng = Rng("invariances")
    ids = lambda n: [3 + rng.below(VOCABULARY - 3) for _ in range(n)]  # noqa: E731  # one line
    document = ids(45)
    examples = []
    for number, (prompt, responses, ranks) in enumerate(SHAPES):
        shared = document if number < 2 else []
        tokens = Encoded([*shared, *ids(prompt - len(shared))], [ids(n) for n in responses])
        examples.append(
            Example(
                str(number), tokens, ranks, str(number), margin=0.1 * number, probability=1 - 0.05 * number
            )
        )
    return examples


def demonstrations() -> list[Example]:
    return [
        replace(own, tokens=Encoded(own.tokens.prompt, own.tokens.responses[:1]), ranks=(1,))
        for own in make_examples()
    ]


def trajectories() -> list[Example]:
    """Each response follows one part more of the prompt than the one before it."""
    made = []
    for own in make_examples():
        prompt, count = own.tokens.prompt, len(own.ranks)
        forks = [len(prompt) * (number + 1) // count for number in range(count)]
        tokens = Encoded(prompt, own.tokens.responses, forks=forks)
        labels = tuple(float(rank == min(own.ranks)) for rank in own.ranks)
        ranks = tuple(2 - int(label) for label in labels)
        made.append(replace(own, tokens=tokens, labels=labels, ranks=ranks, margin=None, probability=None))
    return made


def reference_of(examples: list[Example]) -> dict[str, list[float]]:
    """Log-probabilities of the selected responses by an imagined reference; they depend on the response alone."""
    chosen = map(Preference(LossSettings(loss_type="logo")).select, examples)
    return {own.id: [-4.0 * len(one) - 0.01 * sum(one) for one in own.tokens.responses] for own in chosen}


def preference(examples: list[Example], **options: Any) -> Preference:
    return Preference(LossSettings(**{"loss_type": "logo"} | options), reference_of(examples))


def ranking(_: list[Example], **options: Any) -> BradleyTerry:
    return BradleyTerry(LossSettings(**{"loss_type": "bradley_terry"} | options))


def stepwise(_: list[Example], **options: Any) -> PRM:
    return PRM(LossSettings(**options))


OBJECTIVES: dict[str, tuple[Callable[..., Objective], dict[str, Any]]] = {
    "sft": (lambda _: SFT(LossSettings(loss_type="sft")), {}),
    "logo": (preference, {"loss_type": "logo"}),
    "simpo": (preference, {"loss_type": "simpo", "label_smoothing": 0.1}),
    "dpo": (preference, {"loss_type": "dpo"}),
    "bradley_terry": (ranking, {}),
    "centered": (ranking, {"center_rewards_coefficient": 0.1}),
    "hardest": (ranking, {"loss_type": "hardest"}),
    "mean_rejected": (ranking, {"loss_type": "mean_rejected"}),
    "plackett_luce": (ranking, {"loss_type": "plackett_luce"}),
    "bce": (stepwise, {"loss_type": "bce", "label_smoothing": 0.1}),
    "step_pairs": (stepwise, {"loss_type": "step_pairs"}),
}
COMPARING = [name for name in OBJECTIVES if name not in ("sft", "bce", "step_pairs")]


def models_of(kv_heads: int) -> dict[bool, Any]:
    """A language model, and under True a scorer."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        initializer_range=0.2,
        pad_token_id=0,
        num_labels=1,
    )
    torch.manual_seed(0)
    autos: dict[bool, Any] = {False: AutoModelForCausalLM, True: AutoModelForSequenceClassification}
    return {
        scores: auto.from_config(config, attn_implementation=SHARED_PREFIX) for scores, auto in autos.items()
    }


@pytest.fixture(scope="module")
def models() -> dict[bool, Any]:
    return models_of(2)


Case = tuple[Callable[[list[Example]], Objective], Any, list[Example]]


def case_of(name: str, models: dict[bool, Any]) -> Case:
    make, options = OBJECTIVES[name]
    examples = demonstrations() if name == "sft" else make_examples()
    if make is stepwise:
        examples = trajectories()
    if name == "plackett_luce":
        examples = [replace(own, margin=None, probability=None) for own in examples]
    return lambda rows: make(rows, **options), models[make in (ranking, stepwise)], examples


@pytest.fixture
def case(request, models) -> Case:
    return case_of(request.param, models)


class Fixed:
    """A source with one step."""

    def __init__(self, examples: list[Example]) -> None:
        self._examples = examples

    def batch(self, step: int, length: int | None) -> list[Example]:
        return self._examples


def cut(objective: Objective, examples: list[Example], budget: int) -> list[MicroBatch]:
    batches = Batches(Fixed(examples), objective, budget=budget, limit=4096, curriculum=None)
    return list(batches.prepare(0).micro_batches)


def summed(objective: Objective, model: Any, parts: list[MicroBatch]) -> dict[str, Tensor]:
    """The gradients of a step, and the weighted sums of its losses and metrics."""
    model.zero_grad()
    metrics: dict[str, float] = {}
    for micro in parts:
        loss, own = objective.loss(model, micro)
        (loss * micro.weight).backward()
        for name, value in (own | {"loss": loss.item()}).items():
            metrics[name] = metrics.get(name, 0.0) + micro.weight * value
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return found | {name: torch.tensor(value) for name, value in metrics.items()}


def deviation(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    assert found.keys() == truth.keys()
    # Metrics such as a mean score may be near zero: they count relative to 1 at least.
    size = {
        k: float(truth[k].abs().max()) if truth[k].dim() else max(1.0, abs(truth[k].item())) for k in truth
    }
    return max(float((found[k] - truth[k]).abs().max()) / size[k] for k in truth)


@pytest.mark.parametrize("case", OBJECTIVES, indirect=True)
def test_a_step_is_the_same_however_it_is_cut(case):
    make, model, examples = case
    objective = make(examples)
    whole, some, single = (cut(objective, examples, budget) for budget in (WHOLE, MIDDLE, SINGLE))
    assert len(whole) == 1
    assert len(single) == len(examples)
    assert len({round(micro.weight, 3) for micro in some}) > 1, (
        "equal weights would make the control below vacuous"
    )
    for parts in (whole, some, single):
        assert sum(micro.weight for micro in parts) == pytest.approx(1.0)
        for micro in parts:
            targets = sum(map(len, micro.packed.layout.written_tokens(micro.written)))
            assert micro.packed.input_ids.numel() == micro.packed.layout.tokens
            assert targets == sum(len(one) for own in micro.examples for one in own.tokens.responses)
    truth = summed(objective, model, whole)
    assert deviation(summed(objective, model, some), truth) < TOLERANCE
    assert deviation(summed(objective, model, single), truth) < TOLERANCE
    alike = [replace(micro, weight=1 / len(some)) for micro in some]
    assert deviation(summed(objective, model, alike), truth) > 100 * TOLERANCE


@pytest.mark.parametrize("case", OBJECTIVES, indirect=True)
def test_a_step_does_not_depend_on_the_order_of_its_rows(case):
    make, model, examples = case
    truth = summed(make(examples), model, cut(make(examples), examples, MIDDLE))
    backwards = examples[::-1]
    found = summed(make(backwards), model, cut(make(backwards), backwards, MIDDLE))
    assert deviation(found, truth) < TOLERANCE
    assert (
        deviation(summed(make(examples), model, cut(make(examples), examples[1:], MIDDLE)), truth)
        > 100 * TOLERANCE
    )


@pytest.mark.parametrize("case", COMPARING, indirect=True)
def test_the_order_of_responses_does_not_matter(case):
    make, model, examples = case

    def turned(own: Example, ranks: tuple[int, ...]) -> Example:
        return replace(own, tokens=Encoded(own.tokens.prompt, own.tokens.responses[::-1]), ranks=ranks)

    def value(rows: list[Example]) -> dict[str, Tensor]:
        return summed(make(rows), model, cut(make(rows), rows, WHOLE))

    truth = value(examples)
    assert deviation(value([turned(own, own.ranks[::-1]) for own in examples]), truth) < TOLERANCE
    assert deviation(value([turned(own, own.ranks) for own in examples]), truth) > 100 * TOLERANCE


@pytest.mark.parametrize("case", OBJECTIVES, indirect=True)
def test_gradients_of_ranks_that_share_a_step_sum_to_the_whole(case):
    make, model, examples = case
    objective = make(examples)
    parts = cut(objective, examples, MIDDLE)
    shares = [parts[::2], parts[1::2]]
    truth = summed(objective, model, parts)
    apart = [summed(objective, model, share) for share in shares]
    both = {name: apart[0][name] + apart[1][name] for name in truth}
    assert deviation(both, truth) < TOLERANCE

    # Negative control: the mean of the ranks' own means, as DDP computes it without global counts.
    own = [sum(micro.weight for micro in share) for share in shares]
    means = {name: sum(one[name] / w for one, w in zip(apart, own, strict=True)) / 2 for name in truth}
    assert deviation(means, truth) > 100 * TOLERANCE
