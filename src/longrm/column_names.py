"""Columns of a user's file under the names that longrm reads, such as `prompt=question,chosen=good`."""

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Annotated, Any

from pydantic import AfterValidator

from longrm.errors import ConfigError, nearest
from longrm.reading import FieldError, short

COLUMNS = (
    *("prompt", "system", "context", "question", "chosen", "rejected", "rejects", "candidates"),
    *("candidates_score", "responses", "ranks", "scores", "winner", "strength", "chat_template", "golden"),
    *("completion", "label", "answer", "metric", "evidence", "tools", "rubrics", "instruction", "response_a"),
    *("response_b", "id", "group", "metadata", "task", "subtype", "source", "length", "depth", "margin"),
    *("probability", "messages", "step_labels", "success", "completions", "labels", "problem", "steps"),
)
"""The columns that longrm reads."""

LISTS = ("responses", "ranks", "scores")
"""Those that may be several columns of a file, one for each response."""

Columns = Mapping[str, str | Sequence[str]]
"""Names that longrm reads, each with the name of the column in the file, or with several for one of `LISTS`."""


def own_columns(columns: Columns) -> list[tuple[str, str]]:
    """Every column of the file with longrm's name for it."""
    return [(own, name) for name, given in columns.items() for own in _several(given)]


def check_columns(columns: Columns) -> Columns:
    """Checks and returns a mapping from longrm's names to the names in a file."""
    ours: dict[str, str] = {}
    for name, given in columns.items():
        if name not in COLUMNS:
            raise ConfigError(f"longrm reads no column {short(name)}; {nearest(name, COLUMNS)}")
        if not given:
            raise ConfigError(f"the column for '{name}' has no name; write {name}=COLUMN")
        if not isinstance(given, str) and name not in LISTS:
            raise ConfigError(
                f"'{name}' is one column, got {short(given)}; several are for {', '.join(LISTS)}"
            )
    for own, name in own_columns(columns):
        if own in ours:
            raise ConfigError(f"the column {short(own)} cannot be both '{ours[own]}' and '{name}'")
        ours[own] = name
    return columns


ColumnNames = Annotated[Mapping[str, str | tuple[str, ...]], AfterValidator(check_columns)]
"""A setting: `Columns`."""


def renamed(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The row with its columns renamed, in their order. Columns that the row lacks are ignored.

    Several columns become one list, or null if all of them are. A `winner` that names one of the responses' columns
    becomes a letter, because their names are lost.
    """
    ours = dict(own_columns(columns))
    for own, name in ours.items():
        if name in row and own in row and name not in ours:
            raise FieldError(name, f"already exists, and '{own}' is renamed to it; remove one of them")
    result = {ours.get(name, name): value for name, value in row.items()}
    for name, given in columns.items():
        if not isinstance(given, str) and name in result:
            values = [row.get(own) for own in given]
            result[name] = None if all(value is None for value in values) else values
    responses = columns.get("responses", "")
    if not isinstance(responses, str) and result.get("winner") is not None:
        result["winner"] = _letter(result["winner"], responses)
    return result


def _several(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


def _letter(winner: Any, names: Sequence[str]) -> Any:
    """The letter of the response whose column a winner names, by the whole name or its distinguishing part.

    With `answer_0` and `answer_1` these are "0" or 0 for A, and "1" or 1 for B. Any other winner is returned as it is.
    """
    text = str(int(winner) if isinstance(winner, float) and winner.is_integer() else winner).strip().lower()
    lower = [name.lower() for name in names]
    # Digits stay: answer_10 and answer_11 do not differ by "0" and "1".
    start, end = (
        len(commonprefix(some).rstrip("0123456789"))  # noqa: RUF071  # not paths
        for some in (lower, [name[::-1] for name in lower])
    )
    short_form = re.fullmatch(r"\w.*[\s_-](\w)", text)  # "model_a" is "a", but -1 is not 1
    found = {text, short_form[1]} if short_form else {text}
    for at, name in enumerate(lower):
        if found & {name, name[start : len(name) - end]}:
            return chr(ord("A") + at)
    return winner
