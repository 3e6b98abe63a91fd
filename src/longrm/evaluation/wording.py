"""Numbers in words: every number that a report or a comparison tells is written here; a missing one is a dash."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from longrm.evaluation.summaries import BoundaryStatus, ContextBoundary, CrossingSide, MeasuredWith
from longrm.runs.records import FEW_GROUPS, Estimate

MISSING = "–"
NO_ANSWER = "no answer"
FEW = "†"
FEW_NOTE = f"{FEW} from fewer than {FEW_GROUPS} groups: a rough interval, most often too narrow."
"""What the mark of such an interval means; said once wherever it stands."""
_MINUS = "−"
_LONGEST_TOKENIZER = 41  # characters of its name
_TOKENIZERS = {
    "words": "tokens of the words tokenizer",
    "approximate": "approximate tokens (words and marks)",
}

STATUSES: dict[BoundaryStatus, tuple[str, str]] = {
    "resolved": ("resolved", ""),
    "unresolved": ("not resolved", "not resolved by this many comparisons"),
    "below_range": ("below range", "below the shortest length measured"),
    "beyond_range": ("beyond range", "beyond the longest length measured"),
    "rising": ("none: rises", "none, for accuracy rises through the threshold"),
    "not_monotone": (
        "none: falls and rises",
        "none, for accuracy falls through the threshold and rises through it",
    ),
}
"""What the statuses of a context boundary are called in a table, and in a sentence about where it lies."""


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal."""
    return MISSING if value is None or math.isnan(value) else f"{_signed(100 * value, 1)}%"


def level(value: float) -> str:
    """A level that does not come from measurement, in percent with no more decimals than it needs."""
    return f"{round(100 * value, 1):g}%"


def points(value: float | None) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return (
        MISSING
        if value is None or math.isnan(value)
        else f"{'+' if value > 0 else ''}{_signed(100 * value, 1)}"
    )


def published(value: float | None) -> str:
    """What is in percent already, with two decimals, as published tables print it."""
    return MISSING if value is None else f"{_signed(value, 2)}%"


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return MISSING if value is None or math.isnan(value) else _signed(value, places)


def tokens(value: float | None) -> str:
    """A whole number with separators; fractions of a token are rounded away."""
    return MISSING if value is None or math.isnan(value) else f"{round(value):,}"


def short_tokens(length: int) -> str:
    """A length as axis labels write it: 4096 is 4K."""
    return f"{length // 1024}K" if length >= 1024 and length % 1024 == 0 else f"{length:,}"


def token_unit(measured: MeasuredWith | None) -> str:
    """What lengths count in: the tokens of which tokenizer, where that is known."""
    if measured is None:
        return "tokens"
    return _TOKENIZERS.get(measured.tokenizer, f"tokens of {_tokenizer(measured.tokenizer)}")


def shared_unit(measured: Iterable[MeasuredWith | None]) -> str:
    """What the lengths of several runs count in; of tokenizers that differ no name is told."""
    units = {token_unit(one) for one in measured}
    if len(units) > 1:
        return "tokens" if "tokens" in units else "tokens, of each run's own tokenizer"
    return units.pop()


def measured(told: MeasuredWith) -> str:
    """What lengths count in, and which worlds and depths were asked, in a sentence."""
    depths = listed(["anywhere" if depth == "uniform" else f"{depth:g}" for depth in told.depths])
    place = depths if depths == "anywhere" else f"at depth {depths}"
    return (
        f"Lengths in {token_unit(told)}; {'worlds' if len(told.worlds) > 1 else 'world'} {listed(told.worlds)}; "
        f"evidence {place}."
    )


def _tokenizer(name: str) -> str:
    """The name of a tokenizer: of a path its last two parts, and of a long one both ends."""
    return shortened(
        "/".join(Path(name).parts[-2:]) if len(Path(name).parts) > 2 else name, _LONGEST_TOKENIZER
    )


def percent_interval(estimate: Estimate) -> str:
    """Its limits in percent."""
    return _interval(estimate, lambda value: _signed(100 * value, 1))


def points_interval(estimate: Estimate) -> str:
    """Its limits in percentage points."""
    return _interval(estimate, points)


def decimal_interval(estimate: Estimate) -> str:
    """Its limits as plain numbers."""
    return _interval(estimate, decimal)


def seconds(value: float) -> str:
    """A duration in the unit that fits."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def boundary_estimate(boundary: ContextBoundary) -> str:
    """Where the fit crosses the threshold, or on which side of the measured lengths; a dash where that is undefined."""
    text = _end(boundary, boundary.estimate.value, boundary.estimate.value_place)
    return f"≈ {text}" if boundary.estimate.value is not None else text


def boundary_interval(boundary: ContextBoundary) -> str:
    """The interval of that crossing; empty where all of it lies on one side of the measured lengths."""
    crossing = boundary.estimate
    low = _end(boundary, crossing.low, crossing.low_place)
    high = _end(boundary, crossing.high, crossing.high_place)
    return f"[{low}, {high}]{few(boundary.groups)}" if low != high else ""


def _end(boundary: ContextBoundary, value: float | None, side: CrossingSide) -> str:
    lengths = [int(key) for key in boundary.effective_n]
    match side:
        case "within_range":
            return tokens(value)
        case "below_range":
            return f"< {tokens(min(lengths))}"
        case "beyond_range":
            return f"> {tokens(max(lengths))}"
        case "undefined":
            return MISSING
        case unknown:
            raise ValueError(f"the place {unknown!r} of a boundary's estimate is not known")


def few(groups: int) -> str:
    """The mark of an interval from too few groups, for which `FEW_NOTE` stands; empty from enough."""
    return FEW if 0 < groups < FEW_GROUPS else ""


def few_note(texts: Iterable[str]) -> str:
    """What the mark means, where one of the texts has it; else empty."""
    return FEW_NOTE if any(FEW in text for text in texts) else ""


def _interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{write(estimate.low)}, {write(estimate.high)}]{few(estimate.groups)}"


def _signed(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", _MINUS)


def plural(count: int, noun: str) -> str:
    """A whole number with its noun."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def shortened(name: str, width: int) -> str:
    """A name of no more characters than the width: of a longer one the middle is left out, where names are alike."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def shortened_apart(names: Sequence[str], width: int) -> dict[str, str]:
    """Every name, `shortened`; whole where another one would be shortened to the same."""
    cut = {name: shortened(name, width) for name in names}
    return {name: short if list(cut.values()).count(short) == 1 else name for name, short in cut.items()}
