"""tau-bench (arXiv 2406.12045): trials of tasks by an agent that calls tools and talks to a simulated user."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from longrm.benchmarks.benchmark import (
    UNREADABLE,
    AuditedComparisons,
    Auditor,
    BenchmarkRequest,
    FindingCounter,
    LoadedBenchmark,
    Unrateable,
    bucket,
    json_files,
    measure_with,
    rateable_responses,
    trajectories_of,
)
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required
from longrm.data.files import origin_of, raw_rows
from longrm.data.formats import split_conversations
from longrm.data.trajectories import split_steps, template_message
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, reading, short
from longrm.types import Comparison, Message, Trajectory, text_of

PAIRS = "pairs"
"""The task of pairs; that of all trials of a task together is `best-of-N`."""

FINDINGS = {
    "failed_trials": "trials without a trajectory, because of an error; left out",
    "same_outcome": "tasks without both a success and a failure; left out",
    "longer_successes": "pairs whose success has more messages than the failure",
    "shorter_successes": "pairs whose success has fewer messages than the failure",
    **UNREADABLE,
}

_SUCCESS = 1 - 1e-6  # as in the authors' code


class _Trial(NamedTuple):
    name: str
    success: bool
    messages: tuple[Message, ...]
    place: str


def load_tau_bench(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every success with every failure of a task as a pair `FILE/TASK/TRIAL>TRIAL`, and `FILE/TASK/best-of-N`.

    A success has reward 1. The prompt is what all trials of a task begin with, up to a turn of the assistant: the
    simulated user words the task differently each time, so often only the agent's instructions. Tasks are the groups,
    also over the files of several agents. The length is that of the prompt and its longest trajectory.
    """
    path, source = Path(request.path), request.source
    # The authors publish one .json file per agent and domain.
    files = json_files(path, "*.json")
    measure = measure_with(source.tokenizer)

    stop = source.on_bad_row == "stop"

    def comparisons(auditor: Auditor) -> Iterator[Comparison]:
        for file in files:
            for task, trials in _tasks(file, auditor, stop=stop).items():
                try:
                    with reading(f"{file}, task {task}", DataError):
                        yield from _comparisons(f"{file.stem}/{task}", task, trials, measure, auditor)
                except DataError as error:
                    if stop:
                        raise
                    auditor.note("unreadable_rows", str(error))

    if stop:
        deque(comparisons(Auditor(FINDINGS)), maxlen=0)  # a bad row ends the run before any work is done
    rows = AuditedComparisons(comparisons, FINDINGS, source.limit)
    return LoadedBenchmark(request.name, rows, provenance=origin_of(files), states_length=False)


def load_tau_bench_trajectories(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every trial alone as `FILE/TASK/TRIAL`, with its success and no labels; the trials of a task are a group."""
    files = json_files(Path(request.path), "*.json")
    stop = request.source.on_bad_row == "stop"

    def read(findings: FindingCounter) -> Iterator[Trajectory]:
        for file in files:
            for task, trials in _tasks(file, findings, stop=stop).items():
                for one in trials:
                    prompt, steps, _ = split_steps(one.messages, "traj")
                    group = f"{group_of({}, one.messages[:1], (), None)}/{task}"
                    name = f"{file.stem}/{task}/{one.name}"
                    about = {"task": file.stem, "source": "tau-bench"}
                    yield Trajectory(name, group, prompt, steps, success=one.success, metadata=about)

    kinds = {kind: FINDINGS[kind] for kind in ("failed_trials", *UNREADABLE)}
    return trajectories_of(request, read, kinds, origin_of(files))


def _tasks(file: Path, auditor: FindingCounter, *, stop: bool) -> dict[str, list[_Trial]]:
    """The trials of a file by task."""
    tasks: dict[str, list[_Trial]] = {}
    for raw in raw_rows([file]):
        try:
            with reading(raw.place, DataError):
                row = raw.checked()
                trials = tasks.setdefault(name_of(row, "task_id"), [])
                if row.get("traj") == []:
                    auditor.note("failed_trials", raw.place)
                    continue
                trial = _trial(row, raw.place)
                earlier = next((one.place for one in trials if one.name == trial.name), None)
                if earlier is not None:
                    raise FieldError("trial", f"{short(trial.name)} of this task is also at {earlier}")
                trials.append(trial)
        except DataError as error:
            if stop:
                raise
            auditor.note("unreadable_rows", str(error))
    return tasks


def _trial(row: FileRow, place: str) -> _Trial:
    reward = required(row, "reward")[1]
    if not is_number(reward) or not 0 <= reward <= 1:
        raise FieldError("reward", f"must be a number from 0 to 1, got {short(reward)}")
    messages = messages_of(required(row, "traj")[1], "traj", "assistant")
    if not any(message["role"] == "assistant" for message in messages):
        raise FieldError("traj", "has no assistant message")
    return _Trial(name_of(row, "trial"), reward >= _SUCCESS, tuple(map(template_message, messages)), place)


def _comparisons(
    name: str, task: str, trials: Sequence[_Trial], measure: Callable[[str], int], auditor: Auditor
) -> Iterator[Comparison]:
    """The pairs of a task, and all of its trials together."""
    successes, failures = ([one for one in trials if one.success is kind] for kind in (True, False))
    if not successes or not failures:
        if trials:
            auditor.note("same_outcome", name)
        return
    prompt, _ = split_conversations([one.messages for one in trials])
    # The agent's instructions distinguish the domains, which number their tasks alike.
    group = f"{group_of({}, trials[0].messages[:1], (), None)}/{task}"
    pairs = [(f"{one.name}>{other.name}", (one, other)) for one, other in product(successes, failures)]
    best_of = f"best-of-{len(trials)}"
    several = [(best_of, trials)] if len(trials) > 2 else []  # two trials are their pair
    for kind, members in [*pairs, *several]:
        ranks = tuple(1 if one.success else 2 for one in members)
        given = {one.name: one.messages[len(prompt) :] for one in members}
        try:
            responses = rateable_responses(given, ranks)
        except Unrateable as reason:
            auditor.note(str(reason), f"{name}/{kind}")
            continue
        counts = [len(one) for one in responses]
        if kind != best_of and counts[0] != counts[1]:
            finding = "longer_successes" if counts[0] > counts[1] else "shorter_successes"
            auditor.note(finding, f"{name}/{kind}")
        longest = max(measure(text_of(response)) for response in responses)
        yield Comparison(
            id=f"{name}/{kind}",
            group=group,
            prompt=prompt,
            responses=responses,
            ranks=ranks,
            metadata={
                "task": best_of if kind == best_of else PAIRS,
                "source": "tau-bench",
                "subtype": name.removesuffix(f"/{task}"),
                "length": bucket(measure(text_of(prompt)) + longest),
                "messages": counts,
            },
        )
