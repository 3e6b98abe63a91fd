"""How judges are asked, and how their answers are parsed: one file per format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from longrm.errors import ConfigError, nearest
from longrm.judging.cutting import TruncationSide, too_long, truncate_context, why_uncut
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat
from longrm.judging.judges import JUDGES
from longrm.judging.listwise import Listwise, TokenListwise
from longrm.judging.pairwise import Pairwise, TokenPairwise
from longrm.judging.pointwise import Pointwise, TokenPointwise
from longrm.judging.prompts import prompt_hash
from longrm.judging.steps import EachStep, Steps, TokenEachStep

__all__ = [
    "JUDGES",
    "JUDGING_FORMATS",
    "STEP_FORMATS",
    "TOKEN_FORMATS",
    "TOKEN_STEP_FORMATS",
    "JudgingFormat",
    "ParsedVerdict",
    "TokenFormat",
    "TruncationSide",
    "format_for",
    "load_format",
    "load_formats",
    "load_judge",
    "prompt_provenance",
    "too_long",
    "truncate_context",
    "why_uncut",
]

AnyFormat = TypeVar("AnyFormat", bound=JudgingFormat)

JUDGING_FORMATS: dict[str, type[JudgingFormat]] = {
    "pairwise": Pairwise,
    "listwise": Listwise,
    "pointwise": Pointwise,
}
"""The registry of formats that are answered in words."""

TOKEN_FORMATS: dict[str, type[TokenFormat]] = {
    "pairwise": TokenPairwise,
    "listwise": TokenListwise,
    "pointwise": TokenPointwise,
}
"""The registry of formats that are answered by one token."""

STEP_FORMATS: dict[str, type[JudgingFormat]] = {"steps": Steps, "each-step": EachStep}
TOKEN_STEP_FORMATS: dict[str, type[TokenFormat]] = {"steps": TokenEachStep, "each-step": TokenEachStep}
"""The same two registries for the steps of trajectories."""


def load_format(name: str, *, template: Path | None = None, verdict: str | None = None) -> JudgingFormat:
    """Makes a format of `JUDGING_FORMATS`; see `JudgingFormat` for the arguments and errors."""
    return JUDGING_FORMATS[name](template, verdict)


def load_formats(
    registry: Mapping[str, type[AnyFormat]], name: str | None, template: str | None, option: Any
) -> dict[str, AnyFormat]:
    """The formats that a judge needs by name; `option` is `judge.verdict` or, for `TOKEN_FORMATS`, `judge.tokens`."""
    if template and name is None:
        raise ConfigError("judge.template requires judge.format: pairwise, listwise or pointwise")
    file = Path(template) if template else None
    return {name: registry[name](file, option) for name in ([name] if name else ["pairwise", "listwise"])}


def load_judge(name: str, template: str | None) -> dict[str, JudgingFormat]:
    """The format of a published judge, `judge.name`, by its name."""
    if name not in JUDGES:
        raise ConfigError(f"judge.name: no judge '{name}'; {nearest(name, JUDGES)}")
    return {name: JUDGES[name](Path(template) if template else None)}


def prompt_provenance(formats: Mapping[str, JudgingFormat]) -> dict[str, str]:
    """The hash of a judge's prompts, for its provenance: a run is not continued with other prompts."""
    return {"prompts": prompt_hash(*(text for format in formats.values() for text in format.prompt_texts))}


def format_for(formats: Mapping[str, AnyFormat], responses: int) -> AnyFormat:
    """The only format, else pairwise for two responses and listwise for more."""
    if len(formats) == 1:
        return next(iter(formats.values()))
    return formats["pairwise" if responses <= 2 else "listwise"]
