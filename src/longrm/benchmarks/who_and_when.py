"""Who&When (arXiv 2505.00212): failed logs of several agents, with the step and the agent of the decisive mistake."""

from collections.abc import Iterator
from pathlib import Path

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    FindingCounter,
    LoadedBenchmark,
    json_files,
    trajectories_of,
)
from longrm.data.fields import FileRow, required
from longrm.data.files import origin_of
from longrm.data.trajectories import labels_until
from longrm.errors import DataError
from longrm.reading import FieldError, read_json, reading, short
from longrm.types import Trajectory

FINDINGS = {"other_agent": "logs in which another agent than the named one wrote the decisive step"}


def load_who_and_when(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every log as one trajectory `FOLDER/FILE`, after its question alone; the task is the folder.

    All entries of `history` are steps, of any agent, except for the person's at its beginning; each begins with the
    name of its agent. The steps before the decisive mistake count as right, and those after it have no label.
    """
    path = Path(request.path)
    folders = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    files = [file for folder in folders or [path] for file in json_files(folder, "*.json")]

    def read(findings: FindingCounter) -> Iterator[Trajectory]:
        for file in files:  # each has one log, on several lines
            with reading(file, DataError):
                yield _trajectory(read_json(file, DataError), file, findings)

    return trajectories_of(request, read, FINDINGS, origin_of(files))


def _trajectory(row: FileRow, file: Path, findings: FindingCounter) -> Trajectory:
    history = required(row, "history")[1]
    if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
        raise FieldError("history", f"must be a list of messages, got {short(history)}")
    agents = [str(one.get("name") or one.get("role", "")).partition(" (")[0] for one in history]
    first = 1 if agents and agents[0] == "human" else 0
    given, agent = required(row, "mistake_step")[1], str(required(row, "mistake_agent")[1])
    step = int(given) - first if str(given).isdigit() else -1
    if not 0 <= step < len(history) - first:
        raise FieldError("mistake_step", f"must be the number of an entry of history, got {short(given)}")
    name = f"{file.parent.name}/{file.stem}"
    if agents[first + step] != agent:
        findings.note("other_agent", name)
    texts = [f"{who}: {one.get('content') or ''}" for who, one in zip(agents, history, strict=True)][first:]
    return Trajectory(
        id=name,
        group=str(row.get("question_ID", name)),
        prompt=({"role": "user", "content": str(required(row, "question")[1])},),
        steps=tuple(({"role": "assistant", "content": text},) for text in texts),
        labels=labels_until(step, len(texts)),
        metadata={
            "task": file.parent.name,
            "source": "who-and-when",
            "agents": agents[first:],
            "wrong_agent": agent,
        },
    )
