"""Judges every comparison of a benchmark, resumably, and sums the run up."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from longrm.benchmarks import LoadedBenchmark
from longrm.data.fields import length_and_depth
from longrm.errors import DataError, RunError
from longrm.evaluation.comparison_trials import JudgingSettings, TrialJudge
from longrm.evaluation.results_csv import write_results
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_evaluation, read_summary
from longrm.reward_models import RewardModel
from longrm.runs.folder import RunFolder, write_file
from longrm.runs.judgments import EXAMPLES, GOLD, JUDGMENTS, text_digest
from longrm.runs.logs import Log, join_parts, part_of, to_line
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.runs.workers import WorkerGroup, check_seen
from longrm.types import Comparison, Outcome, message_text

# A batch is what is judged between two writes to the log: enough for the model to share prefixes,
# little enough that a killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000
_LOGS: dict[str, type[Any]] = {JUDGMENTS: JudgmentRecord, GOLD: GoldRecord, EXAMPLES: ExampleRecord}


def evaluate(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    *,
    judging: JudgingSettings,
    place: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Judges the comparisons that the folder's log does not hold yet, and writes the summary.

    Batches are cut the same way whatever the log holds, and a batch that was half written is judged again
    whole, so that a resumed run ends with the bytes of an uninterrupted one. Gold is logged apart, so that
    the judgments' bytes do not depend on it. Several processes judge a batch at a time each, and write what one
    process would have written.

    Args:
        bench: Comparisons in an order that does not change between runs; ids are unique.
        model: Sees queries only: no gold, and the responses in a drawn order.
        folder: A run folder, opened by the process that leads.
        judging: Seed, orders, votes and statistics.
        place: This process among those that share the comparisons; alone by default.
        progress: Called after every batch.

    Returns:
        The summary, as `summary.json` holds it.

    Raises:
        DataError: No comparison at all, an id twice, or judgments given as responses.
    """
    place = place or WorkerGroup()
    records = _judge_all(bench, model, folder, judging, place, progress)
    if not place.is_main_process:
        place.wait()  # for the summary
        return read_summary(folder.path)
    if bench.reading is not None:
        bench.reading.log_skipped()
    summary = summarize(
        records,
        model=model.name,
        bench=bench.name,
        scale=model.scale,
        rule=bench.rule,
        release_rule=judging.release_rule,
        seed=judging.seed,
        resamples=judging.resamples,
        accuracy_threshold=judging.accuracy_threshold,
    )
    if bench.reading is not None:
        summary["counts"]["skipped_rows"] = bench.reading.skipped.count
    if bench.audit is not None:
        summary["audit"] = bench.audit.as_dict()
    folder.write_summary(summary)
    write_results(parse_evaluation(summary), folder.path / "results.csv")
    place.wait()
    return summary


def _judge_all(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    place: WorkerGroup,
    progress: Progress,
) -> list[JudgmentRecord]:
    """All records in the order of the benchmark, their gold filled in; none for a process that does not lead."""
    if place.is_main_process:
        _join(folder)
    place.wait()  # for the claim, and what lay in parts
    check_seen(folder.path)
    ranks = _judge_share(bench, model, folder, judging, place, progress)
    place.wait()
    if not place.is_main_process:
        return []
    _join(folder)
    records = {record.id: record for record in Log(folder.path / JUDGMENTS, JudgmentRecord)}
    _check_run(records, ranks, bench.name)
    # What was tried again after an error, or judged by another process, goes to its place: one line a comparison.
    for name, kind in _LOGS.items():
        logged = list(Log(folder.path / name, kind))
        last = {record.id: record for record in logged}
        wanted = [one for one in ranks if one in last]
        if [record.id for record in logged] != wanted:
            write_file(folder.path / name, b"".join(to_line(last[one]) for one in wanted))
    return [replace(records[name], ranks=gold_ranks) for name, gold_ranks in ranks.items()]


def _judge_share(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    place: WorkerGroup,
    progress: Progress,
) -> dict[str, tuple[int, ...] | None]:
    """Judges what this process takes of the comparisons; returns the gold ranks of all."""
    asker = TrialJudge(model, judging)
    sampled: dict[Any, set[str]] = defaultdict(set)  # the groups at each length that have an example
    ranks: dict[str, tuple[int, ...] | None] = {}
    answered = {r.id for r in Log(folder.path / JUDGMENTS, JudgmentRecord) if r.outcome is not Outcome.ERROR}
    known = {record.id: record for record in Log(folder.path / GOLD, GoldRecord)}
    kept = {record.id for record in Log(folder.path / EXAMPLES, ExampleRecord)}
    with (
        Log(part_of(folder.path / JUDGMENTS, place.rank), JudgmentRecord) as log,
        Log(part_of(folder.path / GOLD, place.rank), GoldRecord) as gold,
        Log(part_of(folder.path / EXAMPLES, place.rank), ExampleRecord) as shown,
    ):
        for piece, batch in enumerate(_batches(bench.comparisons)):
            samples, golds = [], []
            for one in batch:
                golds.append(GoldRecord(one.id, one.ranks, text_digest(one.prompt, one.responses)))
                _check(bench.name, one, golds[-1], ranks, known)
                ranks[one.id] = one.ranks
                groups = sampled[one.metadata.get("length")]
                if one.group not in groups and len(groups) < judging.examples:
                    groups.add(one.group)
                    samples.append(_example(one))
            pending = {comparison.id for comparison in batch} - answered
            mine = place.takes(piece)
            if mine:
                shown.append(*(sample for sample in samples if sample.id not in kept))
                gold.append(*(one for one in golds if one.id not in known))
            if mine and pending:
                log.append(*(record for record in asker.records(batch) if record.id in pending))
            else:
                asker.passes(batch)
            done = len(answered) + place.add_done(len(pending) if mine else 0)
            progress(f"judging {bench.name}", done, bench.total or 0)
    return ranks


def _join(folder: RunFolder) -> None:
    for name, kind in _LOGS.items():
        join_parts(folder.path / name, kind)


def _check(
    bench: str,
    comparison: Comparison,
    gold: GoldRecord,
    seen: Container[str],
    known: Mapping[str, GoldRecord],
) -> None:
    """Refuses what cannot be judged, or was judged as something else."""
    if comparison.id in seen:
        raise DataError(f"{bench}: two comparisons have the id '{comparison.id}'; ids must be unique")
    length_and_depth(comparison)
    held = known.get(comparison.id, gold)
    if held != gold:
        changed = "text" if held.digest != gold.digest else "gold order"
        raise DataError(
            f"{bench}: the {changed} of '{comparison.id}' has changed since it was judged, by {GOLD}; take another "
            "--out"
        )
    if comparison.role == "judgment":
        raise DataError(
            f"{bench}: the responses of '{comparison.id}' are judgments, which train a generative reward model; "
            "they are no evaluation data"
        )


def _check_run(records: Mapping[str, JudgmentRecord], ids: Mapping[str, Any], bench: str) -> None:
    if not ids:
        raise DataError(f"the benchmark '{bench}' holds no comparison")
    stale = records.keys() - ids.keys()
    if stale:
        raise DataError(
            f"the run holds {len(stale)} judgments, such as '{min(stale)}', of comparisons that '{bench}' no longer "
            "has; the data has changed, so take another --out"
        )
    lost = ids.keys() - records.keys()
    if lost:
        raise RunError(
            f"{len(lost)} judgments are not here, such as that of '{min(lost)}': a part of the log was lost, or this "
            "process does not see it; the same command judges them again"
        )
    if all(record.outcome is Outcome.ERROR for record in records.values()):
        first = next(iter(records.values()))
        raise DataError(
            f"no comparison of '{bench}' could be judged; the first, '{first.id}': {first.detail}"
        )


def _example(comparison: Comparison) -> ExampleRecord:
    return ExampleRecord(
        comparison.id,
        comparison.prompt,
        comparison.responses,
        comparison.context,
        comparison.question,
        comparison.evidence,
    )


def _batches(comparisons: Iterable[Comparison]) -> Iterator[list[Comparison]]:
    """Cuts the stream into batches; a group stays together unless it is very large."""
    batch: list[Comparison] = []
    characters = 0
    for comparison in comparisons:
        new_group = not batch or comparison.group != batch[-1].group
        full = len(batch) >= _BATCH_COMPARISONS or characters >= _BATCH_CHARACTERS
        if batch and full and (new_group or len(batch) >= 2 * _BATCH_COMPARISONS):
            yield batch
            batch, characters, new_group = [], 0, True
        batch.append(comparison)
        if new_group:
            characters += sum(len(message_text(message)) for message in comparison.prompt)
    if batch:
        yield batch
