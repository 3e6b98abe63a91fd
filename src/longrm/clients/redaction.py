"""What messages and logs may hold of what a server says: one printable line of bounded length, without the key.

Answers never pass here: what a model wrote is kept as it was written, whatever it holds.
"""

import base64
import html.entities
import re
from collections.abc import Callable, Iterator

_HIDDEN = "***"
_LONGEST = 300  # characters of a message
_READ = 4000  # characters that are read to make as many

SHORT = 8
"""A key of fewer characters is hidden only where it is a separate word: `A` is in every text."""


def redactor(key: str) -> Callable[[str], str]:
    """Makes the function through which a server's words pass before they are logged or raised.

    The key is hidden in every form in which servers are known to repeat it: as it is, escaped for JSON (also
    twice), URLs or HTML, or in base64; it is empty where requests carry none. Characters that steer a terminal are
    left out.
    """
    secret = re.compile("|".join(_forms(" ".join(key.split())))) if key else None
    margin = max(64, 16 * len(key))  # no form is longer

    def redact(text: str) -> str:
        read = text[: _READ + margin]
        line = " ".join("".join(c for c in read if c.isprintable() or c.isspace()).split())
        known = len(line) if len(text) <= _READ + margin else max(0, len(line) - margin)
        kept, end = [], 0
        for found in secret.finditer(line) if secret else ():
            if found.start() >= known:
                break
            kept += [line[end : found.start()], _HIDDEN]
            end = found.end()
        kept.append(line[end : max(end, known)])
        whole = "".join(kept)
        return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]} ..."

    return redact


def _forms(key: str) -> Iterator[str]:
    """Regular expressions of a key as servers may repeat it."""
    escaped = "".join(_character(character) for character in key)
    if len(key) < SHORT:
        yield rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"
        return
    yield escaped
    for before in range(3):  # base64 writes the same bytes in three ways: by where they stand
        bits = 8 * (before + len(key))
        encoded = base64.b64encode(bytes(before) + key.encode()).decode()
        inner = encoded[-(-8 * before // 6) : bits // 6]
        yield "".join({"+": "[+-]", "/": r"(?:\\?/|_)"}.get(letter, letter) for letter in inner)


def _character(character: str) -> str:
    """A regular expression of one character of a key, however it is escaped."""
    code = ord(character)
    forms = [
        rf"\\{{0,8}}{re.escape(character)}",
        rf"\\{{1,8}}(?:u00|x)(?i:{code:02x})",
        rf"%(?:25){{0,3}}(?i:{code:02x})",
        rf"&#0{{0,5}}{code};",
        rf"&#[xX]0{{0,5}}(?i:{code:x});",
    ]
    named = html.entities.codepoint2name.get(code)
    if named:
        forms.append(f"&{named};")
    return f"(?:{'|'.join(forms)})"
