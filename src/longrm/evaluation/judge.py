"""Judges every comparison of a benchmark, resumably, and writes the results."""

import hashlib
import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator

from longrm.benchmarks import LoadedBenchmark
from longrm.data.fields import length_and_depth
from longrm.errors import ConfigError, DataError, RunError
from longrm.evaluation.items import write_items
from longrm.evaluation.results_csv import write_results
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import EvaluationSummary
from longrm.evaluation.trials import JudgingSettings, TrialJudge
from longrm.judging.judge_prompts import stated_answers
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import to_scores
from longrm.runs.folder import RunFolder
from longrm.runs.logs import (
    EXAMPLES,
    GOLD,
    JUDGMENTS,
    Log,
    gold_record,
    join_parts,
    part_of,
    rearrange,
    to_line,
)
from longrm.runs.progress import Progress
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.runs.workers import WorkerGroup
from longrm.types import Comparison, Outcome, margin, message_text

# A batch is judged between two writes to the log: large enough for the model to share prefixes, small enough that a
# killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000
LOGS: dict[str, type[Any]] = {JUDGMENTS: JudgmentRecord, GOLD: GoldRecord, EXAMPLES: ExampleRecord}
"""The logs of an evaluation, each with the type of its records."""

Verdict = Literal["right", "wrong", "tied", "no answer", "no gold"]
"""How the response judged best compares with gold."""


def verdict(record: JudgmentRecord) -> Verdict:
    """Whether the response judged best is a best one; `tied` if a best one and another have the same score."""
    values = to_scores(record)
    if not values:
        return "no answer"
    lead = None if record.ranks is None else margin(values, record.ranks)
    if lead is None:
        return "no gold"
    return "right" if lead > 0 else "tied" if lead == 0 else "wrong"


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


@dataclass(frozen=True, order=True, slots=True)
class Shard:
    """Shard `number` of `count`, from 1. Batches are dealt out in turn, so every shard has all lengths."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads I/N, such as 2/4; `ConfigError` if it is something else."""
        found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise ConfigError(f"a shard is I/N with I from 1 to N, such as 2/4; got '{text[:40]}'")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


ShardName = Annotated[str, AfterValidator(lambda text: str(Shard.parse(text)))]
"""A setting that names a shard, such as "2/4"."""


def finish(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    shard: Shard | None,
    ranks: Mapping[str, tuple[int, ...] | None],
    batches: Mapping[str, Any],
) -> None:
    """Puts the logs of all processes in order and summarizes them; the last arguments are from `judge_comparisons`."""
    join_logs(folder)
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
    records = {record.id: record for record in Log(folder.path / JUDGMENTS, JudgmentRecord)}
    if stale := records.keys() - ranks.keys():
        raise DataError(
            f"'{bench.name}' no longer has {len(stale)} comparisons of the run, such as '{min(stale)}'; choose "
            "another --out"
        )
    if lost := ranks.keys() - records.keys():
        raise RunError(
            f"{len(lost)} judgments, such as that of '{min(lost)}', are missing: a part of the log was lost, or is not "
            "visible to this process; the same command judges them again"
        )
    if all(record.outcome is Outcome.ERROR for record in records.values()):
        first = next(iter(records.values()))
        raise DataError(
            f"no comparison of '{bench.name}' could be judged; the first, '{first.id}': {first.detail}"
        )
    judged = [replace(records[name], ranks=gold_ranks) for name, gold_ranks in ranks.items()]
    sample = ExampleSample(judging.examples)
    shown = [record.id for record in judged if sample.keeps(record)]
    # Comparisons that were retried after an error, or judged by another process, move to their place in the order.
    for name, kind in LOGS.items():
        rearrange(folder.path / name, kind, shown if name == EXAMPLES else ranks)
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
        **described,
    )
    write_items(records, folder.path)
    write_results(summary, folder.path / "results.csv")
    folder.write_summary(summary.to_dict())  # last: a run with a summary has everything else
    return summary


def join_logs(folder: RunFolder) -> None:
    """Appends the parts that processes wrote, perhaps before they were killed, to the logs."""
    for name, kind in LOGS.items():
        join_parts(folder.path / name, kind)


def judge_comparisons(
    bench: LoadedBenchmark,
    model: RewardModel,
    folder: RunFolder,
    judging: JudgingSettings,
    shard: Shard | None,
    place: WorkerGroup,
    progress: Progress,
) -> tuple[dict[str, tuple[int, ...] | None], dict[str, Any]]:
    """Reads all comparisons, and judges and logs those that this process takes and that have no answer yet.

    Batches are cut the same way whatever the log contains, and a batch that was written partly is judged again
    completely, so that a resumed run ends with the bytes of an uninterrupted one. Several processes judge one batch
    each at a time, and together write what one would have written. A shard judges complete batches, too.

    Returns the gold ranks of the shard's comparisons, by id; and what every shard records about the whole run, so that
    a merge can check it: the sizes of all batches, and a digest of all gold.
    """
    judge, sample = TrialJudge(model, judging), ExampleSample(judging.examples)
    logged = Log(folder.path / JUDGMENTS, JudgmentRecord)
    answered = {record.id: record for record in logged if record.outcome is not Outcome.ERROR}
    known = {record.id: record for record in Log(folder.path / GOLD, GoldRecord)}
    kept = {record.id for record in Log(folder.path / EXAMPLES, ExampleRecord)}
    total = (bench.total or 0) if shard is None else 0
    done, pending = len(answered), set[str]()
    seen, ranks = set[str](), dict[str, tuple[int, ...] | None]()
    sizes, digest, pieces = list[int](), hashlib.sha256(), 0

    def report(share: float = 0.0) -> None:  # of the batch that is being judged
        progress(f"judging {bench.name}", done + int(share * len(pending)), total)

    report()
    model.on_progress = report
    with (
        Log(part_of(folder.path / JUDGMENTS, place.rank), JudgmentRecord) as judgments,
        Log(part_of(folder.path / GOLD, place.rank), GoldRecord) as gold,
        Log(part_of(folder.path / EXAMPLES, place.rank), ExampleRecord) as examples,
    ):
        for number, batch in enumerate(_batches(bench.comparisons)):
            golds = []
            for comparison in batch:
                if comparison.id in seen:
                    raise DataError(f"{bench.name}: two comparisons have the id '{comparison.id}'")
                if comparison.role == "judgment":
                    raise DataError(
                        f"{bench.name}: the responses of '{comparison.id}' are judgments, which are training data for "
                        "a generative reward model, not evaluation data"
                    )
                length_and_depth(comparison)  # an error if the metadata are not valid
                seen.add(comparison.id)
                golds.append(gold_record(comparison, stated_answers(comparison) if model.solves else ()))
                if changed := golds[-1].changed_from(known.get(comparison.id, golds[-1])):
                    raise DataError(
                        f"{bench.name}: the {changed} of '{comparison.id}' differs from {GOLD} of the run; choose "
                        "another --out"
                    )
            sizes.append(len(batch))
            if shard is not None:
                for one in golds:
                    digest.update(to_line(one))
            mine = shard is None or number % shard.count == shard.number - 1
            pending = {comparison.id for comparison in batch} - answered.keys() if mine else set()
            if mine:
                ranks.update((one.id, one.ranks) for one in golds)
                mine = place.takes(pieces)
                pieces += 1
            fresh: list[JudgmentRecord] = []
            if mine and pending:
                # All of the batch, so that prefixes are shared and votes seeded as in an uninterrupted run.
                fresh = [record for record in judge.records(batch) if record.id in pending]
            else:
                judge.passes(batch)
            judged = ChainMap({record.id: record for record in fresh}, answered)
            # For every batch, not just this process's own: one sample is drawn from all comparisons.
            sampled = [
                example_of(one)
                for one in batch
                if one.id in judged and sample.keeps(replace(judged[one.id], ranks=one.ranks))
            ]
            if mine:
                examples.append(*(example for example in sampled if example.id not in kept))
                gold.append(*(one for one in golds if one.id not in known))
                judgments.append(*fresh)  # last: a logged judgment is not repeated
            done = len(answered) + place.add_done(len(pending) if mine else 0)
            pending = set()
            report()
    model.on_progress = RewardModel.on_progress
    return ranks, {"batches": sizes, "gold_sha256": digest.hexdigest()}


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
