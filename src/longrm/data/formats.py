"""The formats of preference data: how each is recognized by its columns, and how its rows become comparisons.

`to_native_row` and `from_native_row` write and read longrm's own rows, without loss.
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from os.path import commonprefix
from statistics import mean
from typing import Any, Literal, NamedTuple

from longrm.column_names import renamed
from longrm.data.criteria import COLUMNS, rubrics_of
from longrm.data.fields import (
    GROUPS,
    QUESTIONS,
    FileRow,
    find_context,
    find_question,
    find_text,
    found_in,
    gold_ranks,
    group_of,
    label_of,
    messages_of,
    name_of,
    number_in,
    ranks_by_scores,
    ranks_by_strength,
    ranks_by_value,
    ranks_by_winner,
    ranks_of,
    required,
    responses_of,
    rising,
    score_of,
    scores_of,
    to_json_types,
    tools_of,
)
from longrm.reading import FieldError, cut, is_number, parse_json, short
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
JUDGE_PROMPT = frozenset({"prompt", "gold", "order", "format"})
"""The columns of a row of `longrm synthesize judge-prompts`, which has no responses."""
_TURN = re.compile(r"\n\n(Human|Assistant):")
_NUMBERED = re.compile(r"\d+|(?<![a-zA-Z])[a-hA-H](?![a-zA-Z])|(?<=[a-z])[A-H]$")
_HELPSTEER_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")


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
    group = group_of(row, prompt.messages, context, question)
    messages = _after_system(row, prompt.messages)
    shift = len(messages) - len(prompt.messages)
    context, evidence = (
        tuple(replace(span, message=span.message + shift) for span in spans) for spans in (context, evidence)
    )
    known = used | _KNOWN | ({"system"} if shift else set())
    extra = {key: to_json_types(value) for key, value in row.items() if key not in known}
    return Comparison(
        id=f"row-{number}" if own_id is None else own_id,
        group=group,
        prompt=messages,
        responses=tuple(responses),
        ranks=ranks,
        metadata=extra | to_json_types(metadata),
        context=context,
        question=question and replace(question, message=question.message + shift),
        evidence=evidence,
        role=role,
        tools=tools_of(row.get("tools")),
        rubrics=rubrics_of(row),
    )


def _after_system(row: FileRow, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the text of a column `system`, unless they begin with a system message."""
    text = row.get("system")
    if not isinstance(text, str) or not text.strip() or messages[0].get("role") == "system":
        return messages
    return ({"role": "system", "content": text}, *messages)


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
            "prompt",
            "missing, and the responses do not begin with the same message; use --columns prompt=NAME",
        )
    return tuple(answers[0][:shared]), [answer[shared:] for answer in answers]


def _split_texts(texts: Sequence[str]) -> tuple[tuple[Message, ...], list[Response]]:
    """Splits off what all texts begin with, up to the last turn of a dialog or the last whole word."""
    shared = commonprefix(texts)  # noqa: RUF071  # not paths
    turns = [turn for turn in _TURN.finditer(shared) if turn[1] == "Assistant"]
    prompt: tuple[Message, ...]
    if turns:
        prompt = _dialog(shared[: turns[-1].start()], _TURN, "system")
        end = turns[-1].end()
    else:
        end = max(shared.rfind(space) for space in " \n") + 1
        prompt = ({"role": "user", "content": shared[:end].rstrip()},)
    if not any(str(message["content"]).strip() for message in prompt):
        raise FieldError(
            "prompt",
            "missing, and the responses do not begin with the same text; use --columns prompt=NAME",
        )
    return prompt, [({"role": "assistant", "content": text[end:].strip()},) for text in texts]


def _dialog(text: str, turn: re.Pattern[str], first: str) -> tuple[Message, ...]:
    """The messages of a text with turns such as "Human:" and "Assistant:"; `first` is the role of the text before."""
    start, *parts = turn.split(text)
    roles = {"Human": "user", "User": "user", "Assistant": "assistant"}
    named = [
        (first, start),
        *((roles[name], part) for name, part in zip(parts[::2], parts[1::2], strict=True)),
    ]
    return tuple({"role": role, "content": part.strip()} for role, part in named[not start.strip() :])


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


# --- Layouts of published data sets ---


def _published(
    row: FileRow,
    number: int,
    prompt: _Prompt,
    responses: Sequence[Response],
    ranks: tuple[int, ...] | None,
    *columns: str,
) -> Comparison:
    """A comparison of responses that are in these columns."""
    used = {prompt.column, *columns, *_IDENTITY}
    return _comparison(row, number, prompt, responses, ranks, used=used, field=columns[-1])


def _answers(row: FileRow, *columns: str) -> list[Response]:
    return [messages_of(required(row, name)[1], name, "assistant") for name in columns]


def _from_open_rubrics(row: FileRow, number: int) -> Comparison:
    """OpenRubrics (arXiv 2510.07743): two responses, the `winner` ("A" or "Response A"), and a rubric as text."""
    names = ("response_a", "response_b")
    ranks = ranks_by_winner(required(row, "winner")[1], 2, "winner")
    prompt = _prompt_of(row, "instruction")
    return _published(row, number, prompt, _answers(row, *names), ranks, "winner", *names)


def _from_sharegpt(row: FileRow, number: int) -> Comparison:
    """LLaMA-Factory's ranking data: turns with `from` and `value`; `chosen` and `rejected` are one turn each."""
    return _from_trl(row, number, ("conversations",))


def _from_orca(row: FileRow, number: int) -> Comparison:
    """Orca DPO pairs: `system`, `question` (Intel) or `input` (argilla), `chosen` and `rejected`."""
    name, given = required(row, "question", "input")
    return _from_trl(renamed({**row, name: messages_of(given, name, "user")}, {"prompt": name}), number)


def _from_arena(row: FileRow, number: int) -> Comparison:
    """LMArena: two conversations and the `winner`, such as "model_a", "tie" or "both_bad", which is a tie, too."""
    names = ("conversation_a", "conversation_b")
    given = [messages_of(_parsed(required(row, name)[1], name), name, "user") for name in names]
    # Without other fields, such as counts of tokens, by which equal turns would differ.
    turns = [tuple({"role": one["role"], "content": message_text(one)} for one in own) for own in given]
    messages, responses = split_conversations(turns)
    ranks = None if row.get("winner") is None else ranks_by_winner(row["winner"], 2, "winner")
    return _published(row, number, _Prompt(names[0], messages), responses, ranks, *names)


def _from_arena_55k(row: FileRow, number: int) -> Comparison:
    """Kaggle's LMSYS data: JSON lists with the text of every turn, and three columns of which one is 1."""
    names = ("prompt", "response_a", "response_b")
    prompts, *answers = [_parsed(required(row, name)[1], name) for name in names]
    for name, texts in zip(names, (prompts, *answers), strict=True):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise FieldError(name, f"must be a JSON list of texts, got {short(texts)}")
        if len(texts) != len(prompts):
            raise FieldError(name, f"{len(texts)} answers to {len(prompts)} prompts")
    turns = [[text for turn in zip(prompts, own, strict=True) for text in turn] for own in answers]
    roles = ("user", "assistant") * len(prompts)
    messages, responses = split_conversations(
        [
            tuple({"role": role, "content": text} for role, text in zip(roles, own, strict=True))
            for own in turns
        ]
    )
    gold = {"winner_model_a": (1, 2), "winner_model_b": (2, 1), "winner_tie": (1, 1)}
    votes = [number_in(row.get(name)) for name in gold]
    if votes.count(None) < 3 and (votes.count(1), votes.count(0)) != (1, 2):
        raise FieldError("winner_model_a", f"one of {', '.join(gold)} must be 1, the others 0; got {votes}")
    ranks = [*gold.values()][votes.index(1)] if 1 in votes else None
    return _published(row, number, _Prompt(names[0], messages), responses, ranks, *names)


def _from_helpsteer(row: FileRow, number: int) -> Comparison:
    """HelpSteer 2 and 3 (arXiv 2410.01257, 2505.11475): a signed strength, negative if the first response is better."""
    column, given = required(row, "prompt", "context")
    messages = messages_of(given, column, "user")
    if isinstance(given, str):
        messages = _dialog(given, _HELPSTEER_TURN, "user")
    names = [required(row, f"response_{at}", f"response{at}")[0] for at in (1, 2)]
    known = ("preference_strength", "overall_preference")
    ranks = next((ranks_by_strength(row[name], 2, name) for name in known if row.get(name) is not None), None)
    return _published(row, number, _Prompt(column, messages), _answers(row, *names), ranks, *names)


def _from_nectar(row: FileRow, number: int) -> Comparison:
    """Nectar: `answers`, each with its `rank`; the prompt has turns of "Human:" and ends with "Assistant:"."""
    prompt = _prompt_of(row, "prompt")
    if isinstance(given := row["prompt"], str) and _TURN.search(given):
        prompt = prompt._replace(messages=_dialog(re.sub(r"\n\nAssistant:\s*\Z", "", given), _TURN, "system"))
    texts = responses_of(_each(row, "answers", "answer"), "answers")
    ranks = ranks_of(_each(row, "answers", "rank"), len(texts), "answers")
    return _published(row, number, prompt, texts, ranks, "answers")


def _from_ultrafeedback(row: FileRow, number: int) -> Comparison:
    """UltraFeedback (arXiv 2310.01377): `completions`, by their `overall_score` or the mean of their `annotations`."""
    texts = responses_of(_each(row, "completions", "response"), "completions")
    try:
        scores = [one.get("overall_score") for one in row["completions"]]
        if None in scores:  # they have another scale
            ratings = [one["annotations"].values() for one in row["completions"]]
            scores = [mean(number_in(aspect["Rating"]) for aspect in aspects) for aspects in ratings]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FieldError(
            "completions", "each needs an overall_score, or annotations with numeric ratings"
        ) from None
    ranks = ranks_by_value(scores, len(texts), "completions")
    return _published(row, number, _prompt_of(row, "instruction"), texts, ranks, "completions")


def _from_distilabel(row: FileRow, number: int) -> Comparison:
    """Distilabel: `generations` and their `ratings`, higher is better; null if they were not rated."""
    prompt = _prompt_of(row, "instruction", "input", "prompt")
    texts = responses_of(required(row, "generations")[1], "generations")
    name = next((name for name in ("ratings", "rating") if row.get(name) is not None), None)
    ranks = None if name is None else ranks_by_value(row[name], len(texts), name)
    return _published(row, number, prompt, texts, ranks, "generations")


def _parsed(value: Any, field: str) -> Any:
    """The value of a JSON text; any other value as it is."""
    try:
        return parse_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def _each(row: FileRow, field: str, key: str) -> list[Any]:
    """One value of every object in a list."""
    items = required(row, field)[1]
    for at, one in enumerate(items if isinstance(items, list | tuple) else [items]):
        if not isinstance(one, Mapping) or one.get(key) is None:
            raise FieldError(f"{field}[{at}].{key}", f"missing; {found_in(one)}")
    return [one[key] for one in items]


# --- longrm's own rows ---


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
    """The inverse of `to_native_row`; other columns become metadata. See `gold_ranks` for the gold order."""
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
    used = {"id", "tools", "system", prompt.column, field}
    return Demonstration(
        id=name_of(row, "id") if row.get("id") is not None else f"row-{number}",
        prompt=_after_system(row, prompt.messages),
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


# --- Which format it is ---


class RowFormat(NamedTuple):
    """A format of preference data.

    Attributes:
        columns: Its columns, for messages.
        convert: Makes a comparison of a row and the row's number.
        needs: The columns that recognize it; any of several such texts. `a|b` is one of two, `!a` must be missing, and
            `a.b` is a list of objects that have `b`.
    """

    columns: str
    convert: Callable[[FileRow, int], Comparison]
    needs: tuple[str, ...]


FORMATS = {
    "chat_template": RowFormat(
        "chat_template, chosen, rejects", _from_chat_template, ("chat_template chosen|golden",)
    ),
    "candidates": RowFormat("prompt, candidates", _from_candidates, ("candidates",)),
    "sharegpt": RowFormat(
        "conversations, chosen, rejected", _from_sharegpt, ("conversations.from chosen !prompt",)
    ),
    "orca": RowFormat(
        "system, question or input, chosen, rejected",
        _from_orca,
        ("system question|input chosen !prompt !context !responses",),
    ),
    "trl": RowFormat("prompt, chosen, rejected", _from_trl, ("chosen !responses",)),
    "open_rubrics": RowFormat(
        "instruction, response_a, response_b, winner",
        _from_open_rubrics,
        ("instruction response_a response_b winner",),
    ),
    "longrm": RowFormat(
        "prompt, responses, and ranks, scores, winner or strength",
        from_native_row,
        ("prompt responses|ranks|group", "context question responses"),
    ),
    "arena": RowFormat(
        "conversation_a, conversation_b, winner", _from_arena, ("conversation_a conversation_b",)
    ),
    "arena_55k": RowFormat(
        "prompt, response_a, response_b, winner_model_a, winner_model_b, winner_tie",
        _from_arena_55k,
        ("prompt response_a response_b winner_model_a",),
    ),
    "helpsteer": RowFormat(
        "prompt, response_1, response_2, preference_strength",
        _from_helpsteer,
        (
            "prompt response_1 response_2 preference_strength",
            "context response1 response2 overall_preference",
        ),
    ),
    "nectar": RowFormat("prompt, answers with rank", _from_nectar, ("prompt answers.rank",)),
    "ultrafeedback": RowFormat(
        "instruction, completions with overall_score",
        _from_ultrafeedback,
        ("instruction completions.response",),
    ),
    "distilabel": RowFormat(
        "instruction, generations, ratings",
        _from_distilabel,
        ("instruction|input|prompt generations ratings|rating",),
    ),
}
"""The formats by name; a row has the first one whose columns it has."""

ANY_ORDER = FORMATS.keys() - {"chat_template", "candidates", "sharegpt", "orca", "trl"}
"""Those whose first response is not the best one by rule."""


def recognize(row: FileRow) -> str | None:
    """The name of the format of a row; None if it is not a comparison."""

    def has(need: str) -> bool:
        if need.startswith("!"):
            return need[1:] not in row
        name, _, key = need.partition(".")
        value = row.get(name)
        return name in row and (
            not key
            or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and key in value[0])
        )

    for name, known in FORMATS.items():
        if any(all(any(map(has, need.split("|"))) for need in needs.split()) for needs in known.needs):
            # A judge prompt has a prompt and a group, but no responses.
            return (
                None if name == "longrm" and row.keys() >= JUDGE_PROMPT and "responses" not in row else name
            )
    return None


def describe_formats() -> str:
    """All formats with their columns, for error messages."""
    return "; ".join(f"{name} ({known.columns})" for name, known in FORMATS.items())


def describe_unknown(row: FileRow) -> str:
    """Why a row has no known format: its columns, the format that is nearest, and how to name the columns."""

    def similarity(name: str) -> float:
        wanted = re.findall(r"\w{4,}", FORMATS[name].columns)
        return sum(max(SequenceMatcher(None, one, own).ratio() for own in row) for one in wanted) / len(
            wanted
        )

    nearest = max(FORMATS, key=similarity) if row else "trl"
    return (
        f"the columns ({cut(', '.join(row))}) match no known format; the nearest is '{nearest}' "
        f"({FORMATS[nearest].columns}); name yours, as in --columns {_example(row)} (in Python: columns=...)"
    )


def _example(row: FileRow) -> str:
    """A value of `--columns` for a row of unknown format, by the names and types of its columns, for users to check."""

    def guess(words: str, names: Sequence[str], default: str) -> str:
        return next((name for name in names if re.search(words, name, re.IGNORECASE)), default)

    def alike(names: Sequence[str]) -> list[str]:
        """The first columns whose names differ only in a number or a letter."""
        stems = [_NUMBERED.sub("#", name) for name in names]
        groups = [[one for one, of in zip(names, stems, strict=True) if of == stem] for stem in stems]
        return next((group for group in groups if len(group) > 1), [])

    texts = [name for name, value in row.items() if isinstance(value, str) and name not in _IDENTITY]
    numbers = [name for name, value in row.items() if is_number(value)]
    lists = [name for name, value in row.items() if isinstance(value, list) and len(value) > 1]
    said = [
        name for name in texts if not re.search(r"(^|_)id(_|$)|worker|source|domain", name, re.IGNORECASE)
    ]
    words = "prompt|question|query|instruction|input|problem|history|context"
    prompt = "prompt" if row.get("prompt") else guess(words, said, (*said, "PROMPT")[0])
    rest = [name for name in said if name != prompt]
    responses = alike(rest) or [name for name in lists if isinstance(row[name][0], str)][:1]
    if "response" in row:
        return f"prompt={prompt},chosen=GOOD,rejected=BAD (this file has one response a row; join those of a prompt)"
    if not responses:
        chosen, rejected = (
            guess("chosen|good|best|prefer", rest, "GOOD"),
            guess("rej|bad|worse|lose", rest, "BAD"),
        )
        return f"prompt={prompt},chosen={chosen},rejected={rejected}"
    count = len(responses) if len(responses) > 1 else len(row[responses[0]])
    scored = [name for name in lists if is_number(row[name][0]) and len(row[name]) == count]
    scores = alike(numbers) or scored[:1]
    others = [name for name in (*rest, *numbers) if name not in responses]
    strength = guess("strength|margin|diff", numbers, "")
    winner = guess("winner|best|better|prefer|label|choice|vote", others, "WINNER")
    gold = (
        f"scores={'+'.join(scores)}" if scores else f"strength={strength}" if strength else f"winner={winner}"
    )
    return shlex.quote(f"prompt={prompt},responses={'+'.join(responses)},{gold}")
