"""Judges every comparison of a benchmark once, resumably, and sums the run up."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import Field

from longrm.config import Config
from longrm.errors import DataError
from longrm.evaluation.summary import summarize
from longrm.reward_models import RewardModel
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, silent
from longrm.runs.records import ExampleRecord, JudgmentRecord
from longrm.types import Comparison, Judgment, Outcome, ask, message_text, presented_order

JUDGMENTS, EXAMPLES = "judgments.jsonl", "examples.jsonl"
# A batch is what is judged between two writes to the log: enough for the model to share prefixes,
# little enough that a killed run loses minutes at most.
_BATCH_COMPARISONS = 64
_BATCH_CHARACTERS = 400_000


class Judging(Config):
    """How the comparisons are judged and summed up.

    Attributes:
        seed: Draws the presented orders and the bootstrap.
        examples: Comparisons kept in full for the report, per length.
        resamples: Bootstrap resamples of every interval.
        tau: Accuracy that defines the context boundary; by default (1 + chance) / 2.
    """

    seed: int = Field(0, ge=0)
    examples: int = Field(3, ge=0)
    resamples: int = Field(2000, ge=100)
    tau: float | None = Field(None, gt=0.0, lt=1.0)


def evaluate(
    comparisons: Iterable[Comparison],
    model: RewardModel,
    folder: RunFolder,
    *,
    bench: str,
    judging: Judging,
    total: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Judges the comparisons that the folder's log does not hold yet, and writes the summary.

    Batches are cut the same way whatever the log holds, and a batch that was half written is judged again
    whole, so that a resumed run ends with the bytes of an uninterrupted one.

    Args:
        comparisons: In an order that does not change between runs; ids are unique.
        model: Sees queries only: no gold, and the responses in a drawn order.
        folder: An open run folder.
        bench: The benchmark's name for the summary.
        judging: Seed, examples and statistics.
        total: How many comparisons there are, for the progress; None if unknown.
        progress: Called after every batch.

    Returns:
        The summary, as `summary.json` holds it.

    Raises:
        DataError: No comparison at all, an id twice, or judgments given as responses.
    """
    judgments = Log(folder.path / JUDGMENTS, JudgmentRecord)
    examples = Log(folder.path / EXAMPLES, ExampleRecord)
    with judgments as log, examples as shown:
        records = {record.id: record for record in log}
        kept = {record.id for record in shown}
        sampler = _Sampler(judging.examples)
        ids: dict[str, None] = {}
        for batch in _batches(comparisons):
            _check(batch, ids)
            samples = [comparison for comparison in batch if sampler.takes(comparison)]
            shown.append(*(_example(sample) for sample in samples if sample.id not in kept))
            pending = {c.id for c in batch if c.id not in records or records[c.id].outcome is Outcome.ERROR}
            if pending:
                judged = [record for record in _judge(batch, model, judging.seed) if record.id in pending]
                log.append(*judged)
                records |= {record.id: record for record in judged}
            progress(f"judging {bench}", len(ids), total if total is not None else len(ids))
    _check_run(records, ids, bench)
    summary = summarize(
        [records[name] for name in ids],
        model=model.name,
        bench=bench,
        seed=judging.seed,
        resamples=judging.resamples,
        tau=judging.tau,
    )
    folder.write_summary(summary)
    return summary


def _check(batch: list[Comparison], ids: dict[str, None]) -> None:
    for comparison in batch:
        if comparison.id in ids:
            raise DataError(f"two comparisons have the id '{comparison.id}'; ids must be unique")
        if comparison.role == "judgment":
            raise DataError(
                f"the responses of '{comparison.id}' are judgments, which train a generative reward model; "
                "they are no evaluation data"
            )
        ids[comparison.id] = None


def _check_run(records: Mapping[str, JudgmentRecord], ids: Mapping[str, None], bench: str) -> None:
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


def _judge(batch: list[Comparison], model: RewardModel, seed: int) -> list[JudgmentRecord]:
    orders = [presented_order(comparison, seed) for comparison in batch]
    queries = [ask(comparison, order) for comparison, order in zip(batch, orders, strict=True)]
    judgments = model.judge(queries)
    return [_record(*parts) for parts in zip(batch, orders, judgments, strict=True)]


def _record(comparison: Comparison, order: tuple[int, ...], judgment: Judgment) -> JudgmentRecord:
    """Puts what was judged in presented order back into the comparison's own order."""
    scores = dict(zip(order, judgment.scores, strict=False))
    metadata = comparison.metadata
    depth = metadata.get("depth")
    return JudgmentRecord(
        id=comparison.id,
        group=comparison.group,
        outcome=judgment.outcome,
        ranks=comparison.ranks,
        order=order,
        scores=tuple(scores[index] for index in sorted(scores)),
        ranking=tuple(order[position] for position in judgment.order),
        length=_length(metadata, judgment.prompt_tokens),
        tokens=judgment.prompt_tokens,
        depth=float(depth) if isinstance(depth, int | float) else None,
        task=str(metadata.get("task", "")),
        explanation=judgment.explanation,
        detail=judgment.detail,
    )


def _length(metadata: Mapping[str, Any], tokens: int | None) -> int | None:
    """The length bucket: what the data says, else the measured tokens rounded up to a power of two."""
    length = metadata.get("length")
    if isinstance(length, int) and length > 0:
        return length
    return None if tokens is None else 1 << max(0, tokens - 1).bit_length()


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
