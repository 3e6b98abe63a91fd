"""The formats of preference data: by which columns each is known, and how its rows become comparisons."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

from longrm.data import native
from longrm.data.assembly import IDENTITY, assemble_comparison
from longrm.data.fields import (
    FileRow,
    messages_of,
    name_of,
    ranks_by_scores,
    ranks_of,
    required,
    responses_of,
    rising,
    scores_of,
    to_json_types,
)
from longrm.data.open_rubrics import OPEN_RUBRICS_COLUMNS, from_open_rubrics
from longrm.data.row_prompts import KnownPrompt, joined_prompt, prompt_of
from longrm.data.tool_schemas import tools_of
from longrm.reading import FieldError
from longrm.types import Comparison, Demonstration, Message, Response, message_text

_PROMPTS = ("prompt", "prompt_template", "chat_template")
_REJECTED = ("rejected", "rejects", "rejected_responses")
_TURN = re.compile(r"\n\n(Human|Assistant):")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """A format of preference data, with the columns of its rows as error messages name them."""

    columns: str
    recognizes: Callable[[Set[str]], bool]  # whether columns are of this format
    convert: Callable[[FileRow, int], Comparison]  # of a row and its number; raises `FieldError`


def from_trl(row: FileRow, number: int) -> Comparison:
    """TRL's preference rows: messages or plain text; the prompt is given, or what all responses begin with.

    Else it is the texts of `context` and `question`.

    One or many rejected responses; all of them share rank 2.
    """
    field, given = _chosen_and_rejected(row)
    answers = [messages_of(value, name, "assistant") for name, value in given.items()]
    known = _explicit_or_joined(row, answers)
    prompt = known.messages
    if not prompt and all(isinstance(value, str) for value in given.values()):
        prompt, answers = _split_texts(list(given.values()))
    if all(_begins_with(answer, prompt) for answer in answers):
        prompt, answers = split_conversations(answers)
    return assemble_comparison(
        row,
        number,
        used={"chosen", field, known.column, *IDENTITY},
        prompt=prompt,
        responses=[
            messages_of(answer, name, "assistant") for name, answer in zip(given, answers, strict=True)
        ],
        ranks=(1, *[2] * (len(given) - 1)),
        field=field,
        context=known.context,
        question=known.question,
    )


def from_chat_template(row: FileRow, number: int) -> Comparison:
    """LongRM's released rows: a judging prompt under `chat_template`, and judgments chosen or rejected.

    Their column `context` is the critical chunk, which is our evidence: it is surrounded by distractors.
    """
    prompt = messages_of(required(row, "chat_template")[1], "chat_template", "user")
    if row.get("chosen") is None and row.get("golden") is not None:
        raise FieldError(
            "golden", "a demonstration (stage 1), which ranks nothing; read it with read_demonstrations"
        )
    field, given = _chosen_and_rejected(row)
    comparison = assemble_comparison(
        row,
        number,
        used={"chat_template", "chosen", field, *IDENTITY},
        prompt=prompt,
        responses=[messages_of(value, name, "assistant") for name, value in given.items()],
        ranks=(1, *[2] * (len(given) - 1)),
        field=field,
        role="judgment",
    )
    return replace(comparison, context=(), evidence=comparison.context)


def from_candidates(row: FileRow, number: int) -> Comparison:
    """Candidates ranked best first; equal `candidates_score` tie; explicit `ranks` come before both.

    A column `scores` is not looked at: scoring a file writes a model's scores there.
    """
    prompt = prompt_of(row, *_PROMPTS)
    candidates = responses_of(required(row, "candidates")[1], "candidates")
    if row.get("ranks") is not None:
        ranks = ranks_of(row["ranks"], len(candidates), "ranks")
    elif row.get("candidates_score") is not None:
        field = "candidates_score"
        scores = scores_of(row[field], len(candidates), field)
        if rise := rising(scores):
            fault = f"candidates come best first, but the scores rise from {rise[0]} to {rise[1]}"
            raise FieldError(field, fault)
        ranks = ranks_by_scores(scores)
    else:
        ranks = tuple(range(1, len(candidates) + 1))
    return assemble_comparison(
        row,
        number,
        used={prompt.column, "candidates", "ranks", *IDENTITY},
        prompt=prompt.messages,
        responses=candidates,
        ranks=ranks,
        field="candidates",
        context=prompt.context,
        question=prompt.question,
    )


def demonstration_from(row: FileRow, number: int) -> Demonstration:
    """A prompt and its `golden` (or `completion`): stage-1 rows."""
    prompt = prompt_of(row, "chat_template", "prompt")
    field, completion = required(row, "golden", "completion")
    return Demonstration(
        id=name_of(row, "id") if row.get("id") is not None else f"row-{number}",
        prompt=prompt.messages,
        completion=messages_of(completion, field, "assistant"),
        metadata={
            key: to_json_types(value)
            for key, value in row.items()
            if key not in {"id", "tools", prompt.column, field}
        },
        tools=tools_of(row.get("tools")),
    )


FORMATS: dict[str, RowFormat] = {
    "chat_template": RowFormat(
        "chat_template, chosen, rejects",
        lambda columns: "chat_template" in columns and bool(columns & {"chosen", "golden"}),
        from_chat_template,
    ),
    "candidates": RowFormat("prompt, candidates", lambda columns: "candidates" in columns, from_candidates),
    "trl": RowFormat(
        "prompt, chosen, rejected",
        lambda columns: "chosen" in columns and "responses" not in columns,
        from_trl,
    ),
    "open_rubrics": RowFormat(
        "instruction, response_a, response_b, winner",
        lambda columns: columns >= OPEN_RUBRICS_COLUMNS,
        from_open_rubrics,
    ),
    "longrm": RowFormat(
        "prompt, responses, ranks",
        lambda columns: (
            ("prompt" in columns and bool(columns & {"responses", "ranks", "group"}))
            or columns >= {"context", "question", "responses"}
        ),
        native.from_native_row,
    ),
}
"""The formats by name, in the order in which they are tried."""


def recognize(columns: Set[str]) -> str | None:
    """The name of the format that has these columns."""
    return next((name for name, known in FORMATS.items() if known.recognizes(columns)), None)


def describe_formats() -> str:
    """All formats with their columns, for error messages."""
    return "; ".join(f"{name} ({known.columns})" for name, known in FORMATS.items())


def _chosen_and_rejected(row: FileRow) -> tuple[str, dict[str, Any]]:
    """The column of the rejected responses, and all responses under their names, the chosen one first."""
    chosen = required(row, "chosen")[1]
    field, rejected = required(row, *_REJECTED)
    # Several responses are a list, but not the messages of one.
    if not isinstance(rejected, list | tuple) or (rejected and isinstance(rejected[0], Mapping)):
        return field, {"chosen": chosen, field: rejected}
    if not rejected:
        raise FieldError(field, "no response in it; a comparison needs at least 2 responses")
    return field, {"chosen": chosen} | {f"{field}[{index}]": item for index, item in enumerate(rejected)}


def _explicit_or_joined(row: FileRow, answers: Sequence[Response]) -> KnownPrompt:
    """The prompt of a row of TRL's; without messages where it is what all responses begin with."""
    explicit = any(row.get(name) is not None for name in _PROMPTS)
    joined = None if explicit else joined_prompt(row)
    if joined is None:
        return prompt_of(row, *_PROMPTS) if explicit else KnownPrompt("prompt", ())
    spoken = all(len(answer) > 1 and answer[0].get("role") != "assistant" for answer in answers)
    shared = commonprefix([message_text(answer[0]) for answer in answers])  # noqa: RUF071  # they are no paths
    text = message_text(joined.messages[0])
    spans = (*joined.context, joined.question)
    begun = all(text[span.start : span.end] in shared for span in spans if span is not None)
    return KnownPrompt("prompt", ()) if spoken or begun else joined


def _begins_with(answer: Response, prompt: Sequence[Message]) -> bool:
    """Whether a response is a whole conversation, which repeats the prompt."""
    pairs = zip(answer, prompt, strict=False)
    return len(answer) > len(prompt) and all(
        one.get("role") == other.get("role") and message_text(one).strip() == message_text(other).strip()
        for one, other in pairs
    )


def split_conversations(answers: Sequence[Response]) -> tuple[tuple[Message, ...], list[Response]]:
    """Takes off the messages that all conversations begin with; every one keeps its last message.

    Where it can be, what is left begins with a turn of the assistant: no call of a tool stands apart from its result.

    Raises:
        FieldError: They begin with no message alike.
    """
    shortest = min(map(len, answers)) - 1
    shared = 0
    while shared < shortest and all(answer[shared] == answers[0][shared] for answer in answers):
        shared += 1
    roles = [{answer[at].get("role") for answer in answers} for at in range(shared + 1)]
    shared = next((at for at in range(shared, 0, -1) if roles[at] == {"assistant"}), shared)
    if not shared:
        raise FieldError(
            "prompt", "missing, and the responses do not begin with the same message; add the column"
        )
    return tuple(answers[0][:shared]), [answer[shared:] for answer in answers]


def _split_texts(texts: Sequence[str]) -> tuple[tuple[Message, ...], list[Response]]:
    """Takes off what all texts begin with, up to the last turn of a dialog or the last whole word."""
    shared = commonprefix(texts)  # noqa: RUF071  # they are no paths
    turns = [turn for turn in _TURN.finditer(shared) if turn[1] == "Assistant"]
    if turns:
        prompt, end = _dialog(shared[: turns[-1].start()]), turns[-1].end()
    else:
        end = max(shared.rfind(space) for space in " \n") + 1
        prompt = ({"role": "user", "content": shared[:end].rstrip()},)
    if not any(str(message["content"]).strip() for message in prompt):
        raise FieldError(
            "prompt", "missing, and the responses do not begin with the same text; add the column"
        )
    return prompt, [({"role": "assistant", "content": text[end:].strip()},) for text in texts]


def _dialog(text: str) -> tuple[Message, ...]:
    """`Human:` and `Assistant:` turns as messages."""
    start, *parts = _TURN.split(text)
    opening = [{"role": "system", "content": start.strip()}] if start.strip() else []
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = zip(parts[::2], parts[1::2], strict=True)
    return (*opening, *({"role": roles[name], "content": content.strip()} for name, content in turns))
