"""Rubrics: criteria by which responses are judged one at a time, with their weights, in the forms in use."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longrm.data.fields import FileRow
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, located, parse_json, short
from longrm.types import Criterion

COLUMNS = ("rubrics", "rubric")
"""The columns that may hold the criteria of a row, of which the first one counts that a row fills."""

_TEXTS, _WEIGHTS = ("criterion", "description"), ("weight", "points")
_LARGEST = 1e9  # so that weights of all criteria can be added
_ITEM = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+", re.MULTILINE)
_TAG = re.compile(r"\s*\[(?:hard rule|principle)\]\s*$", re.IGNORECASE)


def rubrics_of(row: FileRow) -> tuple[Criterion, ...]:
    """The criteria that a row names; see `criteria_of`.

    Raises:
        FieldError: What it holds can be read in none of the forms.
    """
    return next((criteria_of(row[name], name) for name in COLUMNS if row.get(name) is not None), ())


def criteria_of(value: Any, field: str) -> tuple[Criterion, ...]:
    """Reads criteria: a list of texts, or of objects with a `criterion` and a `weight`, or a text.

    `description` and `points`, as others call them, will do. A text is the JSON of such a list, or has an item a line
    behind numbers or bullets, as OpenRubrics writes them (arXiv 2510.07743), whose tags in brackets are left out; else
    it is one criterion. Weights are 1 where none are given, and below 0 for what a response should not have.

    Raises:
        FieldError: It is none of these, a text is empty, or a weight is 0, above 1e9 in size, or no number.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return tuple(map(Criterion, _items(value)))
        try:
            value = parse_json(value)
        except ValueError as fault:
            raise FieldError(field, f"needs a list of criteria as JSON: {fault}") from None
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"needs a list of criteria, got {short(value)}")
    return tuple(_criterion(item, f"{field}[{index}].") for index, item in enumerate(value))


def read_rubrics(path: Path) -> tuple[Criterion, ...]:
    """Reads a file of criteria, one a row, with the columns `criterion` and, where they differ, `weight`.

    Raises:
        DataError: It cannot be read, holds none, or a row is no criterion.
    """
    criteria = []
    for row in raw_rows(find_files(path)):
        try:
            criteria.append(_criterion(row.checked(), ""))
        except FieldError as fault:
            raise DataError(located(row.place, fault)) from None
    if not criteria:
        raise DataError(located(path, "holds no criterion; write one a row, such as {'criterion': '...'}"))
    return tuple(criteria)


def _criterion(given: Any, prefix: str) -> Criterion:
    row = {"criterion": given} if isinstance(given, str) else given
    if not isinstance(row, Mapping):
        raise FieldError(
            prefix.rstrip("."), f"needs a text or {{'criterion': '...', 'weight': 1}}, got {short(given)}"
        )
    text = next((row[name] for name in _TEXTS if row.get(name) is not None), None)
    weight = next((row[name] for name in _WEIGHTS if row.get(name) is not None), 1.0)
    if not is_number(weight) or not math.isfinite(weight) or not 0 < abs(weight) <= _LARGEST:
        raise FieldError(
            f"{prefix}weight", f"needs a number other than 0, of 1e9 at most in size, got {short(weight)}"
        )
    if not isinstance(text, str) or not text.strip():
        raise FieldError(f"{prefix}criterion", f"needs a text, got {short(text)}")
    return Criterion(text.strip(), float(weight))


def _items(text: str) -> list[str]:
    """The items of a list, without the heading before it; all of a text that holds none."""
    found = [" ".join(part.split()) for part in _ITEM.split(text)]
    items = found[1:] if len(found) > 1 else found
    return [item for item in (_TAG.sub("", item) for item in items) if item]
