"""Reads a report back: its words, its tables, and its browser of comparisons."""

import base64
import json
import re
import zlib
from typing import Any

import lxml.html


def words(text: str) -> str:
    """The visible words of a page."""
    page = lxml.html.document_fromstring(text)
    for hidden in page.xpath("//script | //style"):
        hidden.drop_tree()
    return " ".join(page.text_content().split())


def tables(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """The tables of a page: caption -> row header -> column -> the cell's words."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for table in lxml.html.document_fromstring(text).iter("table"):
        caption = " ".join(table.find("caption").text_content().split())
        rows = [[" ".join(cell.text_content().split()) for cell in row] for row in table.iter("tr")]
        assert caption not in found
        found[caption] = {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}
    return found


def anchors(text: str) -> set[str]:
    """The ids of a page's headings."""
    return set(re.findall(r'<h2 id="([\w-]+)">', text))


class Browser:
    """The chunks of a browser of comparisons, inflated as the page's script does."""

    def __init__(self, shown: dict[str, Any] | None) -> None:
        assert shown is not None
        self.shown = shown
        self.index = json.loads(self.text(shown["index"]))
        self.rows = {row["key"]: row for row in self.index["items"]}

    @classmethod
    def of_page(cls, text: str) -> "Browser":
        """The browser of a page."""
        page = lxml.html.document_fromstring(text)
        index = int(page.get_element_by_id("viewer").get("data-index"))
        return cls({"chunks": page.xpath("//script[@type='text/plain']/text()"), "index": index})

    def text(self, number: int) -> str:
        return zlib.decompress(base64.b64decode(self.shown["chunks"][number], validate=True)).decode()

    def detail(self, key: str) -> dict[str, Any]:
        """What a comparison shows when it is opened."""
        detail: dict[str, Any] = json.loads(self.text(self.rows[key]["chunk"]))
        return detail

    def details(self) -> dict[str, dict[str, Any]]:
        """All comparisons that open, by key."""
        return {key: self.detail(key) for key, row in self.rows.items() if row["chunk"] is not None}

    def prompt(self, message: dict[str, Any]) -> bytes:
        """The text of a message in UTF-16, each part at its place."""
        units = bytearray(b"\0\0" * message["size"])
        for start, part in message["parts"]:
            text = (self.text(part) if isinstance(part, int) else part).encode("utf-16-le")
            units[2 * start : 2 * start + len(text)] = text
        return bytes(units)
