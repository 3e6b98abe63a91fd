"""Where a comparison stands in an evaluation: its length bucket, and how deep its evidence lies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longrm.data.fields import FieldError, is_number
from longrm.errors import DataError
from longrm.reading import short
from longrm.types import MAX_LENGTH, Comparison


@dataclass(frozen=True, slots=True)
class LengthAndDepth:
    """The length bucket in tokens, and the depth of the evidence from 0 (start) to 1 (end); None where not told."""

    length: int | None
    depth: float | None


def length_and_depth_of(metadata: Mapping[str, Any]) -> LengthAndDepth:
    """What `length` and `depth` of a comparison's metadata say.

    Raises:
        FieldError: One is filled with something else.
    """
    length, depth = metadata.get("length"), metadata.get("depth")
    return LengthAndDepth(
        None if length is None else whole_length(length, "length"), None if depth is None else _depth(depth)
    )


def length_and_depth_in(comparison: Comparison) -> LengthAndDepth:
    """The place of a comparison of which no file and row are known.

    Raises:
        DataError: Its metadata name none that can be.
    """
    try:
        return length_and_depth_of(comparison.metadata)
    except FieldError as fault:
        raise DataError(f"comparison '{comparison.id}', {fault}") from fault


def whole_length(value: Any, field: str) -> int:
    """A whole number of tokens, also where a table holds whole numbers as floating ones.

    Raises:
        FieldError: It is no number, none that is whole, or one that no bucket has.
    """
    if is_number(value) and 1 <= value <= MAX_LENGTH and value == int(value):
        return int(value)
    raise FieldError(
        field,
        f"needs a whole number of tokens from 1 to {MAX_LENGTH}, got {short(value)}; "
        "leave it out to have the prompt measured",
    )


def _depth(value: Any) -> float:
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    raise FieldError("depth", f"needs a number from 0 (start) to 1 (end), got {short(value)}")
