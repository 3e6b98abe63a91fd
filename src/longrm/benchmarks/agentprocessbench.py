"""AgentProcessBench (arXiv 2603.14465): trajectories of agents with tools, with a label for every step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longrm.benchmarks.benchmark import BenchmarkRequest, FindingCounter, LoadedBenchmark, trajectories_of
from longrm.data.fields import FileRow, messages_of, name_of, required, tools_of
from longrm.data.files import origin_of, raw_rows
from longrm.data.trajectories import labels_at, split_steps
from longrm.errors import DataError
from longrm.reading import reading
from longrm.types import Message, Trajectory

LABELS = "_final.jsonl"
FINDINGS = {
    "without_text": "trajectories whose text is not in the folder: only recorded labels are evaluated on them",
    "unlabeled_steps": "steps without a label",
}


def load_agentprocessbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The labels in `SET_final.jsonl`, with the texts in `SET.jsonl` where that file is there, too.

    Ids are those of the labels, such as `searchR1_hotpotqa:0:3`; the task is the set, and a group has all samples of
    one question. `success` is whether the last label of a trajectory, `final_label`, is 1.
    """
    folder = Path(request.path)
    files = sorted(folder.glob(f"*{LABELS}")) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: no file *{LABELS}; name the folder that has them")

    def read(findings: FindingCounter) -> Iterator[Trajectory]:
        for file in files:
            texts = _texts(file.with_name(file.name.removesuffix(LABELS) + ".jsonl"))
            for raw in raw_rows([file]):
                with reading(raw.place, DataError):
                    yield _trajectory(raw.checked(), texts, findings)

    return trajectories_of(request, read, FINDINGS, origin_of(files))


def _texts(file: Path) -> dict[str, FileRow]:
    """The rows of a set by the id that the labels have."""
    found: dict[str, FileRow] = {}
    for raw in raw_rows([file]) if file.is_file() else ():
        row = raw.checked()
        name = ":".join(
            str(required(row, part)[1]) for part in ("data_source", "query_index", "sample_index")
        )
        found[name] = row
    return found


def _trajectory(row: FileRow, texts: Mapping[str, FileRow], findings: FindingCounter) -> Trajectory:
    name, given = name_of(row, "record_id"), required(row, "step_labels")[1]
    text = texts.get(name)
    if text is None:
        findings.note("without_text", name)
        prompt, steps, numbers = _placeholders(given)
    else:
        messages = messages_of(required(text, "messages")[1], "messages", "user")
        prompt, steps, numbers = split_steps(messages, "messages")
    labels = labels_at(given, numbers, "step_labels")
    for number, label in zip(numbers, labels, strict=True):
        if label is None:
            findings.note("unlabeled_steps", f"{name}, message {number}")
    return Trajectory(
        id=name,
        group=name.rpartition(":")[0],
        prompt=prompt,
        steps=steps,
        labels=labels,
        success=required(row, "final_label")[1] == 1,
        tools=tools_of((text or {}).get("tools")),
        metadata={
            "task": str(row.get("dataset", "")),
            "source": "agentprocessbench",
            "has_text": text is not None,
        },
    )


def _placeholders(
    labels: Mapping[str, Any],
) -> tuple[tuple[Message, ...], tuple[tuple[Message, ...], ...], tuple[int, ...]]:
    """Empty messages with the numbers of those that have labels."""
    numbers = sorted(map(int, labels))
    messages = [
        {"role": "assistant" if at in numbers else "user", "content": ""} for at in range(numbers[-1] + 1)
    ]
    return split_steps(messages, "step_labels")
