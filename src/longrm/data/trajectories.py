"""Trajectories with labels of their steps: rows in the layouts that are in use become `Trajectory`.

| columns | layout |
|---|---|
| `messages`, and `step_labels`, `labels` or `success` | a conversation with tool calls; as AgentProcessBench has it |
| `prompt`, `completions`, `labels` | TRL's stepwise supervision: texts of steps, each right or wrong |
| `problem`, `steps`, `label` | ProcessBench: the number of the first wrong step from 0, or -1 |
| `question`, `label` with `steps` | PRM800K: ratings 1, 0 and -1 |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longrm.column_names import Columns, check_columns
from longrm.data.fields import (
    GROUPS,
    FileRow,
    group_of,
    messages_of,
    name_of,
    required,
    to_json_types,
    tools_of,
)
from longrm.data.files import RawRow, find_files, raw_rows
from longrm.data.formats import recognize
from longrm.data.memory import Data, named
from longrm.data.readers import OnBadRow, RowReader, convert_row
from longrm.reading import FieldError, is_number, parse_json, short
from longrm.types import Message, Trajectory

_USED = frozenset(
    {
        *("id", "metadata", "messages", "prompt", "completions", "labels", "step_labels", "tools", "success"),
        *("problem", "steps", "label", "question", *GROUPS),
    }
)
_IDS = ("id", "record_id", "uuid")
_OUTCOMES = ("success", "final_answer_correct", "resolved")
"""The columns that may say whether a trajectory reached its goal; the first one that a row fills counts."""


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """One trajectory of a file, and its place (file and row) for messages."""

    number: int  # counts from 1 over all files
    place: str
    trajectory: Trajectory


TrajectoryReader = RowReader[TrajectoryRow]


def has_steps(row: FileRow) -> bool:
    """Whether the columns are those of a trajectory rather than of a comparison."""
    return _converter(row) is not None or (row.get("messages") is not None and recognize(row) is None)


def read_trajectories(
    data: Data, *, on_bad_row: OnBadRow = "stop", columns: Columns | None = None
) -> TrajectoryReader:
    """Opens rows of trajectories in any layout of this module.

    Args:
        data: A file, a folder or rows in memory, as for `longrm.data.read`.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `skipped`.
        columns: Names of columns in the data, by the names of the layout.

    Raises:
        ConfigError: `columns` has a name that is not read.
        DataError: There is nothing to read, or (while iterating) a row cannot be read.
    """
    path, columns = named(data), check_columns(columns or {})

    def convert(raw: RawRow, places: dict[str, str]) -> TrajectoryRow:
        return TrajectoryRow(raw.number, raw.place, convert_row(raw, trajectory_of, places))

    return TrajectoryReader(path, find_files(Path(str(path))), "trajectories", on_bad_row, columns, convert)


def holds_trajectories(data: Data, columns: Columns) -> bool:
    """Whether the first row that can be read is a trajectory."""
    rows = raw_rows(find_files(Path(str(data))), columns=columns)
    first = next((raw.value for raw in rows if raw.value is not None), None)
    return first is not None and has_steps(first)


def trajectory_of(row: FileRow, number: int) -> Trajectory:
    """The trajectory of a row; `FieldError` names the column that is wrong."""
    convert = _converter(row) or (_from_messages if row.get("messages") is not None else None)
    if convert is None:
        names = ", ".join(row)
        raise FieldError("messages", f"missing: no layout of trajectories has the columns {short(names)}")
    prompt, steps, labels, success = convert(row)
    own = next((name_of(row, name) for name in _IDS if row.get(name) is not None), f"row-{number}")
    if success is None:
        success = _success(row)
    metadata = row.get("metadata")
    extra = {key: to_json_types(value) for key, value in row.items() if key not in _USED}
    return Trajectory(
        id=own,
        group=group_of(row, prompt, (), None),
        prompt=prompt,
        steps=steps,
        labels=labels if any(label is not None for label in labels) else (),
        success=success,
        tools=tools_of(row.get("tools")),
        metadata=extra | (to_json_types(metadata) if isinstance(metadata, Mapping) else {}),
    )


_Parts = tuple[tuple[Message, ...], tuple[tuple[Message, ...], ...], tuple[float | None, ...], bool | None]
"""Prompt, steps, labels and success."""


def _converter(row: FileRow) -> Callable[[FileRow], _Parts] | None:
    filled = {name for name, value in row.items() if value is not None}
    if "messages" in filled and filled & {"step_labels", "labels", *_OUTCOMES}:
        return _from_messages
    if {"prompt", "completions"} <= filled:
        return _from_stepwise
    if {"problem", "steps"} <= filled:
        return _from_processbench
    if "question" in filled and isinstance(row.get("label"), Mapping):
        return _from_prm800k
    return None


def _from_messages(row: FileRow) -> _Parts:
    prompt, steps, numbers = split_steps(messages_of(row["messages"], "messages", "user"), "messages")
    given = row.get("step_labels") if row.get("step_labels") is not None else row.get("labels")
    return prompt, steps, () if given is None else labels_at(given, numbers, "step_labels"), None


def _from_stepwise(row: FileRow) -> _Parts:
    prompt = messages_of(required(row, "prompt")[1], "prompt", "user")
    texts = required(row, "completions")[1]
    steps = _text_steps(texts, "completions")
    labels: tuple[float | None, ...] = ()
    if row.get("labels") is not None:
        given = _of_steps(row["labels"], len(steps), "labels")
        # TRL's labels are true and false, which some files have as 1 and 0.
        labels = tuple(-1.0 if not label and label is not None else label for label in given)
    return prompt, steps, labels, None


def _from_processbench(row: FileRow) -> _Parts:
    prompt = messages_of(row["problem"], "problem", "user")
    steps = _text_steps(row["steps"], "steps")
    first = row.get("label")
    if first is not None and not (
        isinstance(first, int) and not isinstance(first, bool) and -1 <= first < len(steps)
    ):
        raise FieldError("label", f"must be the number of a step from 0, or -1; got {short(first)}")
    return prompt, steps, () if first is None else labels_until(first, len(steps)), None


def _from_prm800k(row: FileRow) -> _Parts:
    question = row["question"]
    problem = question.get("problem") if isinstance(question, Mapping) else question
    texts, labels = [], list[float | None]()
    for number, step in enumerate(required(row["label"], "steps")[1]):
        chosen = step.get("chosen_completion")
        completions = step.get("completions") or []
        # Without a chosen one, a person wrote the step, or the solution ends with the first wrong one.
        one = step.get("human_completion") if chosen is None else completions[chosen]
        if one is None and len(completions) == 1:
            one = completions[0]
        if not isinstance(one, Mapping) or not isinstance(one.get("text"), str):
            if number and not isinstance(one, Mapping):
                break
            raise FieldError(f"label.steps[{number}]", f"has no chosen completion, got {short(step)}")
        texts.append(one["text"])
        labels.append(one.get("rating"))
    found = _of_steps(labels, len(texts), "rating")
    return messages_of(problem, "question", "user"), _text_steps(texts, "label.steps"), found, None


def labels_until(first_wrong: int, steps: int) -> tuple[float | None, ...]:
    """The labels of steps of which only the first wrong one is known, from 0, or -1: those after it are unknown."""
    if first_wrong < 0:
        return (1.0,) * steps
    return (*[1.0] * first_wrong, -1.0, *[None] * (steps - first_wrong - 1))


def split_steps(
    messages: Sequence[Message], field: str, first: int = 0
) -> tuple[tuple[Message, ...], tuple[tuple[Message, ...], ...], tuple[int, ...]]:
    """The prompt of a conversation, its steps, and the number of each step's last message in it, from 0.

    Steps begin at the message `first`, or later. Messages after the last turn of the assistant belong to no step.
    """
    turns = [at for at, message in enumerate(messages) if at >= first and message["role"] == "assistant"]
    if not turns or not turns[0]:
        problem = "no message of the assistant" if not turns else "begins with a message of the assistant"
        raise FieldError(field, problem)
    plain = [*map(template_message, messages)]
    begin = first or turns[0]
    starts = [begin, *(turn + 1 for turn in turns[:-1])]
    steps = tuple(tuple(plain[start : turn + 1]) for start, turn in zip(starts, turns, strict=True))
    return tuple(plain[:begin]), steps, tuple(turns)


def labels_at(given: Any, numbers: Sequence[int], field: str) -> tuple[float | None, ...]:
    """The labels of steps: a list with one for each, or by the number of the step's message."""
    if isinstance(given, str):
        given = parse_json(given)
    if not isinstance(given, Mapping):
        return _of_steps(given, len(numbers), field)
    by_number = {str(number): label for number, label in given.items() if label is not None}
    if unknown := by_number.keys() - {str(number) for number in numbers}:
        place = sorted(unknown, key=lambda name: (len(name), name))[0]
        raise FieldError(f"{field}.{place}", f"message {place} is not of the assistant")
    names = [f"{field}.{number}" for number in numbers]
    return _of_steps([by_number.get(str(number)) for number in numbers], len(numbers), field, names)


def _of_steps(
    given: Any, count: int, field: str, names: Sequence[str] | None = None
) -> tuple[float | None, ...]:
    """Checks one label a step, named by `names` in errors: a number from -1 to 1, true or false, or null."""
    if not isinstance(given, list | tuple) or len(given) != count:
        raise FieldError(field, f"must have one label for each of {count} steps, got {short(given)}")
    labels: list[float | None] = []
    for number, label in enumerate(given):
        if isinstance(label, bool):
            label = 1 if label else -1
        if label is not None and not (is_number(label) and -1 <= label <= 1):
            name = f"{field}[{number}]" if names is None else names[number]
            raise FieldError(name, f"must be 1 (right), 0 or -1 (wrong), got {short(label)}")
        labels.append(None if label is None else float(label))
    return tuple(labels)


def _text_steps(texts: Any, field: str) -> tuple[tuple[Message, ...], ...]:
    if not isinstance(texts, list | tuple) or not texts:
        raise FieldError(field, f"must be a list of steps, got {short(texts)}")
    return tuple((messages_of(text, f"{field}[{at}]", "assistant")) for at, text in enumerate(texts))


def _success(row: FileRow) -> bool | None:
    for name in _OUTCOMES:
        given = row.get(name)
        if given is None:
            continue
        if isinstance(given, bool) or given in (0, 1):
            return bool(given)
        raise FieldError(name, f"must be true or false, got {short(given)}")
    return None


def to_row(one: Trajectory) -> dict[str, Any]:
    """A row that `trajectory_of` reads as the same trajectory."""
    messages, labels = [*one.prompt], dict[str, float]()
    for number, step in enumerate(one.steps):
        messages += step
        label = one.labels[number] if one.labels else None
        if label is not None:
            labels[str(len(messages) - 1)] = label
    row: dict[str, Any] = {"id": one.id, "group": one.group, "messages": messages, "step_labels": labels}
    row |= {} if one.success is None else {"success": one.success}
    row |= {"tools": list(one.tools)} if one.tools else {}
    return {**row, "metadata": dict(one.metadata)}


def template_message(message: Message) -> Message:
    """The message as chat templates expect it: text for null, and objects for arguments that are JSON."""
    calls = message.get("tool_calls") or ()
    unpacked = [{**call, "function": _function(call.get("function", call))} for call in calls]
    return {**message, "content": message.get("content") or "", **({"tool_calls": unpacked} if calls else {})}


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    try:
        unpacked = parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:  # the agent's own mistake
        unpacked = None
    return {**function, "arguments": unpacked if isinstance(unpacked, Mapping) else arguments}


def each_trajectory(reader: TrajectoryReader) -> Iterator[Trajectory]:
    """The trajectories of a reader."""
    return (row.trajectory for row in reader)
