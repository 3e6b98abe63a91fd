"""Judges every comparison of a benchmark, resumably, and sums the run up."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from longrm.benchmarks import Benchmark
from longrm.errors import DataError
from longrm.evaluation.asking import Asker, Judging
from longrm.evaluation.results_csv import write_results
from longrm.evaluation.summary import summarize
from longrm.reward_models import RewardModel
from longrm.runs.folder import RunFolder, write_file
from longrm.runs.judgments import EXAMPLES, GOLD, JUDGMENTS, text_digest
from longrm.runs.logs import Log, to_line
from longrm.runs.progress import Progress, silent
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.types import Comparison, Outcome, message_text

# A batch is what is judged between two writes to the log: enough for the model to share prefixes,
# little enough that a killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000


def evaluate(
    bench: Benchmark,
    model: RewardModel,
    folder: RunFolder,
    *,
    judging: Judging,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Judges the comparisons that the folder's log does not hold yet, and writes the summary.

    Batches are cut the same way whatever the log holds, and a batch that was half written is judged again
    whole, so that a resumed run ends with the bytes of an uninterrupted one. Gold is logged apart, so that
    the judgments' bytes do not depend on it.

    Args:
        bench: Comparisons in an order that does not change between runs; ids are unique.
        model: Sees queries only: no gold, and the responses in a drawn order.
        folder: An open run folder.
        judging: Seed, orders, votes and statistics.
        progress: Called after every batch.

    Returns:
        The summary, as `summary.json` holds it.

    Raises:
        DataError: No comparison at all, an id twice, or judgments given as responses.
    """
    records = _judge_all(bench, model, folder, judging, progress)
    if bench.reading is not None:
        bench.reading.tell_skipped()
    summary = summarize(
        records,
        model=model.name,
        bench=bench.name,
        scale=model.scale,
        rule=bench.rule,
        release_rule=judging.release_rule,
        seed=judging.seed,
        resamples=judging.resamples,
        tau=judging.tau,
    )
    if bench.reading is not None:
        summary["counts"]["skipped_rows"] = bench.reading.skipped.count
    if bench.audit is not None:
        summary["audit"] = bench.audit.as_dict()
    folder.write_summary(summary)
    write_results(summary, folder.path / "results.csv")
    return summary


def _judge_all(
    bench: Benchmark, model: RewardModel, folder: RunFolder, judging: Judging, progress: Progress
) -> list[JudgmentRecord]:
    """All records in the order of the benchmark, their gold filled in."""
    asker = Asker(model, judging)
    sampler = _Sampler(judging.examples)
    ranks: dict[str, tuple[int, ...] | None] = {}
    with (
        Log(folder.path / JUDGMENTS, JudgmentRecord) as log,
        Log(folder.path / GOLD, GoldRecord) as gold,
        Log(folder.path / EXAMPLES, ExampleRecord) as shown,
    ):
        logged = list(log)
        records = {record.id: record for record in logged}
        retried = len(records) < len(logged)
        known = {record.id: record for record in gold}
        kept = {record.id for record in shown}
        for batch in _batches(bench.comparisons):
            golds = [_gold(comparison) for comparison in batch]
            _check(batch, golds, ranks, known)
            samples = [comparison for comparison in batch if sampler.takes(comparison)]
            shown.append(*(_example(sample) for sample in samples if sample.id not in kept))
            gold.append(*(one for one in golds if one.id not in known))
            pending = {c.id for c in batch if c.id not in records or records[c.id].outcome is Outcome.ERROR}
            if pending:
                judged = [record for record in asker.records(batch) if record.id in pending]
                retried |= any(record.id in records for record in judged)
                log.append(*judged)
                records |= {record.id: record for record in judged}
            else:
                asker.passes(batch)
            progress(f"judging {bench.name}", len(ranks), bench.total or 0)
    _check_run(records, ranks, bench.name)
    if retried:  # every comparison keeps one line: the error that was tried again goes
        lines = [to_line(records[name]) for name in ranks]
        write_file(folder.path / JUDGMENTS, b"".join(lines))
    return [replace(records[name], ranks=gold_ranks) for name, gold_ranks in ranks.items()]


def _gold(comparison: Comparison) -> GoldRecord:
    digest = text_digest(comparison.prompt, comparison.responses)
    return GoldRecord(comparison.id, comparison.ranks, digest)


def _check(
    batch: list[Comparison],
    golds: list[GoldRecord],
    ranks: dict[str, tuple[int, ...] | None],
    known: Mapping[str, GoldRecord],
) -> None:
    """Refuses what cannot be judged, or was judged as something else, and collects the gold ranks by id."""
    for comparison, gold in zip(batch, golds, strict=True):
        if comparison.id in ranks:
            raise DataError(f"two comparisons have the id '{comparison.id}'; ids must be unique")
        ranks[comparison.id] = comparison.ranks
        held = known.get(comparison.id, gold)
        if held != gold:
            changed = "text" if held.digest != gold.digest else "gold order"
            raise DataError(
                f"the {changed} of '{comparison.id}' has changed since it was judged; take another --out"
            )
        if comparison.role == "judgment":
            raise DataError(
                f"the responses of '{comparison.id}' are judgments, which train a generative reward model; "
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


class _Sampler:
    """Takes the first comparisons of different groups at each length."""

    def __init__(self, per_length: int) -> None:
        self._per_length = per_length
        self._groups: dict[Any, set[str]] = {}

    def takes(self, comparison: Comparison) -> bool:
        groups = self._groups.setdefault(comparison.metadata.get("length"), set())
        if comparison.group in groups or len(groups) >= self._per_length:
            return False
        groups.add(comparison.group)
        return True


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
