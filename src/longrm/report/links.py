"""Links from a figure or a table to the comparisons behind it."""

import re
from urllib.parse import quote, urlencode

_LINK = re.compile(r"</?a(?:\s[^>]*)?>")
_FRAGMENT = re.compile(r'<a\s[^>]*href="[^"#]*(#items[^"]*)"[^>]*>')


def items_link(**filters: str | int) -> str:
    """The fragment of the page that chooses comparisons in its browser.

    Args:
        filters: Values of the browser's fields: `model` by its label, `length`, `depth`, `task`, `outcome`.
    """
    return f"#items?{urlencode(filters, quote_via=quote)}"


def without_links(svg: str) -> str:
    """A figure for a file of its own, where a link into the page leads nowhere."""
    return _LINK.sub("", svg)


def pointer_links(svg: str) -> str:
    """A figure for the page: its links are for the pointer, as every cell of its table is a link for the keyboard.

    What draws the figures makes links absolute, to a site of its own: only the fragment is ours.
    """
    return _FRAGMENT.sub(r'<a href="\1" tabindex="-1">', svg)
