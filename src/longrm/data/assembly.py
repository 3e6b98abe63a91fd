"""Rows become comparisons: what the rows of all formats may hold beside prompt and responses."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from longrm.data.criteria import COLUMNS, rubrics_of
from longrm.data.fields import GROUPS, FileRow, find_context, find_question, group_of, name_of, to_json_types
from longrm.data.tool_schemas import tools_of
from longrm.reading import FieldError
from longrm.types import Comparison, Message, Response, Span

_IDS = ("id", "uuid")
IDENTITY = frozenset({*_IDS, *GROUPS})
"""Columns that every foreign format may have to name a row, and what it shares with others."""

_KNOWN = frozenset({"id", "group", "metadata", "tools", *COLUMNS})


def assemble_comparison(
    row: FileRow,
    number: int,
    *,
    used: Set[str],
    prompt: tuple[Message, ...],
    responses: Sequence[Response],
    ranks: tuple[int, ...] | None,
    field: str,
    role: Literal["response", "judgment"] = "response",
    context: tuple[Span, ...] = (),
    question: Span | None = None,
    evidence: tuple[Span, ...] = (),
) -> Comparison:
    """Puts a comparison together, with the fields that all formats may have.

    The row's number is the last resort for an id. Columns that are neither `used` nor known to all formats become
    metadata. Context and question are found by the columns `context` and `question` or `query` where they are not
    given. `field` is the column to blame where the responses do not make a comparison.
    """
    _check_distinct(responses, ranks, field)
    context = context or find_context(row, prompt)
    question = question or find_question(row, prompt)
    known = {*used, *_KNOWN}
    extra = {key: to_json_types(value) for key, value in row.items() if key not in known}
    metadata = row.get("metadata")
    for held in (row, metadata if isinstance(metadata, Mapping) else {}):
        for name in ("margin", "probability"):  # training would take null for a number that is not known
            if isinstance(held.get(name), float) and not math.isfinite(held[name]):
                raise FieldError(name, f"needs a number, null where it is not known; got {held[name]}")
    own_id = next((name_of(row, name) for name in _IDS if row.get(name) is not None), None)
    return Comparison(
        id=f"row-{number}" if own_id is None else own_id,
        group=group_of(row, prompt, context, question),
        prompt=prompt,
        responses=tuple(responses),
        ranks=ranks,
        metadata=extra | (to_json_types(metadata) if isinstance(metadata, Mapping) else {}),
        context=context,
        question=question,
        evidence=evidence,
        role=role,
        tools=tools_of(row.get("tools")),
        rubrics=rubrics_of(row),
    )


def _check_distinct(responses: Sequence[Response], ranks: tuple[int, ...] | None, field: str) -> None:
    """Refuses equal responses with different ranks, between which no judge could decide."""
    if ranks is None:
        return
    for index, response in enumerate(responses):
        for other in range(index):
            if ranks[index] != ranks[other] and response == responses[other]:
                raise FieldError(
                    field, f"responses {other + 1} and {index + 1} are identical but ranked differently"
                )
