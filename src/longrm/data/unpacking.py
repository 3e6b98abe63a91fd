"""The unpacked sizes of Parquet pages and Arrow messages, read without unpacking them."""

import mmap
import struct
from pathlib import Path
from typing import Any

from longrm.reading import ParseError


def largest_page(file: Path, column: Any) -> int:
    """Bytes of the largest page of a column in a group, once it is unpacked: the pages say so themselves."""
    starts = (column.dictionary_page_offset, column.data_page_offset)
    at = min(start for start in starts if start is not None)
    end, largest = at + column.total_compressed_size, 0
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while at < end:
            header = _Compact(data, at)
            fields = header.fields()
            largest = max(largest, fields.get(2, 0))
            at = header.at + max(0, fields.get(3, 0))
    return largest


class _Compact:
    """Reads the header of a page: thrift's compact protocol, as far as such headers use it."""

    def __init__(self, data: Any, at: int) -> None:
        self._data = data
        self.at = at

    def fields(self, depth: int = 0) -> dict[int, int]:
        """The whole numbers among the fields of a structure, by their ids."""
        found: dict[int, int] = {}
        number = 0
        while (head := self._byte()) and depth < 4:
            number = number + (head >> 4) if head >> 4 else self._signed()
            match head & 15:
                case 1 | 2:
                    pass
                case 3:
                    self.at += 1
                case 4 | 5 | 6:
                    found[number] = self._signed()
                case 7:
                    self.at += 8
                case 8:
                    size = self._varint()
                    self.at += size
                case 12:
                    self.fields(depth + 1)
                case _:
                    raise ParseError("damaged: a page begins with no header")
        return found

    def _byte(self) -> int:
        self.at += 1
        return int(self._data[self.at - 1])

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
        return int(value | byte << shift)

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def unpacked(message: Any) -> int:
    """Bytes of a message's buffers once they are unpacked; 0 where they are not packed.

    The sizes precede the buffers, whose offsets are in the message's table (Message.fbs of Apache Arrow).
    """
    data = memoryview(message.metadata)
    try:
        table = struct.unpack_from("<I", data)[0]
        header = _entry(data, table, 2)
        if header and message.type == "dictionary":
            header = _entry(data, _follow(data, header), 1)
        if not header:
            return 0
        batch = _follow(data, header)
        buffers = _entry(data, batch, 2)
        if message.type == "schema" or not buffers or not _entry(data, batch, 3):
            return 0
        at = _follow(data, buffers)
        count, body = struct.unpack_from("<I", data, at)[0], memoryview(message.body)
        places = struct.iter_unpack("<qq", data[at + 4 : at + 4 + 16 * count])
        sizes = (struct.unpack_from("<q", body, place)[0] for place, length in places if length >= 8)
        return sum(max(0, size) for size in sizes)
    except struct.error:
        raise ParseError("damaged: a message whose sizes stand nowhere") from None


def _follow(data: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _entry(data: memoryview, table: int, slot: int) -> int:
    """Returns the offset of a field of a table; 0 where it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, fields)[0]
    at = 4 + 2 * slot
    offset = struct.unpack_from("<H", data, fields + at)[0] if at < size else 0
    return table + int(offset) if offset else 0
