"""The registry of kinds of text, one per file; a haystack takes the place of all."""

from collections.abc import Mapping

from longrm.errors import ConfigError, nearest
from longrm.worlds.prose.generated_text import GeneratedText
from longrm.worlds.prose.haystack import Haystack, read_haystack
from longrm.worlds.prose.texts.chat_text import CHAT
from longrm.worlds.prose.texts.code_text import CODE
from longrm.worlds.prose.texts.ledger_text import LEDGER
from longrm.worlds.prose.texts.mail_text import MAIL
from longrm.worlds.prose.texts.minutes_text import MINUTES
from longrm.worlds.prose.texts.report_text import REPORT

TEXTS: Mapping[str, GeneratedText] = {
    text.title: text for text in (MINUTES, LEDGER, MAIL, CODE, CHAT, REPORT)
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
