"""Columns of a file under the names that longrm has for them, such as `prompt=question,chosen=good`."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from longrm.errors import ConfigError, nearest
from longrm.reading import ParseError, cut, short

COLUMNS = (
    *("prompt", "context", "question", "chosen", "rejected", "rejects", "candidates", "candidates_score"),
    *("responses", "ranks", "chat_template", "golden", "completion", "answer", "metric", "evidence", "tools"),
    *("rubrics", "instruction", "response_a", "response_b", "winner"),
    *("id", "group", "metadata", "task", "subtype", "source", "length", "depth", "margin", "probability"),
)
"""The columns that longrm reads, which those of a file may be called."""


def check_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Checks names of longrm, each with that of a file, and returns them.

    Raises:
        ConfigError: longrm reads no column of that name, or two are to be one column.
    """
    for name, own in columns.items():
        if name not in COLUMNS:
            raise ConfigError(f"longrm reads no column {short(name)}; {nearest(name, COLUMNS)}")
        if not own:
            raise ConfigError(f"the column that is to be '{name}' has no name; write {name}=COLUMN")
    twice = next((own for own, count in Counter(columns.values()).items() if count > 1), None)
    if twice is not None:
        several = " and ".join(f"'{name}'" for name, own in columns.items() if own == twice)
        raise ConfigError(f"the column {short(twice)} cannot be both {several}; name it once")
    return columns


ColumnNames = Annotated[Mapping[str, str], AfterValidator(check_columns)]
"""A setting: the names that longrm reads, each with the name that a column has in the file."""


def check_held(row: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    """Checks that a row has all columns that are to be renamed; a `ParseError` names the one that is not there."""
    for name, own in columns.items():
        if own not in row:
            known = cut(", ".join(row))
            raise ParseError(f"not there, and it is to be '{name}'; the columns are: {known}", own)


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """The row with its columns renamed, in their order; None with the fault where a column has the new name already.

    A row that lacks a column to be renamed is as it would be without.
    """
    ours = {own: name for name, own in columns.items()}
    for name, own in columns.items():
        if name in row and own in row and name not in ours:
            problem = f"there already, and '{own}' is to be called so; remove or rename one of the two"
            return None, str(ParseError(problem, name))
    return {ours.get(name, name): value for name, value in row.items()}, ""
