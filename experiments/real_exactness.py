"""Compares a shared prefix on a real model with plain transformers on separate sequences.

Scores and log-probabilities are compared with those of transformers in fp32. Gradients are compared with its gradients
in fp64: where sums over a sequence nearly cancel, plain transformers in fp32 also differs by up to 1e-3.

Letters: P tokens of the prompt, R tokens of a response, C hidden size.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longrm.data.joining import Encoded
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.loading import load_scorer
from longrm.modeling.shapes import build_trees
from longrm.modeling.shared_prefix import Packed, branch_scores, hidden_states, pack, token_logprobs

TOLERANCE = {"scores": 5e-5, "logprobs": 5e-5, "gradients": 2e-3}
"""How far the shared prefix in fp32 may be off, relative to the largest number of each tensor, over thirty layers."""

CONTROL = 100
"""How many times the tolerance it must be off where it is computed wrongly."""

QUESTIONS = (
    "What does the text say about intervals?",
    "Which command trains a reward model, and what does it write?",
    "How many tokens may a context have?",
)
RESPONSES = (
    "It says that every metric comes with a 95% interval, resampled over groups.",
    "A run folder: settings, versions, one line a judgment, and a summary.",
    "None.",
    "As many as the model reads; a longer one is cut only where the settings say so, and every cut is counted.",
    "The text does not say.",
    "Scores are raw logits of an fp32 head at the last token that is not padding, for 7 responses as for 1.",
    "longrm train bradley-terry --config mine.toml --out runs/mine",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared: P, the number of responses to each question, of questions, and of layers that learn.

    `layers` counts from the last one; with 0 no gradient is computed, and with None every weight learns.
    """

    prompt: int
    responses: int
    questions: int = 1
    layers: int | None = 0


GRID = (
    *(Cell(100, number) for number in range(1, 8)),
    Cell(500, 4),
    Cell(1000, 2, questions=3),
    Cell(2000, 3),
    Cell(4000, 2),
    Cell(8000, 2),
    Cell(100, 3, layers=None),
    Cell(500, 2, layers=None),
    Cell(500, 2, questions=2, layers=4),
    Cell(2000, 2, layers=4),
    Cell(8000, 1, layers=2),
)


class RealModel:
    """A model with a scalar head drawn from a seed, and a long text out of this repository."""

    def __init__(self, folder: Path) -> None:
        scorer = load_scorer(folder, dtype=torch.float32, device="cpu", head_seed=0)
        self.model = scorer.model
        self.tokenizer: Tokenizer = scorer.tokenizer
        pages = sorted(Path(__file__).parents[1].glob("docs/*.md"))
        self._text = self.tokenizer.encode("\n\n".join(page.read_text(encoding="utf-8") for page in pages))

    def items(self, cell: Cell) -> list[Encoded]:
        """Prompts of P tokens: a document and a question; and the responses to each."""
        items = []
        for question in QUESTIONS[: cell.questions]:
            asked = self.tokenizer.encode(f"\n\nQuestion: {question}\nAnswer: ")
            document = self._text[: cell.prompt - len(asked)]
            assert len(document) + len(asked) == cell.prompt, "the text is too short"
            responses = [self.tokenizer.encode(text) for text in RESPONSES[: cell.responses]]
            items.append(Encoded([*document, *asked], responses))
        return items


def shared(model: Any, packed: Packed, targets: Sequence[int]) -> dict[str, Tensor]:
    """Scores, and log-probabilities of the targets, by one pass over the packed sequence."""
    hidden = hidden_states(model, packed)
    return {
        "scores": branch_scores(model, hidden, packed),
        "logprobs": token_logprobs(model, hidden, packed, targets),
    }


def separate(model: Any, items: Sequence[Encoded], *, learns: bool) -> Iterator[dict[str, Tensor]]:
    """The same with plain transformers, one sequence at a time, so that no response sees another."""
    for item in items:
        for response in item.responses:
            ids = torch.tensor([[*item.prompt, *response]])
            with torch.set_grad_enabled(learns):
                states = model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
                logits = functional.linear(states[len(item.prompt) - 1 : -1], model.model.embed_tokens.weight)
                own = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
                yield {"scores": model.score(states[-1]), "logprobs": own}


def compare(real: RealModel, cell: Cell, *, fault: str | None = None) -> dict[str, Any]:
    """The largest differences of a cell, each relative to the largest value of its tensor, and seconds of both ways.

    Args:
        real: The model.
        cell: What is compared.
        fault: Computes the shared prefix wrongly, to see that it shows: "positions" are one too high in every branch,
            or branches follow each other ("branches"), so that each sees those before it.
    """
    model, items = real.model, real.items(cell)
    learning = _learning(model, cell.layers)
    model.set_attn_implementation("sdpa")
    model.to(torch.float64 if learning else torch.float32)
    start = time.perf_counter()
    truth: dict[str, list[Tensor]] = {"scores": [], "logprobs": []}
    for index, result in enumerate(separate(model, items, learns=bool(learning))):
        if learning:
            _loss(result["scores"], [result["logprobs"]], first=index).backward()
        for name, values in result.items():
            truth[name].append(values.detach())
    expected = {name: torch.cat(values) for name, values in truth.items()} | _gradients(learning)
    middle = time.perf_counter()
    model.set_attn_implementation(SHARED_PREFIX)
    model.to(torch.float32)  # which changes no weight: they came from there
    packed, targets, lengths = _packed(items)
    with _broken(fault), torch.set_grad_enabled(bool(learning)):
        found = shared(model, _wrong(packed, fault), targets)
        if learning:
            _loss(found["scores"], torch.split(found["logprobs"], lengths)).backward()
    found = {name: values.detach() for name, values in found.items()} | _gradients(learning)
    end = time.perf_counter()
    differences = {name: _distance(found[name], expected[name]) for name in expected}
    gradients = {name: value for name, value in differences.items() if name not in truth}
    return {
        "prompt": cell.prompt,
        "responses": cell.responses,
        "questions": cell.questions,
        "learns": None
        if not learning
        else "all weights"
        if cell.layers is None
        else f"last {cell.layers} layers",
        "scores": differences["scores"],
        "logprobs": differences["logprobs"],
        "logprobs_absolute": float((found["logprobs"] - expected["logprobs"]).abs().max()),
        "gradients": max(gradients.values(), default=None),
        "seconds": {"separate": round(middle - start, 2), "shared": round(end - middle, 2)},
    }


def is_exact(result: Mapping[str, Any]) -> bool:
    """Whether all differences of a cell are within their tolerances."""
    return all(result[name] <= TOLERANCE[name] for name in TOLERANCE if result[name] is not None)


def shows_the_fault(result: Mapping[str, Any]) -> bool:
    """Whether all differences of a cell are far beyond their tolerances."""
    return all(result[name] > CONTROL * TOLERANCE[name] for name in TOLERANCE if result[name] is not None)


def _packed(items: Sequence[Encoded]) -> tuple[Packed, list[int], list[int]]:
    """The packed sequence, the indices of all response tokens in it, and the tokens of each response."""
    packed = pack(build_trees(items))
    lengths = [len(response) for item in items for response in item.responses]
    targets = []
    for leaf, length in zip(packed.layout.leaves(), lengths, strict=True):
        targets += range(leaf.end - length, leaf.end)
    return packed, targets, lengths


def _loss(scores: Tensor, logprobs: Sequence[Tensor], first: int = 0) -> Tensor:
    """A loss with a different weight for every response, so that swapped gradients are detected."""
    parts = [
        (1 + first + index) * (score + own.mean())
        for index, (score, own) in enumerate(zip(scores, logprobs, strict=True))
    ]
    return torch.stack(parts).sum()


def _learning(model: Any, layers: int | None) -> dict[str, Tensor]:
    """Enables gradients for the last layers and the head only, or for all weights; returns them by name."""
    count = len(model.model.layers)
    parts = ["score", *(f"model.layers.{index}" for index in range(count - (layers or 0), count))]
    for name, weight in model.named_parameters():
        weight.requires_grad_(
            layers is None or (layers > 0 and name.startswith(tuple(f"{p}." for p in parts)))
        )
        weight.grad = None
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def _gradients(learning: dict[str, Tensor]) -> dict[str, Tensor]:
    """Takes the gradients out of the weights."""
    taken = {name: weight.grad for name, weight in learning.items() if weight.grad is not None}
    for weight in learning.values():
        weight.grad = None
    return taken


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.to(other.dtype) - other).abs().max() / other.abs().max())


def _wrong(packed: Packed, fault: str | None) -> Packed:
    match fault:
        case None | "branches":
            return packed
        case "positions":
            places = packed.position_ids.clone()
            for leaf in packed.layout.leaves():
                places[0, leaf.begin : leaf.end] += 1
            return replace(packed, position_ids=places)
        case _:
            raise ValueError(f"the fault '{fault}' is not known")


@contextmanager
def _broken(fault: str | None) -> Iterator[None]:
    """Lets every branch see those before it, within a `with` block, if that is the injected error."""
    from longrm.modeling import attention

    if fault != "branches":
        yield
        return
    right = attention.packed_attention

    def causal(q: Tensor, k: Tensor, v: Tensor, layout: Any, spec: Any, *_: Any) -> Tensor:
        return attention.sdpa(q, k, v, spec.scale, is_causal=True).transpose(1, 2)

    attention.packed_attention = causal  # type: ignore[assignment]
    try:
        yield
    finally:
        attention.packed_attention = right
