"""Judges every comparison of a benchmark, resumably, and sums the run up."""

from collections import ChainMap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longrm.benchmarks import LoadedBenchmark
from longrm.data.fields import length_and_depth
from longrm.errors import DataError, RunError
from longrm.evaluation.comparison_trials import JudgingSettings, TrialJudge
from longrm.evaluation.items import write_items
from longrm.evaluation.kept_examples import ExampleSample, example_of
from longrm.evaluation.results_csv import write_results
from longrm.evaluation.shard import DealtBatches, Shard
from longrm.evaluation.summaries import EvaluationSummary, load_summary
from longrm.evaluation.summarize import summarize
from longrm.reward_models import RewardModel
from longrm.runs.folder import RunFolder
from longrm.runs.logs import EXAMPLES, GOLD, JUDGMENTS, Log, gold_record, join_parts, part_of, rearrange
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.runs.workers import WorkerGroup, check_seen
from longrm.types import Comparison, Outcome, Scale, message_text

# A batch is what is judged between two writes to the log: enough for the model to share prefixes,
# little enough that a killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000
LOGS: dict[str, type[Any]] = {JUDGMENTS: JudgmentRecord, GOLD: GoldRecord, EXAMPLES: ExampleRecord}
"""The logs of an evaluation, each with the type of its records."""


def evaluate(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    *,
    judging: JudgingSettings,
    shard: Shard | None = None,
    place: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> EvaluationSummary:
    """Judges the comparisons that the folder's log does not hold yet, and writes the summary.

    Batches are cut the same way whatever the log holds, and a batch that was half written is judged again
    whole, so that a resumed run ends with the bytes of an uninterrupted one. Gold is logged apart, so that
    the judgments' bytes do not depend on it. Several processes judge a batch at a time each, and write what one
    process would have written. A shard judges whole batches, as the whole run would.

    Args:
        bench: Comparisons in an order that does not change between runs; ids are unique.
        model: Sees queries only: no gold, and the responses in a drawn order.
        folder: A run folder, opened by the process that leads.
        judging: Seed, orders, votes and statistics.
        shard: Which of the comparisons are judged and summed up; all by default.
        place: This process among those that share the comparisons; alone by default.
        progress: Called after every batch.

    Returns:
        The summary, as `summary.json` holds it.

    Raises:
        DataError: No comparison at all, an id twice, or judgments given as responses.
        ConfigError: The shard is empty, for there are fewer batches than shards.
    """
    place = place or WorkerGroup()
    records = _judge_all(bench, model, folder, judging, shard, place, progress)
    if not place.is_main_process:
        place.wait()  # for the summary
        summary = load_summary(folder.path)
        assert isinstance(summary, EvaluationSummary), "this run wrote it"
        return summary
    if bench.reading is not None:
        bench.reading.log_skipped()
    summary = conclude(
        records,
        folder,
        judging,
        model=model.name,
        scale=model.scale,
        bench=bench.name,
        rule=bench.rule,
        counted={
            "skipped_rows": None if bench.reading is None else bench.reading.skipped.count,
            "sampled_from": bench.sampled_from,
        },
        added={
            "audit": bench.audit.as_dict() if bench.audit is not None else None,
            "measured": bench.measured,
            "shard": None if shard is None else str(shard),
        },
    )
    place.wait()
    return summary


def conclude(
    records: Sequence[JudgmentRecord],
    folder: RunFolder,
    judging: JudgingSettings,
    *,
    model: str,
    scale: Scale,
    bench: str,
    rule: str,
    counted: Mapping[str, Any],
    added: Mapping[str, Any],
) -> EvaluationSummary:
    """Summarizes a completely judged run: writes items, `results.csv` and `summary.json`.

    Args:
        records: All judgments, with their gold, in the order of the benchmark.
        folder: The run folder.
        judging: Seed and statistics.
        model: The reward model's name.
        scale: What a difference of its scores means.
        bench: The benchmark's name.
        rule: The benchmark's own rule; empty for none.
        counted: Further fields of the summary's counts.
        added: Further fields of the summary.
    """
    summary = summarize(
        records,
        model=model,
        bench=bench,
        scale=scale,
        rule=rule,
        release_rule=judging.release_rule,
        seed=judging.seed,
        resamples=judging.resamples,
        accuracy_threshold=judging.accuracy_threshold,
        counted=counted,
        added=added,
    )
    write_items(records, folder.path)
    write_results(summary, folder.path / "results.csv")
    folder.write_summary(summary.to_dict())  # last: a run that has it has everything
    return summary


def _judge_all(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    shard: Shard | None,
    place: WorkerGroup,
    progress: Progress,
) -> list[JudgmentRecord]:
    """All records in the order of the benchmark, their gold filled in; none for a process that does not lead."""
    if place.is_main_process:
        _join(folder)
    place.wait()  # for the claim, and what lay in parts
    check_seen(folder.path)
    part = DealtBatches(shard)
    _judge_share(bench, model, folder, judging, part, place, progress)
    place.wait()
    if not place.is_main_process:
        return []
    _join(folder)
    part.check(bench.name)
    ranks = part.ranks
    records = {record.id: record for record in Log(folder.path / JUDGMENTS, JudgmentRecord)}
    _check_run(records, ranks, bench.name)
    judged = [replace(records[name], ranks=gold_ranks) for name, gold_ranks in ranks.items()]
    sample = ExampleSample(judging.examples)
    shown = [record.id for record in judged if sample.keeps(record)]
    # What was tried again after an error, or judged by another process, goes to its place: one line a comparison.
    for name, kind in LOGS.items():
        rearrange(folder.path / name, kind, shown if name == EXAMPLES else ranks)
    if shard is not None:
        folder.record(shard=part.facts())
    return judged


def _judge_share(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    part: DealtBatches,
    place: WorkerGroup,
    progress: Progress,
) -> None:
    """Judges what this process takes of the comparisons, and has `part` see all."""
    asker, seen = TrialJudge(model, judging), set[str]()
    sample = ExampleSample(judging.examples)
    answered = {
        r.id: r for r in Log(folder.path / JUDGMENTS, JudgmentRecord) if r.outcome is not Outcome.ERROR
    }
    known = {record.id: record for record in Log(folder.path / GOLD, GoldRecord)}
    kept = {record.id for record in Log(folder.path / EXAMPLES, ExampleRecord)}
    total = (bench.total or 0) if part.shard is None else 0
    done, pending = len(answered), set[str]()

    def report(share: float = 0.0) -> None:  # of the batch that is being judged
        progress(f"judging {bench.name}", done + int(share * len(pending)), total)

    report()
    model.on_progress = report
    with (
        Log(part_of(folder.path / JUDGMENTS, place.rank), JudgmentRecord) as log,
        Log(part_of(folder.path / GOLD, place.rank), GoldRecord) as gold,
        Log(part_of(folder.path / EXAMPLES, place.rank), ExampleRecord) as shown,
    ):
        for batch in _batches(bench.comparisons):
            golds = []
            for one in batch:
                golds.append(gold_record(one))
                _check(bench.name, one, golds[-1], seen, known)
                seen.add(one.id)
            piece = part.take(golds)
            pending = {comparison.id for comparison in batch} - answered.keys()
            mine = piece is not None and place.takes(piece)
            fresh = []
            if mine and pending:
                fresh = [record for record in asker.records(batch) if record.id in pending]
            else:
                asker.passes(batch)
            judged = ChainMap({record.id: record for record in fresh}, answered)
            examples = _kept(batch, judged, sample)  # in every batch, for one sample is drawn from all
            if mine:
                shown.append(*(example for example in examples if example.id not in kept))
                gold.append(*(one for one in golds if one.id not in known))
                log.append(*fresh)  # last: what is logged is not judged again
            done = len(answered) + place.add_done(len(pending) if mine else 0)
            pending = set()
            report()
    model.on_progress = RewardModel.on_progress


def _join(folder: RunFolder) -> None:
    for name, kind in LOGS.items():
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
    changed = gold.changed_from(known.get(comparison.id, gold))
    if changed:
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
        raise DataError(f"{bench}: no row in it makes a comparison")
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


def _kept(
    batch: Iterable[Comparison], judged: Mapping[str, JudgmentRecord], sample: ExampleSample
) -> list[ExampleRecord]:
    """Those of a batch that are judged, and kept in full."""
    return [
        example_of(one)
        for one in batch
        if one.id in judged and sample.keeps(replace(judged[one.id], ranks=one.ranks))
    ]


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
