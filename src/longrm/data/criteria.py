"""Rubrics: the criteria by which responses are judged one at a time, with their weights."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longrm.data.fields import FileRow
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, parse_json, reading, short
from longrm.types import Criterion

COLUMNS = ("rubrics", "rubric")
"""The columns that may hold the criteria of a row; the first one that a row fills counts."""

_TEXTS, _WEIGHTS = ("criterion", "description"), ("weight", "points")
_ITEM = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+", re.MULTILINE)
_TAG = re.compile(r"\s*\[(?:hard rule|principle)\]\s*$", re.IGNORECASE)


def rubrics_of(row: FileRow) -> tuple[Criterion, ...]:
    """The criteria of a row; see `criteria_of`."""
    return next((criteria_of(row[name], name) for name in COLUMNS if row.get(name) is not None), ())


def criteria_of(value: Any, field: str) -> tuple[Criterion, ...]:
    """Reads criteria: a list of texts, or of objects with `criterion` and `weight` (or `description` and `points`).

    A text is the JSON of such a list, or has one item per line after numbers or bullets, as OpenRubrics writes them
    (arXiv 2510.07743; its tags in brackets are dropped), or is one criterion. The default weight is 1.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            parts = [" ".join(part.split()) for part in _ITEM.split(value)]
            items = parts[1:] if len(parts) > 1 else parts  # without the heading before a list
            return tuple(Criterion(text) for item in items if (text := _TAG.sub("", item)))
        try:
            value = parse_json(value)
        except ValueError as error:
            raise FieldError(field, f"must be a list of criteria as JSON: {error}") from None
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"must be a list of criteria, got {short(value)}")
    return tuple(_criterion(item, f"{field}[{index}].") for index, item in enumerate(value))


def read_rubrics(path: Path) -> tuple[Criterion, ...]:
    """Reads a file of criteria, one per row, with the column `criterion` and optionally `weight`."""
    criteria = []
    for row in raw_rows(find_files(path)):
        with reading(row.place, DataError):
            criteria.append(_criterion(row.checked(), ""))
    if not criteria:
        raise DataError(f"{path}: no criteria; write one per row, such as {{'criterion': '...'}}")
    return tuple(criteria)


def _criterion(given: Any, prefix: str) -> Criterion:
    if isinstance(given, str):
        given = {"criterion": given}
    if not isinstance(given, Mapping):
        problem = "must be a text or {'criterion': '...', 'weight': 1}"
        raise FieldError(prefix.rstrip("."), f"{problem}, got {short(given)}")
    text = next((given[name] for name in _TEXTS if given.get(name) is not None), None)
    weight = next((given[name] for name in _WEIGHTS if given.get(name) is not None), 1.0)
    if not is_number(weight) or not math.isfinite(weight) or weight == 0:
        raise FieldError(f"{prefix}weight", f"must be a number other than 0, got {short(weight)}")
    if not isinstance(text, str) or not text.strip():
        raise FieldError(f"{prefix}criterion", f"must be a text, got {short(text)}")
    return Criterion(text.strip(), float(weight))
