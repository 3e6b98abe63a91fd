"""Columns of a user's file under the names that longrm reads, such as `prompt=question,chosen=good`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from longrm.errors import ConfigError, nearest
from longrm.reading import FieldError, short

COLUMNS = (
    *("prompt", "context", "question", "chosen", "rejected", "rejects", "candidates", "candidates_score"),
    *("responses", "ranks", "scores", "chat_template", "golden", "completion", "label", "answer", "metric"),
    *("evidence", "tools", "rubrics", "instruction", "response_a", "response_b", "winner", "id", "group"),
    *("metadata", "task", "subtype", "source", "length", "depth", "margin", "probability"),
)
"""The columns that longrm reads."""


def check_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Checks and returns a mapping from longrm's names to the names in a file."""
    ours: dict[str, str] = {}
    for name, own in columns.items():
        if name not in COLUMNS:
            raise ConfigError(f"longrm reads no column {short(name)}; {nearest(name, COLUMNS)}")
        if not own:
            raise ConfigError(f"the column for '{name}' has no name; write {name}=COLUMN")
        if own in ours:
            raise ConfigError(f"the column {short(own)} cannot be both '{ours[own]}' and '{name}'")
        ours[own] = name
    return columns


ColumnNames = Annotated[Mapping[str, str], AfterValidator(check_columns)]
"""A setting: names that longrm reads, each with the name of the column in the file."""


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns renamed, in their order. Columns that the row lacks are ignored."""
    ours = {own: name for name, own in columns.items()}
    for name, own in columns.items():
        if name in row and own in row and name not in ours:
            raise FieldError(name, f"already exists, and '{own}' is renamed to it; remove one of them")
    return {ours.get(name, name): value for name, value in row.items()}
