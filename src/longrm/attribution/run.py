"""`longrm attribute`: attributions of a benchmark's comparisons, in a run folder."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from longrm.attribution.ablation import Removal, context_sentences
from longrm.attribution.attribute import MASKS, attribute, prompts_at_most, target_of
from longrm.attribution.records import (
    ATTRIBUTIONS,
    AttentionRecord,
    AttributionRecord,
    EvidenceFound,
    Target,
    is_evidence,
)
from longrm.clients.remote_settings import ModelName
from longrm.config import OPERATIONAL
from longrm.data.chunking import approximate_tokens
from longrm.data.fields import length_and_depth
from longrm.errors import ConfigError, DataError
from longrm.evaluation.attention_table import AttentionTableRow, attention_table, write_attention_table
from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.evaluation.evaluate import JudgedBenchmark, load_benchmark, load_judge, own_tokenizer
from longrm.evaluation.judge import example_of
from longrm.evaluation.summary_schema import (
    DEPTH_BINS,
    AttributionPart,
    AttributionSummary,
    DepthBin,
    depth_bin,
)
from longrm.modeling.attended_regions import AttendedComparison
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import to_scores
from longrm.runs.folder import RunFolder
from longrm.runs.logs import EXAMPLES, Log, text_digest
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import UNDEFINED, Estimate, ExampleRecord
from longrm.runs.resumable import ResumableRun, Written
from longrm.types import Comparison, Judgment, Outcome, Query, Span, query_of, text_of
from longrm.worlds.words_tokenizer import load_tokenizer

_log = logging.getLogger(__name__)

ATTENTION, ATTENTION_TABLE = "attention.jsonl", "attention.csv"

PREFIX_CACHE_BYTES = 1 << 30
"""Memory for the common prefixes of the ablated prompts of a context."""


class AttributionSettings(JudgedBenchmark):
    """Settings of `longrm attribute`.

    Attributes:
        items: Ids of the comparisons to explain; by default all.
        removal: What replaces a removed sentence: "filler" of as many tokens, or nothing ("deletion").
        attention: Whether FR and IG are measured, too; only for scalar models on this machine.
    """

    model: ModelName
    items: tuple[str, ...] = ()
    removal: Removal = "filler"
    attention: Annotated[bool, OPERATIONAL] = False


def run_attribution(
    settings: AttributionSettings,
    out: Path,
    *,
    model: RewardModel | None = None,
    progress: Progress = no_progress,
) -> tuple[list[AttributionRecord], AttributionSummary, dict[str, Comparison]]:
    """Attributes the scores of a benchmark's comparisons into a run folder, continuing a run that is there.

    Comparisons that ended in an error, such as that of a busy server, are tried again.

    Returns:
        The attributions, their summary, and the comparisons by id.
    """
    with RunFolder(out, "attribution", settings) as folder:
        bench = load_benchmark(settings)
        chosen = [one for one in bench.comparisons if not settings.items or one.id in settings.items]
        if missing := {*settings.items} - {one.id for one in chosen}:
            hint = "drop --limit" if settings.source.limit else "see items.csv of a run"
            raise ConfigError(f"no comparison '{min(missing)}' in '{bench.name}': {hint}")
        _check_unchanged(out, bench.name, chosen)
        judge = model or load_judge(settings, bench, out)
        if PREFIX_CACHE_BYTES:
            judge.keep_prefixes(PREFIX_CACHE_BYTES)
        own = own_tokenizer(settings.model, settings.remote)
        count = approximate_tokens if own is None else load_tokenizer(own.place).count
        folder.record(model=judge.provenance, bench=bench.provenance)
        if settings.attention:
            _measure_attention(judge, chosen, out, progress)
            write_attention_table(attention_of(out), out / ATTENTION_TABLE)
        run = ResumableRun(out, {EXAMPLES: ExampleRecord, ATTRIBUTIONS: AttributionRecord})
        found = {
            one.id: one for one in run.read(ATTRIBUTIONS) if not one.detail.startswith(f"{Outcome.ERROR}:")
        }
        done = {EXAMPLES: {one.id for one in run.read(EXAMPLES)}, ATTRIBUTIONS: frozenset(found)}
        left = [one for one in chosen if one.id not in found]
        most = {one.id: prompts_at_most(len(context_sentences(_query(one))), MASKS) for one in left}
        _log_cost(left, most, judge, count)
        before = 0

        def work(batch: Sequence[Comparison]) -> Written:
            nonlocal before
            (comparison,) = batch

            def report(prompts: int) -> None:
                progress("prompts", before + prompts, sum(most.values()), "at most")

            found[comparison.id] = _attributed(judge, comparison, settings.removal, count, report)
            before += most[comparison.id]  # prompts that were not needed count as done
            return {ATTRIBUTIONS: [found[comparison.id]], EXAMPLES: [example_of(comparison)]}

        run.run(
            [[comparison] for comparison in chosen],
            work,
            done,
            skip=lambda batch: {EXAMPLES: list(map(example_of, batch))},
            progress=lambda count: progress("attribute", len(chosen) - len(left) + count, len(chosen)),
        )
        run.arrange(ATTRIBUTIONS, [comparison.id for comparison in chosen])
        records = [found[comparison.id] for comparison in chosen]
        summary = summary_of(records, judge.name, bench.name)
        folder.write_summary(summary.to_dict())
    return records, summary, {comparison.id: comparison for comparison in chosen}


def _check_unchanged(out: Path, bench: str, chosen: Sequence[Comparison]) -> None:
    """Refuses to continue a run whose comparisons had other texts."""
    digests = {one.id: _digest(one) for one in chosen}
    for log in (Log(out / ATTRIBUTIONS, AttributionRecord), Log(out / ATTENTION, AttentionRecord)):
        for record in log:
            if digests.get(record.id, record.digest) != record.digest:
                raise DataError(
                    f"{bench}: the text of '{record.id}' has changed since {log.path.name} was written; choose another "
                    "--out"
                )


def _digest(comparison: Comparison) -> str:
    return text_digest(comparison.prompt, comparison.responses, comparison.tools)


def _query(comparison: Comparison) -> Query:
    return query_of(comparison, range(len(comparison.responses)))


def _log_cost(
    left: Sequence[Comparison], most: dict[str, int], model: RewardModel, count: Callable[[str], int]
) -> None:
    """Logs an upper bound of the prompts and tokens, before any is asked."""
    times = 2 if model.sees_order else 1
    sizes = [count(text_of(one.prompt)) + sum(count(text_of(r)) for r in one.responses) for one in left]
    tokens = times * sum(most[one.id] * size for one, size in zip(left, sizes, strict=True))
    if prompts := sum(most.values()):
        each = f", each in {times} orders" if times > 1 else ""
        what = f"{len(left)} comparisons, at most {prompts:,} prompts{each}: at most {tokens:,} tokens"
        _log.info("%s", what)


def _attributed(
    model: RewardModel,
    comparison: Comparison,
    removal: Removal,
    count: Callable[[str], int],
    report: Callable[[int], None],
) -> AttributionRecord:
    """Explains what a model prefers in a comparison."""
    query, digest = _query(comparison), _digest(comparison)
    (trial,) = model.judge_in_all_orders([query])
    values = to_scores(trial)
    if not values:
        detail = f"{trial.outcome}: {trial.detail}"
        unexplained = AttributionRecord(query.id, Target(0, 1), tokens_computed=0, prompts=0, detail=detail)
        return replace(unexplained, group=comparison.group, digest=digest)
    ranks, target = comparison.ranks, target_of(values, comparison.ranks)
    found = attribute(model, query, target, removal, count=count, report=report)
    right = None
    tied = target.against is not None and values[target.response] == values[target.against]
    if ranks is not None and len({*ranks}) > 1 and not tied:
        right = ranks[target.response] == min(ranks)
    # Evidence speaks for the gold response: where the model prefers another, it has negative weight.
    for_gold = np.array([one.weight for one in found.sentences]) * (-1 if right is False else 1)
    length, depth = length_and_depth(comparison)
    return replace(
        found,
        group=comparison.group,
        length=length,
        depth=depth,
        right=right,
        evidence=evidence_found([one.span for one in found.sentences], for_gold, comparison.evidence),
        digest=digest,
    )


def evidence_found(
    sentences: Sequence[Span], weights: NDArray[np.float64], evidence: Sequence[Span]
) -> EvidenceFound | None:
    """Compares weights with known evidence; None where none is known, or where every sentence is evidence."""
    held = np.array([is_evidence(sentence, evidence) for sentence in sentences])
    k = int(held.sum())
    if not 0 < k < held.size:
        return None
    ranks = rankdata(weights)
    auc = (ranks[held].sum() - k * (k + 1) / 2) / (k * (held.size - k))  # the Mann-Whitney U statistic
    top = np.argsort(-weights, kind="stable")[:k]
    recall = float(np.mean([held[at] and weights[at] > 0 for at in top]))
    total = np.abs(weights).sum()
    return EvidenceFound(float(auc), recall, float(np.abs(weights[held]).sum() / total) if total else 0.0)


def summary_of(records: Sequence[AttributionRecord], model: str, bench: str) -> AttributionSummary:
    """Means of attributions, overall and by length, depth and verdict, with intervals."""
    by_length: dict[str, list[AttributionRecord]] = defaultdict(list)
    by_depth: dict[DepthBin, list[AttributionRecord]] = defaultdict(list)
    by_verdict: dict[Literal["right", "wrong"], list[AttributionRecord]] = defaultdict(list)
    for one in sorted(records, key=lambda one: (one.length or 0, one.depth or 0.0)):
        if one.length is not None:
            by_length[str(one.length)].append(one)
        if one.depth is not None:
            by_depth[depth_bin(one.depth)].append(one)
        if one.right is not None:
            by_verdict["right" if one.right else "wrong"].append(one)
    return AttributionSummary(
        model=model,
        bench=bench,
        comparisons=len(records),
        explained=sum(one.trust is not None for one in records),
        prompts=sum(one.prompts for one in records),
        tokens_computed=sum(one.tokens_computed for one in records),
        overall=_part(records),
        by_length={length: _part(some) for length, some in by_length.items()},
        by_depth={depth: _part(by_depth[depth]) for depth in DEPTH_BINS if depth in by_depth},
        by_verdict={verdict: _part(some) for verdict, some in by_verdict.items()},
    )


def _part(records: Sequence[AttributionRecord]) -> AttributionPart:
    trusted = [(one.group, one.trust) for one in records if one.trust is not None]
    found = [(one.group, one.evidence) for one in records if one.evidence is not None]
    return AttributionPart(
        shown=_mean([(group, float(trust.shown)) for group, trust in trusted]),
        lds=_mean([(group, trust.lds) for group, trust in trusted if trust.lds is not None]),
        evidence_auc=_mean([(group, evidence.auc) for group, evidence in found]),
        evidence_recall=_mean([(group, evidence.recall) for group, evidence in found]),
        evidence_share=_mean([(group, evidence.share) for group, evidence in found]),
    )


def _mean(values: Sequence[tuple[str, float]]) -> Estimate:
    """The mean of values of comparisons, each with its group, and its interval."""
    if not values:
        return UNDEFINED
    numbers = np.array([value for _, value in values])
    groups = np.unique([group for group, _ in values], return_inverse=True)[1]
    span = (-1.0, 1.0) if numbers.min() < 0 else (0.0, 1.0)
    return ratio(numbers, np.ones(len(values)), groups, span=span, seed=0, resamples=RESAMPLES)


def attended_by(model: RewardModel, comparison: Comparison) -> AttendedComparison:
    """FR and IG of a scalar model on this machine (LongRM, Eq. 3 and 4), by regions of a comparison's context."""
    # Here, because both import torch.
    from longrm.modeling.attention_scores import attended
    from longrm.reward_models.packed import DiscriminativeRewardModel

    if not isinstance(model, DiscriminativeRewardModel):
        raise ConfigError(f"--attention requires a scalar model on this machine; {model.name} is not one")
    opened = model.open(_query(comparison), cut="refuse")
    if isinstance(opened, Judgment):  # it cannot be read, or is too long
        raise DataError(f"{opened.outcome}: {opened.detail}")
    return attended(model.scorer, comparison, gradients=True)


def _measure_attention(
    model: RewardModel, comparisons: Sequence[Comparison], out: Path, progress: Progress
) -> None:
    """Logs FR and IG of all comparisons with known evidence and gold."""
    known = [one for one in comparisons if one.evidence and one.ranks is not None and len({*one.ranks}) > 1]
    if not known:
        raise ConfigError(
            f"--attention requires comparisons with evidence and gold ranks, as in rows of longrm world; none of "
            f"{len(comparisons):,} has both"
        )
    run = ResumableRun(out, {ATTENTION: AttentionRecord})
    records = {record.id: record for record in run.read(ATTENTION)}
    before = frozenset(records)

    def work(batch: Sequence[Comparison]) -> Written:
        (one,) = batch
        attended, detail = None, ""
        try:
            attended = attended_by(model, one)
        except DataError as error:
            detail = str(error)
        records[one.id] = AttentionRecord(one.id, attended, detail, _digest(one))
        return {ATTENTION: [records[one.id]]}

    run.run(
        [[one] for one in known],
        work,
        {ATTENTION: before},
        progress=lambda count: progress("attend", len(before) + count, len(known)),
    )
    if all(record.attended is None for record in records.values()):
        first = records[known[0].id]
        raise DataError(f"no attention could be measured; the first: '{first.id}': {first.detail}")


def attention_of(out: Path) -> list[AttentionTableRow]:
    """The table of the attention in a run folder."""
    records = Log(out / ATTENTION, AttentionRecord)
    return attention_table([one.attended for one in records if one.attended is not None], seed=0)
