"""Columns of a user's file under the names that longrm reads, such as `prompt=question,chosen=good`."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from longrm.errors import ConfigError, nearest
from longrm.reading import FieldError, short

COLUMNS = (
    *("prompt", "context", "question", "chosen", "rejected", "rejects", "candidates", "candidates_score"),
    *("responses", "ranks", "chat_template", "golden", "completion", "answer", "metric", "evidence", "tools"),
    *("rubrics", "instruction", "response_a", "response_b", "winner"),
    *("id", "group", "metadata", "task", "subtype", "source", "length", "depth", "margin", "probability"),
)
"""The columns that longrm reads."""


def check_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Checks and returns a mapping from longrm's names to the names in a file.

    Raises:
        ConfigError: longrm reads no column of that name, or one column is mapped to two names.
    """
    for name, own in columns.items():
        if name not in COLUMNS:
            raise ConfigError(f"longrm reads no column {short(name)}; {nearest(name, COLUMNS)}")
        if not own:
            raise ConfigError(f"the column for '{name}' has no name; write {name}=COLUMN")
    duplicate = next((own for own, count in Counter(columns.values()).items() if count > 1), None)
    if duplicate is not None:
        names = " and ".join(f"'{name}'" for name, own in columns.items() if own == duplicate)
        raise ConfigError(f"the column {short(duplicate)} cannot be both {names}")
    return columns


ColumnNames = Annotated[Mapping[str, str], AfterValidator(check_columns)]
"""A setting: names that longrm reads, each with the name of the column in the file."""


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns renamed, in their order. A column that the row lacks is passed over."""
    ours = {own: name for name, own in columns.items()}
    for name, own in columns.items():
        if name in row and own in row and name not in ours:
            raise FieldError(
                name, f"already exists, and '{own}' is renamed to it; remove or rename one of them"
            )
    return {ours.get(name, name): value for name, value in row.items()}
