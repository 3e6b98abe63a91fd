"""Candidates of graded quality: what a model sees of a document is perturbed before it answers (paper, section 2).

Every perturbation is a pure function of the view, its random draws and passages of other documents, and records its
name and parameters in `done`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longrm.data.chunking import approximate_tokens, chunk_spans
from longrm.errors import ConfigError, nearest
from longrm.reading import is_number
from longrm.rng import Draws
from longrm.synthesis.documents import Document

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CITATION = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of the context, the number that cites it, and whether it contains the answer."""

    text: str
    label: int
    clue: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a model sees."""

    passages: tuple[Passage, ...]  # in reading order
    question: str  # the question
    exemplars: tuple[str, ...] = ()  # examples of answered questions
    steps: tuple[str, ...] = ()  # the way to the gold answer; shown only as `hints`, correct or not
    hints: tuple[str, ...] = ()  # see `steps`
    done: tuple[Mapping[str, Any], ...] = ()  # the perturbations so far, each with its parameters

    @property
    def shown(self) -> str:
        """The prompt before the question: exemplars, numbered passages and hints."""
        parts = []
        if self.exemplars:
            parts.append("Examples of questions that were answered well:\n\n" + "\n\n".join(self.exemplars))
        passages = (f"[{passage.label}] {passage.text.strip()}" for passage in self.passages)
        parts.append("Read these numbered passages.\n\n" + "\n\n".join(passages))
        if self.hints:
            parts.append("Somebody began to work it out:\n" + "\n".join(self.hints))
        return "\n\n".join(parts)

    @property
    def content(self) -> str:
        """The whole prompt."""
        return (
            f"{self.shown}\n\nAnswer the question from the passages alone. Where it asks for sources, cite passages by "
            f"number, such as [2].\n\nQuestion: {self.question}"
        )


def drop_clues(view: View, draws: Draws, foreign: Sequence[str], *, p: float = 0.5) -> View:
    """Drops every passage that contains the answer with probability p."""
    kept = tuple(part for part in view.passages if not part.clue or draws.fraction() >= p)
    return _done(view, "drop_clues", {"p": p, "dropped": len(view.passages) - len(kept)}, passages=kept)


def cut_source(view: View, draws: Draws, foreign: Sequence[str], *, share: float) -> View:
    """Cuts at most this share of the context's tokens off its end, in whole passages."""
    sizes = [approximate_tokens(part.text) for part in view.passages]
    kept, left = len(sizes), share * sum(sizes)
    while kept and sizes[kept - 1] <= left:
        kept -= 1
        left -= sizes[kept]
    parameters = {"share": share, "cut_tokens": sum(sizes[kept:]), "of_tokens": sum(sizes)}
    return _done(view, "cut_source", parameters, passages=view.passages[:kept])


def truncate(view: View, draws: Draws, foreign: Sequence[str], *, low: int = 4096, high: int = 32768) -> View:
    """Keeps the beginning of the context: whole passages within a drawn number of `low` to `high` tokens."""
    room = left = int(low) + draws.below(int(high - low) + 1)
    kept = 0
    for part in view.passages:
        left -= approximate_tokens(part.text)
        if left < 0:
            break
        kept += 1
    parameters = {"room_tokens": room, "dropped": len(view.passages) - kept}
    return _done(view, "truncate", parameters, passages=view.passages[:kept])


def inject_distractors(
    view: View, draws: Draws, foreign: Sequence[str], *, low: int = 4096, high: int = 8192
) -> View:
    """Inserts passages of other documents, of `low` to `high` drawn tokens together, at drawn places.

    Passages are never cut, so up to one passage less is inserted, or all if there are too few.
    """
    aim = int(low) + draws.below(int(high - low) + 1)
    passages, injected = list(view.passages), 0
    label = max((part.label for part in passages), default=0)
    for text in draws.order(foreign):
        tokens = approximate_tokens(text)
        if injected + tokens > aim:
            continue
        injected += tokens
        label += 1
        passages.insert(draws.below(len(passages) + 1), Passage(text, label))
    parameters = {"aim_tokens": aim, "injected_tokens": injected}
    return _done(view, "inject_distractors", parameters, passages=tuple(passages))


def remove_exemplars(view: View, draws: Draws, foreign: Sequence[str], *, keep: int = 0) -> View:
    """Removes all exemplars but the first `keep`."""
    kept = view.exemplars[: int(keep)]
    return _done(view, "remove_exemplars", {"removed": len(view.exemplars) - len(kept)}, exemplars=kept)


def noisy_citations(view: View, draws: Draws, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Swaps the numbers of this share of the passages, at least two; exemplars cite the wrong ones too."""
    count = len(view.passages)
    hit = list(range(count))
    draws.shuffle(hit)
    hit = sorted(hit[: max(2, round(share * count))]) if count > 1 and share > 0 else []
    # Rotated by one, so that none keeps its own number.
    labels = {at: view.passages[other].label for at, other in zip(hit, [*hit[1:], *hit[:1]], strict=True)}
    passages = tuple(replace(part, label=labels.get(at, part.label)) for at, part in enumerate(view.passages))
    moved = {str(view.passages[at].label): str(label) for at, label in labels.items()}
    exemplars = tuple(
        _CITATION.sub(lambda found: f"[{moved.get(found[1], found[1])}]", text) for text in view.exemplars
    )
    parameters = {"share": share, "moved": len(hit)}
    return _done(view, "noisy_citations", parameters, passages=passages, exemplars=exemplars)


def corrupt_steps(view: View, draws: Draws, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Shows the steps with a wrong result in this share, at least one, of those that contain a number."""
    numbered = [at for at, step in enumerate(view.steps) if _NUMBER.search(step)]
    draws.shuffle(numbered)
    hit = {*numbered[: max(1, round(share * len(numbered)))]} if share > 0 else set()
    hints = tuple(
        _with_wrong_number(step, draws) if at in hit else step for at, step in enumerate(view.steps)
    )
    return _done(view, "corrupt_steps", {"share": share, "corrupted": len(hit)}, hints=hints)


def expose_steps(view: View, draws: Draws, foreign: Sequence[str]) -> View:
    """Shows the steps as they are."""
    return _done(view, "expose_steps", {"steps": len(view.steps)}, hints=view.steps)


PERTURBATIONS: dict[str, Callable[..., View]] = {
    "drop_clues": drop_clues,
    "cut_source": cut_source,
    "truncate": truncate,
    "inject_distractors": inject_distractors,
    "remove_exemplars": remove_exemplars,
    "noisy_citations": noisy_citations,
    "corrupt_steps": corrupt_steps,
    "expose_steps": expose_steps,
}
"""The perturbations by name."""


def check_perturbation(name: str, settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an unknown name or setting, a missing setting, or a value out of range."""
    if name not in PERTURBATIONS:
        raise ConfigError(f"no perturbation '{name}'; {nearest(name, PERTURBATIONS)}")
    parameters = list(inspect.signature(PERTURBATIONS[name]).parameters.values())[3:]
    known = {parameter.name: parameter.default for parameter in parameters}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"the perturbation '{name}' has no setting '{key}'; {nearest(key, known)}")
        share = key in ("p", "share")
        if not is_number(value) or value < 0 or (value > 1 if share else value != int(value)):
            wanted = "a number from 0 to 1" if share else "a whole number"
            raise ConfigError(f"the perturbation '{name}' needs {wanted} for '{key}', got {value!r}")
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in settings:
            raise ConfigError(f"the perturbation '{name}' needs the setting '{key}'")
    values = {**known, **settings}
    if "low" in values and not 0 < values["low"] <= values["high"]:
        raise ConfigError(
            f"the perturbation '{name}' needs 0 < low <= high in tokens, got {values['low']} and {values['high']}"
        )


def passages_of(
    text: str, size: int, is_clue: Callable[[int, int], bool] = lambda low, high: False
) -> tuple[Passage, ...]:
    """Cuts a context into numbered passages of at most `size` approximate tokens, at the ends of sentences."""
    spans = chunk_spans(text, size)
    return tuple(
        Passage(text[low:high], number, is_clue(low, high))
        for number, (low, high) in enumerate(spans, start=1)
    )


def contains_answer(document: Document) -> Callable[[int, int], bool]:
    """Whether characters low to high contain the gold answer word for word, ignoring case."""
    text, answer = document.text.lower(), document.answer.strip().lower()
    return lambda low, high: bool(answer) and answer in text[low:high]


def _done(view: View, name: str, parameters: Mapping[str, Any], **changes: Any) -> View:
    return replace(view, done=(*view.done, {"name": name, **parameters}), **changes)


def _with_wrong_number(step: str, draws: Draws) -> str:
    """Changes the last number of a step, which is its result."""
    *_, number = _NUMBER.finditer(step)
    whole, point, rest = number[0].partition(".")
    off = 1 + draws.below(9)
    other = int(whole) - off if int(whole) > off and draws.fraction() < 0.5 else int(whole) + off
    return f"{step[: number.start()]}{other}{point}{rest}{step[number.end() :]}"
