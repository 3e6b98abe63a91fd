"""The formats of preference data: how each is recognized by its columns, and how its rows become comparisons.

`to_native_row` and `from_native_row` write and read longrm's own rows, without loss.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, replace
from os.path import commonprefix
from typing import Any, Literal, NamedTuple

from longrm.data.criteria import COLUMNS, rubrics_of
from longrm.data.fields import (
    GROUPS,
    QUESTIONS,
    FileRow,
    find_context,
    find_question,
    find_text,
    gold_ranks,
    group_of,
    label_of,
    messages_of,
    name_of,
    ranks_by_scores,
    ranks_of,
    required,
    responses_of,
    rising,
    score_of,
    scores_of,
    to_json_types,
    tools_of,
)
from longrm.reading import FieldError, short
from longrm.types import Comparison, Demonstration, Message, Response, Span, message_text

_IDS = ("id", "uuid")
# Columns of all formats that become fields of the comparison, and not metadata.
_KNOWN = frozenset({"id", "group", "metadata", "tools", *COLUMNS})
# The same for columns that name a row, or what it shares with others. In longrm's own rows they are metadata.
_IDENTITY = frozenset({*_IDS, *GROUPS})
_PROMPTS = ("prompt", "prompt_template", "chat_template")
_OTHER_PROMPTS = (*QUESTIONS, "instruction", "input")
_REJECTED = ("rejected", "rejects", "rejected_responses")
_NATIVE = frozenset({"prompt", "responses", "ranks", "context", "question", "evidence", "role"})
_OPEN_RUBRICS = frozenset({"instruction", "response_a", "response_b", "winner"})
JUDGE_PROMPT = frozenset({"prompt", "gold", "order", "format"})
"""The columns of a row of `longrm synthesize judge-prompts`, which has no responses."""
_TURN = re.compile(r"\n\n(Human|Assistant):")
_WINNER = re.compile(r"\s*(?:response[\s_]*)?([ab])\s*", re.IGNORECASE)


class _Prompt(NamedTuple):
    """A prompt, the column that it is from, and the places of context and question in it, if known."""

    column: str
    messages: tuple[Message, ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None


def _comparison(
    row: FileRow,
    number: int,
    prompt: _Prompt,
    responses: Sequence[Response],
    ranks: tuple[int, ...] | None,
    *,
    used: Set[str],
    field: str,
    role: Literal["response", "judgment"] = "response",
    evidence: tuple[Span, ...] = (),
) -> Comparison:
    """Adds the fields that all formats may have.

    Columns that are neither `used` nor known to all formats become metadata. Context and question that the prompt does
    not name are found in it as the texts of the columns `context` and `question` or `query`. An error about identical
    responses names the column `field`.
    """
    if ranks is not None:
        for index, response in enumerate(responses):
            for other in range(index):
                if ranks[index] != ranks[other] and response == responses[other]:
                    raise FieldError(
                        field, f"responses {other + 1} and {index + 1} are identical but ranked differently"
                    )
    context = prompt.context or find_context(row, prompt.messages)
    question = prompt.question or find_question(row, prompt.messages)
    metadata = row.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    for holder in (row, metadata):
        # In metadata NaN would become null, which training takes for unknown.
        for name in ("margin", "probability"):
            if isinstance(holder.get(name), float) and not math.isfinite(holder[name]):
                raise FieldError(name, f"must be a finite number, or null if unknown; got {holder[name]}")
    own_id = next((name_of(row, name) for name in _IDS if row.get(name) is not None), None)
    extra = {key: to_json_types(value) for key, value in row.items() if key not in used | _KNOWN}
    return Comparison(
        id=f"row-{number}" if own_id is None else own_id,
        group=group_of(row, prompt.messages, context, question),
        prompt=prompt.messages,
        responses=tuple(responses),
        ranks=ranks,
        metadata=extra | to_json_types(metadata),
        context=context,
        question=question,
        evidence=evidence,
        role=role,
        tools=tools_of(row.get("tools")),
        rubrics=rubrics_of(row),
    )


def _prompt_of(row: FileRow, *names: str) -> _Prompt:
    """The prompt in one of these columns; otherwise context, blank line and question."""
    if all(row.get(name) is None for name in names):
        joined = _joined_prompt(row)
        if joined is not None:
            return joined
    name, given = required(row, *names)
    return _Prompt(name, messages_of(given, name, "user"))


def _joined_prompt(row: FileRow) -> _Prompt | None:
    """The texts of the columns `context` and `question` or `query` as one prompt; None if one is missing."""
    context = row.get("context")
    question = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    if not isinstance(context, str) or not context.strip() or not question.strip():
        return None
    text = f"{context}\n\n{question}"
    context_span, question_span = Span(0, 0, len(context)), Span(0, len(text) - len(question), len(text))
    return _Prompt("prompt", ({"role": "user", "content": text},), (context_span,), question_span)


def _from_trl(row: FileRow, number: int, prompts: Sequence[str] = _PROMPTS) -> Comparison:
    """One chosen response, and one or several rejected ones, which all have rank 2.

    Without a column of the prompt it is what all responses begin with, or the texts of `context` and `question`.
    """
    chosen = required(row, "chosen")[1]
    field, rejected = required(row, *_REJECTED)
    given = {"chosen": chosen, field: rejected}
    # A list is several responses, unless it is the messages of one.
    if isinstance(rejected, list | tuple) and not (rejected and isinstance(rejected[0], Mapping)):
        if not rejected:
            raise FieldError(field, "no response; a comparison needs at least 2 responses")
        given = {"chosen": chosen} | {f"{field}[{index}]": item for index, item in enumerate(rejected)}
    answers = [messages_of(value, name, "assistant") for name, value in given.items()]
    prompt = _trl_prompt(row, answers, prompts)
    if not prompt.messages and all(isinstance(value, str) for value in given.values()):
        messages, answers = _split_texts(list(given.values()))
        # A prompt under another name must not be dropped: the responses' shared first words would replace it.
        for name in _OTHER_PROMPTS:
            text = row.get(name)
            if isinstance(text, str) and find_text(text.strip(), messages) is None:
                raise FieldError(
                    "prompt",
                    f"missing, and the responses do not repeat '{name}'; use --columns prompt={name}",
                )
        prompt = prompt._replace(messages=messages)
    if all(_begins_with(answer, prompt.messages) for answer in answers):
        messages, answers = split_conversations(answers)
        prompt = prompt._replace(messages=messages)
    # Checked again: a text may have nothing behind the shared beginning.
    responses = [messages_of(answer, name, "assistant") for name, answer in zip(given, answers, strict=True)]
    used = {"chosen", field, prompt.column, *_IDENTITY}
    return _comparison(row, number, prompt, responses, (1, *[2] * (len(given) - 1)), used=used, field=field)


def _trl_prompt(row: FileRow, answers: Sequence[Response], prompts: Sequence[str]) -> _Prompt:
    """The prompt of one of TRL's rows; without messages if it is what all responses begin with."""
    if any(row.get(name) is not None for name in prompts):
        return _prompt_of(row, *prompts)
    joined = _joined_prompt(row)
    if joined is None:
        return _Prompt("prompt", ())
    conversations = all(len(answer) > 1 and answer[0].get("role") != "assistant" for answer in answers)
    # If the responses begin with context and question, these columns only say where they are.
    shared = commonprefix([message_text(answer[0]) for answer in answers])  # noqa: RUF071  # not paths
    text = message_text(joined.messages[0])
    spans = (*joined.context, joined.question)
    repeated = all(text[span.start : span.end] in shared for span in spans if span is not None)
    return _Prompt("prompt", ()) if conversations or repeated else joined


def _begins_with(answer: Response, prompt: Sequence[Message]) -> bool:
    """Whether a response is a whole conversation, which repeats the prompt."""
    pairs = zip(answer, prompt, strict=False)
    return len(answer) > len(prompt) and all(
        one.get("role") == other.get("role") and message_text(one).strip() == message_text(other).strip()
        for one, other in pairs
    )


def split_conversations(answers: Sequence[Response]) -> tuple[tuple[Message, ...], list[Response]]:
    """Splits off the messages that all conversations begin with; each keeps at least its last message.

    If possible the rest begins with a turn of the assistant, so that no tool call is separated from its result. Raises
    `FieldError` if they do not begin with the same message.
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
    """Splits off what all texts begin with, up to the last turn of a dialog or the last whole word."""
    shared = commonprefix(texts)  # noqa: RUF071  # not paths
    turns = [turn for turn in _TURN.finditer(shared) if turn[1] == "Assistant"]
    prompt: tuple[Message, ...]
    if turns:  # "Human:" and "Assistant:" turns, as in hh-rlhf
        start, *parts = _TURN.split(shared[: turns[-1].start()])
        system = [{"role": "system", "content": start.strip()}] if start.strip() else []
        roles = {"Human": "user", "Assistant": "assistant"}
        pairs = zip(parts[::2], parts[1::2], strict=True)
        prompt = (*system, *({"role": roles[name], "content": text.strip()} for name, text in pairs))
        end = turns[-1].end()
    else:
        end = max(shared.rfind(space) for space in " \n") + 1
        prompt = ({"role": "user", "content": shared[:end].rstrip()},)
    if not any(str(message["content"]).strip() for message in prompt):
        raise FieldError(
            "prompt", "missing, and the responses do not begin with the same text; add the column"
        )
    return prompt, [({"role": "assistant", "content": text[end:].strip()},) for text in texts]


def _from_chat_template(row: FileRow, number: int) -> Comparison:
    """LongRM's released rows: a judging prompt under `chat_template`, and judgments chosen or rejected.

    Their column `context` is the critical chunk, which is our evidence: it is surrounded by distractors.
    """
    if row.get("chosen") is None and row.get("golden") is not None:
        raise FieldError(
            "golden", "a demonstration, which ranks nothing: train on it with the objective 'sft'"
        )
    comparison = _from_trl(row, number, ("chat_template", "prompt"))
    return replace(comparison, role="judgment", context=(), evidence=comparison.context)


def _from_candidates(row: FileRow, number: int) -> Comparison:
    """Candidates ranked best first; equal `candidates_score` tie; explicit `ranks` come before both.

    A column `scores` is ignored: `longrm score` writes a model's scores there.
    """
    prompt = _prompt_of(row, *_PROMPTS)
    candidates = responses_of(required(row, "candidates")[1], "candidates")
    ranks = tuple(range(1, len(candidates) + 1))
    if row.get("ranks") is not None:
        ranks = ranks_of(row["ranks"], len(candidates), "ranks")
    elif row.get("candidates_score") is not None:
        scores = scores_of(row["candidates_score"], len(candidates), "candidates_score")
        if rise := rising(scores):
            problem = f"candidates come best first, but the scores rise from {rise[0]} to {rise[1]}"
            raise FieldError("candidates_score", problem)
        ranks = ranks_by_scores(scores)
    used = {prompt.column, "candidates", "ranks", *_IDENTITY}
    return _comparison(row, number, prompt, candidates, ranks, used=used, field="candidates")


def _from_open_rubrics(row: FileRow, number: int) -> Comparison:
    """OpenRubrics (arXiv 2510.07743): two responses, the `winner` ("A" or "Response A"), and a rubric as text."""
    winner = required(row, "winner")[1]
    found = _WINNER.fullmatch(winner) if isinstance(winner, str) else None
    if found is None:
        raise FieldError("winner", f"must be 'A' or 'B', got {short(winner)}")
    prompt = _prompt_of(row, "instruction")
    names = ("response_a", "response_b")
    responses = [messages_of(required(row, name)[1], name, "assistant") for name in names]
    ranks = (1, 2) if found[1].lower() == "a" else (2, 1)
    used = _OPEN_RUBRICS | _IDENTITY
    return _comparison(row, number, prompt, responses, ranks, used=used, field="response_b")


def to_native_row(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a plain dict, without the fields at their defaults."""
    optional = {
        "ranks": None if comparison.ranks is None else list(comparison.ranks),
        "metadata": dict(comparison.metadata),
        "context": [asdict(span) for span in comparison.context],
        "question": comparison.question and asdict(comparison.question),
        "evidence": [asdict(span) for span in comparison.evidence],
        "tools": [dict(tool) for tool in comparison.tools],
        "rubrics": [{"criterion": one.text, "weight": one.weight} for one in comparison.rubrics],
        "role": comparison.role if comparison.role != "response" else None,
    }
    return {
        "id": comparison.id,
        "group": comparison.group,
        "prompt": [dict(message) for message in comparison.prompt],
        "responses": [[dict(message) for message in response] for response in comparison.responses],
        **{key: value for key, value in optional.items() if value not in (None, {}, [])},
    }


def from_native_row(row: FileRow, number: int) -> Comparison:
    """The inverse of `to_native_row`; other columns become metadata. Without `ranks`, `scores` are the gold order."""
    prompt = _prompt_of(row, "prompt")
    responses = responses_of(required(row, "responses")[1], "responses")
    if not isinstance(row.get("metadata") or {}, Mapping):
        raise FieldError("metadata", "must be an object")
    role: Any = row.get("role") or "response"
    if role not in ("response", "judgment"):
        raise FieldError("role", f"must be 'response' or 'judgment', got {role!r}")
    prompt = prompt._replace(
        context=prompt.context or _spans(row, "context", prompt.messages),
        question=prompt.question or next(iter(_spans(row, "question", prompt.messages)), None),
    )
    ranks = gold_ranks(row, len(responses))
    evidence = _spans(row, "evidence", prompt.messages)
    return _comparison(
        row, number, prompt, responses, ranks, used=_NATIVE, field="responses", role=role, evidence=evidence
    )


def _spans(row: FileRow, field: str, prompt: Sequence[Message]) -> tuple[Span, ...]:
    """The spans in a column; none if it is a text, which is searched in the prompt instead."""
    value = row.get(field)
    if value is None or isinstance(value, str):
        return ()
    spans = []
    for item in [value] if isinstance(value, Mapping) else value:
        numbers: list[Any] = (
            [item.get(key) for key in ("message", "start", "end")] if isinstance(item, Mapping) else []
        )
        if not numbers or not all(type(number) is int for number in numbers):
            raise FieldError(field, f"must be spans such as {asdict(Span(0, 0, 9))}, got {short(item)}")
        message, start, end = numbers
        if not 0 <= message < len(prompt):
            raise FieldError(field, f"names message {message}, but the prompt has {len(prompt)}")
        text = message_text(prompt[message])
        if not 0 <= start <= end <= len(text):
            raise FieldError(field, f"characters {start} to {end} are not within the message's {len(text)}")
        if not text[start:end].strip():
            raise FieldError(field, "the span is empty")
        spans.append(Span(message, start, end))
    return tuple(spans)


def demonstration_from(row: FileRow, number: int) -> Demonstration:
    """A prompt and its `golden` (or `completion`): rows to imitate."""
    prompt = _prompt_of(row, "chat_template", "prompt")
    field, completion = required(row, "golden", "completion")
    used = {"id", "tools", prompt.column, field}
    return Demonstration(
        id=name_of(row, "id") if row.get("id") is not None else f"row-{number}",
        prompt=prompt.messages,
        completion=messages_of(completion, field, "assistant"),
        metadata={key: to_json_types(value) for key, value in row.items() if key not in used},
        tools=tools_of(row.get("tools")),
        label=label_of(row),
        score=score_of(row),
    )


def judge_prompt_from(row: FileRow, number: int) -> Demonstration:
    """A prompt of `longrm synthesize judge-prompts`, whose completions are sampled; the other columns reward them."""
    prompt = _prompt_of(row, "prompt")
    for name in ("gold", "order", "id", "format"):
        required(row, name)
    columns = {key: to_json_types(value) for key, value in row.items() if key != prompt.column}
    order = columns["order"]
    if not isinstance(order, list) or not order or not all(type(index) is int for index in order):
        raise FieldError("order", f"must be a list of whole numbers, got {short(order)}")
    # A comparison has a prompt for each order and format. Rollouts are seeded by this id, so pairwise prompts keep that
    # of earlier versions.
    form = "" if columns["format"] == "pairwise" else f"{columns['format']}-"
    return Demonstration(
        id=f"{name_of(row, 'id')}#{form}{'-'.join(map(str, order))}",
        prompt=prompt.messages,
        completion=(),
        metadata=columns,
    )


class RowFormat(NamedTuple):
    """A format of preference data: its columns, for messages, and its function of a row and the row's number."""

    columns: str
    convert: Callable[[FileRow, int], Comparison]


FORMATS = {
    "chat_template": RowFormat("chat_template, chosen, rejects", _from_chat_template),
    "candidates": RowFormat("prompt, candidates", _from_candidates),
    "trl": RowFormat("prompt, chosen, rejected", _from_trl),
    "open_rubrics": RowFormat("instruction, response_a, response_b, winner", _from_open_rubrics),
    "longrm": RowFormat("prompt, responses, ranks or scores", from_native_row),
}
"""The formats by name."""


def recognize(columns: Set[str]) -> str | None:
    """The name of the format with these columns; None if they are not a comparison."""
    if "chat_template" in columns and columns & {"chosen", "golden"}:
        return "chat_template"
    if "candidates" in columns:
        return "candidates"
    if "chosen" in columns and "responses" not in columns:
        return "trl"
    if columns >= _OPEN_RUBRICS:
        return "open_rubrics"
    if columns >= JUDGE_PROMPT and "responses" not in columns:
        return None
    if "prompt" in columns and columns & {"responses", "ranks", "group"}:
        return "longrm"
    return "longrm" if columns >= {"context", "question", "responses"} else None


def describe_formats() -> str:
    """All formats with their columns, for error messages."""
    return "; ".join(f"{name} ({known.columns})" for name, known in FORMATS.items())
