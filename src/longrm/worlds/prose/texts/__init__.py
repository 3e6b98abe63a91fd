"""The registry of kinds of text, one kind a file; the user's own documents are another."""

from collections.abc import Mapping

from longrm.errors import ConfigError, nearest
from longrm.worlds.prose.kinds import TextKind
from longrm.worlds.prose.texts.mail import MAIL
from longrm.worlds.prose.texts.minutes import MINUTES

TEXTS: Mapping[str, TextKind] = {kind.title: kind for kind in (MINUTES, MAIL)}
"""The kinds of text by name: a new one is one file with its themes, and one entry."""


def text_kinds(names: tuple[str, ...], haystack: str | None) -> tuple[TextKind, ...]:
    """The kinds of text of a plan: those that it names, all where it names none, or a haystack.

    Raises:
        ConfigError: There is no such kind, or both a kind and a haystack are named.
    """
    for name in names:
        if name not in TEXTS:
            raise ConfigError(f"no kind of text '{name}'; {nearest(name, TEXTS)}")
    return tuple(TEXTS[name] for name in names or TEXTS)
