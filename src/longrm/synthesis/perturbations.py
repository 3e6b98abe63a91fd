"""Candidates of graded quality: what a model sees of a document is perturbed before it answers (paper, section 2).

Every perturbation is a pure function of what is shown, and leaves its name and measured settings in `done`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from longrm.data.chunking import approximate_tokens, chunk_spans
from longrm.errors import ConfigError, nearest
from longrm.reading import is_number
from longrm.rng import Draws
from longrm.synthesis.inputs.documents import Document

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CITATION = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of the context. `label` is the number it is cited by; a clue helps to answer the question."""

    text: str
    label: int
    clue: bool = False


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """What a model is shown: passages in reading order, a question, and exemplars that show how it is done.

    `steps` is the way to the gold answer, if known, which is not shown unless `hints` hold it, right or wrong. `done`
    are the perturbations so far, each `(name, what was done)`.
    """

    passages: tuple[Passage, ...]
    question: str
    exemplars: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    done: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class PerturbationContext:
    """What decides on what is hit, passages of other documents, and what counts the tokens of a text."""

    draws: Draws
    foreign: Sequence[str] = ()
    count: Callable[[str], int] = approximate_tokens


def drop_clues(shown: ShownDocument, context: PerturbationContext, *, p: float = 0.5) -> ShownDocument:
    """Drops every passage that is a clue with probability p."""
    _within("drop_clues", "p", p, 0, 1)
    kept = tuple(part for part in shown.passages if not part.clue or context.draws.fraction() >= p)
    return _noted(shown, "drop_clues", {"p": p, "dropped": len(shown.passages) - len(kept)}, passages=kept)


def cut_source(shown: ShownDocument, context: PerturbationContext, *, share: float) -> ShownDocument:
    """Cuts this share of the context's tokens off its end, in whole passages, and no more."""
    _within("cut_source", "share", share, 0, 1)
    sizes = [context.count(part.text) for part in shown.passages]
    kept, left = len(sizes), share * sum(sizes)
    while kept and sizes[kept - 1] <= left:
        kept -= 1
        left -= sizes[kept]
    done = {"share": share, "cut_tokens": sum(sizes[kept:]), "of_tokens": sum(sizes)}
    return _noted(shown, "cut_source", done, passages=shown.passages[:kept])


def truncate(
    shown: ShownDocument, context: PerturbationContext, *, low: int = 4096, high: int = 32768
) -> ShownDocument:
    """Keeps the beginning of the context: whole passages, as many as fit into `low` to `high` drawn tokens."""
    room = left = _drawn("truncate", context.draws, low, high)
    kept = 0
    for part in shown.passages:
        left -= context.count(part.text)
        if left < 0:
            break
        kept += 1
    done = {"room_tokens": room, "dropped": len(shown.passages) - kept}
    return _noted(shown, "truncate", done, passages=shown.passages[:kept])


def inject_distractors(
    shown: ShownDocument, context: PerturbationContext, *, low: int = 4096, high: int = 8192
) -> ShownDocument:
    """Puts foreign passages, of `low` to `high` drawn tokens together, at drawn places between the others.

    Passages are never cut, so up to one passage less is injected, and all of them where they are too few; what was
    injected is noted.
    """
    aim = _drawn("inject_distractors", context.draws, low, high)
    passages, injected = list(shown.passages), 0
    label = max((part.label for part in passages), default=0)
    for text in context.draws.order(context.foreign):
        tokens = context.count(text)
        if injected + tokens > aim:
            continue
        injected += tokens
        label += 1
        passages.insert(context.draws.below(len(passages) + 1), Passage(text, label))
    done = {"aim_tokens": aim, "injected_tokens": injected}
    return _noted(shown, "inject_distractors", done, passages=tuple(passages))


def remove_exemplars(shown: ShownDocument, context: PerturbationContext, *, keep: int = 0) -> ShownDocument:
    """Removes all exemplars but the first `keep`."""
    _whole("remove_exemplars", keep=keep)
    kept = shown.exemplars[: int(keep)]
    return _noted(shown, "remove_exemplars", {"removed": len(shown.exemplars) - len(kept)}, exemplars=kept)


def noisy_citations(
    shown: ShownDocument, context: PerturbationContext, *, share: float = 0.5
) -> ShownDocument:
    """Gives this share of the passages, two at least, each other's numbers; exemplars cite the wrong ones too."""
    _within("noisy_citations", "share", share, 0, 1)
    count = len(shown.passages)
    hit = list(range(count))
    context.draws.shuffle(hit)
    hit = sorted(hit[: max(2, round(share * count))]) if count > 1 and share > 0 else []
    # Moved on by one place, so that none keeps its own.
    labels = {at: shown.passages[other].label for at, other in zip(hit, [*hit[1:], *hit[:1]], strict=True)}
    passages = tuple(
        replace(part, label=labels.get(at, part.label)) for at, part in enumerate(shown.passages)
    )
    moved = {str(shown.passages[at].label): str(label) for at, label in labels.items()}
    exemplars = tuple(
        _CITATION.sub(lambda found: f"[{moved.get(found[1], found[1])}]", text) for text in shown.exemplars
    )
    return _noted(
        shown, "noisy_citations", {"share": share, "moved": len(hit)}, passages=passages, exemplars=exemplars
    )


def corrupt_steps(shown: ShownDocument, context: PerturbationContext, *, share: float = 0.5) -> ShownDocument:
    """Shows the steps with wrong numbers in this share, one at least, of those that hold a number."""
    _within("corrupt_steps", "share", share, 0, 1)
    numbered = [at for at, step in enumerate(shown.steps) if _NUMBER.search(step)]
    context.draws.shuffle(numbered)
    hit = {*numbered[: max(1, round(share * len(numbered)))]} if share > 0 else set()
    hints = tuple(_wrong(step, context.draws) if at in hit else step for at, step in enumerate(shown.steps))
    return _noted(shown, "corrupt_steps", {"share": share, "corrupted": len(hit)}, hints=hints)


def expose_steps(shown: ShownDocument, context: PerturbationContext) -> ShownDocument:
    """Shows the steps as they are."""
    return _noted(shown, "expose_steps", {"steps": len(shown.steps)}, hints=shown.steps)


PERTURBATIONS: MappingProxyType[str, Callable[..., ShownDocument]] = MappingProxyType(
    {
        "drop_clues": drop_clues,
        "cut_source": cut_source,
        "truncate": truncate,
        "inject_distractors": inject_distractors,
        "remove_exemplars": remove_exemplars,
        "noisy_citations": noisy_citations,
        "corrupt_steps": corrupt_steps,
        "expose_steps": expose_steps,
    }
)
"""The perturbations by name."""


def perturb(shown: ShownDocument, context: PerturbationContext, name: str, **settings: Any) -> ShownDocument:
    """Applies one perturbation by its name.

    Raises:
        ConfigError: An unknown name or setting, or a setting out of range; with the nearest name.
    """
    check_perturbation(name, settings)
    return PERTURBATIONS[name](shown, context, **settings)


def check_perturbation(name: str, settings: Mapping[str, Any]) -> None:
    """Refuses what `perturb` cannot apply, before any work is done.

    Raises:
        ConfigError: An unknown name or setting, a missing one, or one that is not a number or is out of range.
    """
    if name not in PERTURBATIONS:
        raise ConfigError(f"no perturbation '{name}'; {nearest(name, PERTURBATIONS)}")
    parameters = list(inspect.signature(PERTURBATIONS[name]).parameters.values())[2:]
    known = [parameter.name for parameter in parameters]
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"the perturbation '{name}' has no setting '{key}'; {nearest(key, known)}")
        if not is_number(value):
            raise ConfigError(f"the perturbation '{name}' needs a number for '{key}', got {value!r}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in settings:
            raise ConfigError(f"the perturbation '{name}' needs the setting '{parameter.name}'")
    PERTURBATIONS[name](
        ShownDocument((), ""), PerturbationContext(Draws("nothing to hit")), **settings
    )  # checks the ranges


def passages_of(
    text: str, size: int, is_clue: Callable[[int, int], bool] = lambda low, high: False
) -> tuple[Passage, ...]:
    """Cuts a context into numbered passages of at most `size` approximate tokens, none in the middle of a sentence."""
    cut = chunk_spans(text, size)
    return tuple(
        Passage(text[low:high], at, is_clue(low, high)) for at, (low, high) in enumerate(cut, start=1)
    )


def holds_answer(document: Document) -> Callable[[int, int], bool]:
    """Tells where the gold answer stands word for word, case aside; nowhere where it is not quoted."""
    text, answer = document.text.lower(), document.answer.strip().lower()
    return lambda low, high: bool(answer) and answer in text[low:high]


def shown_text(shown: ShownDocument) -> str:
    """All that a prompt shows before its question: exemplars, numbered passages and hints."""
    parts = []
    if shown.exemplars:
        parts.append("Examples of questions that were answered well:\n\n" + "\n\n".join(shown.exemplars))
    parts.append(
        "Read these numbered passages.\n\n"
        + "\n\n".join(f"[{part.label}] {part.text.strip()}" for part in shown.passages)
    )
    if shown.hints:
        parts.append("Somebody began to work it out:\n" + "\n".join(shown.hints))
    return "\n\n".join(parts)


def content_of(shown: ShownDocument) -> str:
    """The prompt in one message, the question last."""
    return (
        f"{shown_text(shown)}\n\nAnswer the question from the passages alone. Where it asks for sources, cite "
        f"passages by number, such as [2].\n\nQuestion: {shown.question}"
    )


def _noted(shown: ShownDocument, name: str, what: Mapping[str, Any], **changes: Any) -> ShownDocument:
    return replace(shown, done=(*shown.done, (name, what)), **changes)


def _drawn(name: str, draws: Draws, low: int, high: int) -> int:
    _whole(name, low=low, high=high)
    if not 0 < low <= high:
        raise ConfigError(f"the perturbation '{name}' needs 0 < low <= high in tokens, got {low} and {high}")
    return int(low) + draws.below(int(high - low) + 1)


def _wrong(step: str, draws: Draws) -> str:
    """The last number of a step, and so its result, made another one."""
    *_, number = _NUMBER.finditer(step)
    whole, point, rest = number[0].partition(".")
    off = 1 + draws.below(9)
    other = int(whole) - off if int(whole) > off and draws.fraction() < 0.5 else int(whole) + off
    return f"{step[: number.start()]}{other}{point}{rest}{step[number.end() :]}"


def _whole(name: str, **settings: float) -> None:
    for setting, value in settings.items():
        if value != int(value) or value < 0:
            raise ConfigError(f"the perturbation '{name}' needs a whole number for '{setting}', got {value}")


def _within(name: str, setting: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"the perturbation '{name}' needs {setting} from {low} to {high}, got {value}")
