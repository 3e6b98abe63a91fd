"""The registry of kinds of text, one TOML file each; a haystack takes the place of all."""

import tomllib
from importlib.resources import files

from longrm.errors import ConfigError, nearest
from longrm.worlds.prose.generated_text import GeneratedText
from longrm.worlds.prose.haystack import Haystack, read_haystack


def read_text_kind(content: str) -> GeneratedText:
    """Makes a kind of text from TOML with the fields of `GeneratedText`; a slot may name a list of `words.toml`."""
    fields = tomllib.loads(content)
    shared = tomllib.loads((files(__name__) / "words.toml").read_text("utf-8"))
    slots = {
        slot: shared[words] if isinstance(words, str) else words for slot, words in fields["slots"].items()
    }
    return GeneratedText(**{**fields, "slots": slots})


TEXTS: dict[str, GeneratedText] = {
    name: read_text_kind((files(__name__) / f"{name}.toml").read_text("utf-8"))
    for name in ("minutes", "ledger", "mail", "code", "chat", "report")
}
"""The kinds of text by name: a new one is one file with its themes, and one entry."""

TextKind = GeneratedText | Haystack
"""What surrounds facts."""


def text_kinds(names: tuple[str, ...], haystack: str | None, column: str) -> tuple[TextKind, ...]:
    """Returns the kinds of text of a plan: the named ones, by default all, or the haystack.

    Raises:
        ConfigError: There is no such kind, or both a kind and a haystack are given.
        DataError: The haystack cannot be read.
    """
    if haystack is not None:
        if names:
            raise ConfigError(f"a haystack replaces the kind of text; omit '{names[0]}' or the haystack")
        return (read_haystack(haystack, column),)
    for name in names:
        if name not in TEXTS:
            raise ConfigError(f"no kind of text '{name}'; {nearest(name, TEXTS)}")
    return tuple(TEXTS[name] for name in names or TEXTS)
