"""How a judge is asked, and how its verdict is read: one file a format, which renders and parses."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from longrm.errors import ConfigError, nearest
from longrm.judging.cutting import Policy, fit, too_long, why_uncut
from longrm.judging.format import JudgingFormat, ParsedVerdict
from longrm.judging.listwise import Listwise
from longrm.judging.pairwise import Pairwise
from longrm.judging.pointwise import Pointwise
from longrm.judging.templates import Template, verdict_pattern

__all__ = [
    "JUDGING_FORMATS",
    "JudgingFormat",
    "ParsedVerdict",
    "Policy",
    "fit",
    "format_for",
    "load_format",
    "load_formats",
    "too_long",
    "why_uncut",
]

AnyFormat = TypeVar("AnyFormat", bound=JudgingFormat)

JUDGING_FORMATS: dict[str, type[JudgingFormat]] = {
    kind.name: kind for kind in (Pairwise, Listwise, Pointwise)
}
"""The registry of formats."""


def load_format(name: str, *, template: Path | None = None, verdict: str | None = None) -> JudgingFormat:
    """Makes a format, with the user's own prompt or verdict pattern where they are given.

    Args:
        name: One of `FORMATS`.
        template: A jinja2 file that becomes the one user's message of every prompt: see `templates.Template`.
        verdict: A regular expression with one group around what the verdict says; `^` and `$` match at line ends,
            and the last match counts. Pairwise the group holds A, B, C or tie, 1, 2, or a relation such as A>B;
            listwise letters or numbers, best first; pointwise a number from 0 to 10.

    Raises:
        ConfigError: An unknown name, a template that cannot be used, or a pattern without exactly one group.
    """
    if name not in JUDGING_FORMATS:
        raise ConfigError(f"no judging format '{name}'; {nearest(name, JUDGING_FORMATS)}")
    kind = JUDGING_FORMATS[name]
    return kind(
        None if template is None else Template(template, alone=kind.alone),
        None if verdict is None else verdict_pattern(verdict),
    )


def load_formats(
    name: str | None, template: str | None, make: Callable[[str, Path | None], AnyFormat]
) -> dict[str, AnyFormat]:
    """The formats that a judge needs, by their names: the one that is named, else pairwise and listwise.

    Args:
        name: The setting `judge.format`.
        template: The setting `judge.template`.
        make: Makes a format of its name and the file of a template.

    Raises:
        ConfigError: A template without the name of its format, or as `make` raises it.
    """
    if template and name is None:
        raise ConfigError("a template needs judge.format: say whether it is pairwise, listwise or pointwise")
    file = Path(template) if template else None
    return {name: make(name, file) for name in ([name] if name else ["pairwise", "listwise"])}


def format_for(formats: Mapping[str, AnyFormat], responses: int) -> AnyFormat:
    """The one format there is, else pairwise for two responses and listwise for more."""
    if len(formats) == 1:
        return next(iter(formats.values()))
    return formats["pairwise" if responses <= 2 else "listwise"]
