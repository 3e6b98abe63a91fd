"""Judges every comparison of a benchmark, resumably, and writes the results."""

import hashlib
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator

from longrm.benchmarks import LoadedBenchmark
from longrm.data.fields import length_and_depth
from longrm.errors import ConfigError, DataError, RunError
from longrm.evaluation.items import write_items
from longrm.evaluation.results_csv import write_results
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import EvaluationSummary
from longrm.evaluation.table import Verdict, verdict_of
from longrm.evaluation.trials import JudgingSettings, TrialJudge
from longrm.judging.judge_prompts import stated_answers
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import to_scores
from longrm.runs.folder import RunFolder
from longrm.runs.judgments import Judgments
from longrm.runs.logs import EXAMPLES, GOLD, JUDGMENTS, gold_record, to_line
from longrm.runs.progress import Progress
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.runs.resumable import ResumableRun, Shard, Written, unique
from longrm.types import Comparison, Outcome, message_text

# A batch is judged between two writes to the log: large enough for the model to share prefixes, small enough that a
# killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000
LOGS: dict[str, type[Any]] = {EXAMPLES: ExampleRecord, GOLD: GoldRecord, JUDGMENTS: JudgmentRecord}
"""The logs of an evaluation, each with the type of its records, in the order in which they are written."""


def verdict(record: JudgmentRecord) -> Verdict:
    """How the response judged best compares with gold."""
    return verdict_of(to_scores(record), record.ranks)


def example_of(comparison: Comparison) -> ExampleRecord:
    """A comparison as `examples.jsonl` keeps it."""
    return ExampleRecord(
        comparison.id,
        comparison.prompt,
        comparison.responses,
        comparison.context,
        comparison.question,
        comparison.evidence,
        comparison.tools,
    )


class ExampleSample:
    """Chooses the comparisons that `examples.jsonl` keeps: all that were not judged right, and a sample of the rest.

    Of comparisons that were judged right, or have no gold order, it takes the first of each of the first `per_length`
    groups at every length. From a part of the judgments, in the same order, it takes everything that it takes from all
    of them, and perhaps more: processes and shards choose from what they know, and the main process thins it out. With
    0 groups it keeps nothing.
    """

    def __init__(self, per_length: int) -> None:
        self._per_length = per_length
        self._groups: dict[int | None, set[str]] = defaultdict(set)

    def keeps(self, record: JudgmentRecord) -> bool:
        """Whether a comparison is kept; call it for every one, with gold, in the order of the benchmark."""
        if verdict(record) not in ("right", "no gold"):
            return self._per_length > 0
        groups = self._groups[record.length]
        if record.group in groups or len(groups) >= self._per_length:
            return False
        groups.add(record.group)
        return True


ShardName = Annotated[str, AfterValidator(lambda text: str(Shard.parse(text)))]
"""A setting that names a shard, such as "2/4"."""


def finish(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    run: ResumableRun,
    judging: JudgingSettings,
    shard: Shard | None,
    ranks: Mapping[str, tuple[int, ...] | None],
    batches: Mapping[str, Any],
) -> None:
    """Puts the logs in order and summarizes them; the last arguments are from `judge_comparisons`."""
    if not ranks:
        if shard is None or not batches["batches"]:
            findings = bench.audit.findings.values() if bench.audit is not None else ()
            counted = [f"{finding.what}: {finding.count:,}" for finding in findings if finding.count]
            why = f"no row is a comparison ({', '.join(counted)})" if counted else "no row in it"
            raise DataError(f"{bench.name}: {why}")
        number = len(batches["batches"])
        raise ConfigError(
            f"shard {shard} is empty: '{bench.name}' has {number} batches; omit this shard and merge the first {number}"
        )
    judged = Judgments(folder.path)
    names = set(judged.ids)
    if stale := names - ranks.keys():
        raise DataError(
            f"'{bench.name}' no longer has {len(stale)} comparisons of the run, such as '{min(stale)}'; choose "
            "another --out"
        )
    if lost := ranks.keys() - names:
        raise RunError(
            f"{len(lost)} judgments, such as that of '{min(lost)}', are missing: a part of the log was lost, or is not "
            "visible to this process; the same command judges them again"
        )
    if all(record.outcome is Outcome.ERROR for record in judged):
        first = judged[0]
        raise DataError(
            f"no comparison of '{bench.name}' could be judged; the first, '{first.id}': {first.detail}"
        )
    # Comparisons that were retried after an error, or judged by another process, move to their place in the order.
    for name in (JUDGMENTS, GOLD):
        run.arrange(name, ranks)
    judged, sample = Judgments(folder.path), ExampleSample(judging.examples)
    shown = [record.id for record in judged if sample.keeps(record)]
    run.arrange(EXAMPLES, shown)
    if shard is not None:
        folder.record(shard=batches)
    if bench.reading is not None:
        bench.reading.skipped.log()
    conclude(
        judged,
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


def conclude(
    records: Sequence[JudgmentRecord], folder: RunFolder, judging: JudgingSettings, **described: Any
) -> EvaluationSummary:
    """Summarizes a completely judged run: writes items, `results.csv` and `summary.json`.

    `described` are the arguments of `summarize` that do not follow from the settings.
    """
    summary = summarize(
        records,
        seed=judging.seed,
        resamples=judging.resamples,
        accuracy_threshold=judging.accuracy_threshold,
        self_names=judging.self_names,
        **described,
    )
    write_items(records, folder.path)
    write_results(summary, folder.path / "results.csv")
    folder.write_summary(summary.to_dict())  # last: a run with a summary has everything else
    return summary


def judge_comparisons(
    bench: LoadedBenchmark,
    model: RewardModel,
    run: ResumableRun,
    judging: JudgingSettings,
    shard: Shard | None,
    progress: Progress,
) -> tuple[dict[str, tuple[int, ...] | None], dict[str, Any]]:
    """Reads all comparisons, and judges and logs those of the shard that have no answer yet.

    Returns the gold ranks of the shard's comparisons, by id; and what every shard records about the whole run, so that
    a merge can check it: the sizes of all batches, and a digest of all gold.
    """
    judge, sample = TrialJudge(model, judging), ExampleSample(judging.examples)
    # A comparison that ended in an error is judged again.
    answered = {record.id: record for record in run.read(JUDGMENTS) if record.outcome is not Outcome.ERROR}
    known = {record.id: record for record in run.read(GOLD)}
    kept = {record.id for record in run.read(EXAMPLES)}
    ranks = dict[str, tuple[int, ...] | None]()
    sizes, digest = list[int](), hashlib.sha256()
    golds: list[GoldRecord] = []  # of the latest batch

    def batches() -> Iterator[list[Comparison]]:
        """Those of the shard; all are checked."""
        nonlocal golds
        for number, batch in enumerate(_batches(unique(bench.comparisons))):
            golds = [_checked_gold(one, bench.name, model.solves, known) for one in batch]
            sizes.append(len(batch))
            if shard is not None:
                for one in golds:
                    digest.update(to_line(one))
                if number not in shard:
                    judge.skip(batch)
                    continue
            ranks.update((one.id, one.ranks) for one in golds)
            yield batch

    def sampled(batch: Sequence[Comparison], judged: Mapping[str, JudgmentRecord]) -> list[ExampleRecord]:
        # Of every batch, other processes' too: one sample is drawn from all comparisons.
        return [
            example_of(one)
            for one, gold in zip(batch, golds, strict=True)
            if one.id in judged and sample.keeps(replace(judged[one.id], ranks=gold.ranks))
        ]

    def work(batch: Sequence[Comparison]) -> Written:
        fresh = judge.records(batch)
        examples = sampled(batch, ChainMap(answered, {record.id: record for record in fresh}))
        return {EXAMPLES: examples, GOLD: golds, JUDGMENTS: fresh}

    def skip(batch: Sequence[Comparison]) -> Written:
        judge.skip(batch)
        # Also gold that a power cut took away: logs are not synced.
        return {EXAMPLES: sampled(batch, answered), GOLD: [one for one in golds if one.id in answered]}

    total = (bench.total or 0) if shard is None else 0
    model.on_progress = run.report
    run.run(
        batches(),
        work,
        {EXAMPLES: kept, GOLD: known, JUDGMENTS: answered},
        skip=skip,
        progress=lambda done: progress(f"judging {bench.name}", len(answered) + done, total),
    )
    model.on_progress = RewardModel.on_progress
    return ranks, {"batches": sizes, "gold_sha256": digest.hexdigest()}


def _checked_gold(
    comparison: Comparison, bench: str, solves: bool, known: Mapping[str, GoldRecord]
) -> GoldRecord:
    """The gold of a comparison; `DataError` if it cannot be judged, or differs from that of the run."""
    if comparison.role == "judgment":
        raise DataError(
            f"{bench}: the responses of '{comparison.id}' are judgments, which are training data for a generative "
            "reward model, not evaluation data"
        )
    length_and_depth(comparison)  # an error if the metadata are not valid
    gold = gold_record(comparison, stated_answers(comparison) if solves else ())
    if changed := gold.changed_from(known.get(comparison.id, gold)):
        raise DataError(
            f"{bench}: the {changed} of '{comparison.id}' differs from {GOLD} of the run; choose another --out"
        )
    return gold


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
        if new_group:  # comparisons of a group share their context
            characters += sum(len(message_text(message)) for message in comparison.prompt)
    if batch:
        yield batch
