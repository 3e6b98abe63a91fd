"""Rows of OpenRubrics (arXiv 2510.07743): two responses, the winner, and a rubric as text."""

import re

from longrm.data.assembly import IDENTITY, assemble_comparison
from longrm.data.fields import FileRow, messages_of, required
from longrm.reading import FieldError, short
from longrm.types import Comparison

OPEN_RUBRICS_COLUMNS = frozenset({"instruction", "response_a", "response_b", "winner"})
"""What tells the format."""

_WINNER = re.compile(r"\s*(?:response[\s_]*)?([ab])\s*", re.IGNORECASE)


def from_open_rubrics(row: FileRow, number: int) -> Comparison:
    """A row whose `winner` is the letter of a response, such as "A" or "Response A".

    Raises:
        FieldError: A column is missing, or `winner` names neither response.
    """
    winner = required(row, "winner")[1]
    found = _WINNER.fullmatch(winner) if isinstance(winner, str) else None
    if found is None:
        raise FieldError("winner", f"needs 'A' or 'B', got {short(winner)}")
    return assemble_comparison(
        row,
        number,
        used={*OPEN_RUBRICS_COLUMNS, *IDENTITY},
        prompt=messages_of(required(row, "instruction")[1], "instruction", "user"),
        responses=[
            messages_of(required(row, name)[1], name, "assistant") for name in ("response_a", "response_b")
        ],
        ranks=(1, 2) if found[1].lower() == "a" else (2, 1),
        field="response_b",
    )
