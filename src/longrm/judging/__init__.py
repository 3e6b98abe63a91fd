"""How judges are asked, and how their answers are parsed: one file per format."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from longrm.errors import ConfigError
from longrm.judging.cutting import Policy, fit, why_uncut
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat
from longrm.judging.listwise import Listwise, TokenListwise
from longrm.judging.pairwise import Pairwise, TokenPairwise
from longrm.judging.pointwise import Pointwise, TokenPointwise

__all__ = [
    "JUDGING_FORMATS",
    "TOKEN_FORMATS",
    "JudgingFormat",
    "ParsedVerdict",
    "Policy",
    "TokenFormat",
    "fit",
    "format_for",
    "load_format",
    "load_formats",
    "load_token_format",
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


def load_format(name: str, *, template: Path | None = None, verdict: str | None = None) -> JudgingFormat:
    """Makes a format.

    Args:
        name: A key of `JUDGING_FORMATS`.
        template: A jinja2 file with the user's own prompt; see `prompts.Template`.
        verdict: A regular expression with one group for the verdict; `^` and `$` match at line ends, and the last match
            counts. Pairwise the group matches A, B, C or tie, 1, 2, or a relation such as A>B; listwise letters or
            numbers, best first; pointwise a number from 0 to 10.

    Raises:
        ConfigError: A template that cannot be used, or a pattern without exactly one group.
    """
    return JUDGING_FORMATS[name](template, verdict)


def load_token_format(
    name: str, *, template: Path | None = None, tokens: Sequence[str] | None = None
) -> TokenFormat:
    """Makes a token format.

    Args:
        name: A key of `TOKEN_FORMATS`.
        template: A jinja2 file with the user's own prompt; see `prompts.Template`.
        tokens: The tokens that the template asks for; see `TokenFormat.tokens`.

    Raises:
        ConfigError: A template that cannot be used, or tokens that are blank, equal or too few.
    """
    loaded = TOKEN_FORMATS[name](template)
    if tokens is not None:
        if template is None:
            raise ConfigError("judge.tokens requires judge.template, a prompt that asks for them")
        if len({token.strip() for token in tokens} - {""}) < len(tokens):
            raise ConfigError(f"judge.tokens must be distinct and not blank, got {list(tokens)}")
        if len(tokens) < 2 or (name != "listwise" and len(tokens) != 2):
            needed = "at least 2" if name == "listwise" else "2"
            raise ConfigError(f"judge.tokens needs {needed} tokens for the {name} format, got {len(tokens)}")
        loaded.tokens = tuple(tokens)
    return loaded


def load_formats(
    name: str | None, template: str | None, load: Callable[[str, Path | None], AnyFormat]
) -> dict[str, AnyFormat]:
    """The formats that a judge with these settings needs, by name: the given one, else pairwise and listwise."""
    if template and name is None:
        raise ConfigError("judge.template requires judge.format: pairwise, listwise or pointwise")
    file = Path(template) if template else None
    return {name: load(name, file) for name in ([name] if name else ["pairwise", "listwise"])}


def format_for(formats: Mapping[str, AnyFormat], responses: int) -> AnyFormat:
    """The only format, else pairwise for two responses and listwise for more."""
    if len(formats) == 1:
        return next(iter(formats.values()))
    return formats["pairwise" if responses <= 2 else "listwise"]
