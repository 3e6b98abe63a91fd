"""An attribution as a user asks for it: settings in, a run folder out."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from longrm.attribution.attention_run import (
    ATTENTION,
    AttentionRecord,
    AttentionSettings,
    measure_attention,
    write_attention,
)
from longrm.attribution.attribute import AblationSettings, attribute, check_votes, target_of
from longrm.attribution.attribution_records import ATTRIBUTIONS, AttributionRecord, Target
from longrm.attribution.cost import Cost
from longrm.attribution.evidence import evidence_found
from longrm.attribution.summary import summary_of
from longrm.benchmarks import BenchmarkSource, Leval, LoadedBenchmark, Probe
from longrm.clients.remote_settings import ModelName, Remote
from longrm.config import Config
from longrm.data.chunking import approximate_tokens
from longrm.data.fields import length_and_depth
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluation_run import Evaluation, load_benchmark, load_judge, own_tokenizer
from longrm.evaluation.kept_examples import example_of
from longrm.evaluation.summaries import AttributionSummary
from longrm.reward_models import Compress, JudgeSettings, RewardModel
from longrm.reward_models.trials import points
from longrm.runs.folder import RunFolder
from longrm.runs.judgments import EXAMPLES, text_digest
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import ExampleRecord
from longrm.types import Comparison, Outcome, query_of
from longrm.worlds.words_tokenizer import load_tokenizer

_logger = logging.getLogger(__name__)


class AttributionSettings(Config):
    """Settings of `longrm attribute`.

    Attributes:
        model: A model, as `longrm evaluate` takes it.
        bench: What is judged, likewise.
        items: Ids of the comparisons to explain; all by default.
        source: How a benchmark's files are read.
        probe: What the probe asks.
        leval: How answers become comparisons in `leval`.
        judge: How a model is asked.
        remote: How a model behind HTTP is reached.
        compress: What `compress:MODEL` leaves of a context.
        ablation: How sentences are left out, and weighed.
        attention: Whether FR and IG are measured, too.
    """

    model: ModelName
    bench: str
    items: tuple[str, ...] = ()
    source: BenchmarkSource = BenchmarkSource()
    probe: Probe = Probe()
    leval: Leval = Leval()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    compress: Compress = Compress()
    ablation: AblationSettings = AblationSettings()
    attention: AttentionSettings = AttentionSettings()


def run_attribution(
    settings: AttributionSettings,
    out: Path,
    *,
    model: RewardModel | None = None,
    progress: Progress = no_progress,
) -> tuple[list[AttributionRecord], AttributionSummary, dict[str, Comparison]]:
    """Attributes the scores of a benchmark's comparisons into a run folder, continuing what is there.

    Comparisons that ended in an error, such as that of a server which was busy, are asked again.

    Raises:
        ConfigError: A comparison that is named is not there, several votes are asked of a model that always answers
            the same, or gradients of one that has none.
        DataError: The text of a comparison has changed since it was explained.
    """
    with RunFolder(out, "attribution", settings) as folder:
        evaluation = _evaluation(settings)
        bench = load_benchmark(evaluation)
        chosen = _chosen(bench, settings)
        _check_texts(out, bench.name, chosen)
        judge = model or load_judge(evaluation, bench, out)
        check_votes(settings.ablation.votes, judge)
        if settings.ablation.prefix_cache_bytes:
            judge.keep_prefixes(settings.ablation.prefix_cache_bytes)
        count = _counter(settings)
        folder.record(model=judge.provenance, bench=bench.provenance)
        if settings.attention.measured:
            measure_attention(judge, chosen, settings.attention.k, out, progress)
            write_attention(out, settings.ablation.seed)
        log, texts = Log(out / ATTRIBUTIONS, AttributionRecord), Log(out / EXAMPLES, ExampleRecord)
        kept = {example.id for example in texts}
        done = {one.id: one for one in log if not one.detail.startswith(f"{Outcome.ERROR}:")}
        cost = Cost(judge, [one for one in chosen if one.id not in done], settings.ablation, count)
        if cost.prompts:
            _logger.info("%s", cost)
        with log, texts:
            for number, comparison in enumerate(chosen):
                progress("attribute", number, len(chosen))
                if comparison.id not in done:
                    told = cost.progress(comparison.id, progress)
                    done[comparison.id] = _attributed(judge, comparison, settings.ablation, count, told)
                    log.append(done[comparison.id])
                if comparison.id not in kept:
                    texts.append(example_of(comparison))
        progress("attribute", len(chosen), len(chosen))
        records = [done[comparison.id] for comparison in chosen]
        summary = summary_of(records, judge.name, bench.name, settings.ablation.seed)
        folder.write_summary(summary.to_dict())
    return records, summary, {comparison.id: comparison for comparison in chosen}


def _evaluation(settings: AttributionSettings) -> Evaluation:
    """The evaluation whose model and comparisons these are."""
    shared = Evaluation.model_fields.keys() & AttributionSettings.model_fields.keys()
    return Evaluation(**{name: getattr(settings, name) for name in shared})


def _counter(settings: AttributionSettings) -> Callable[[str], int]:
    """Counts tokens as the model does, where its tokenizer is known."""
    own = own_tokenizer(settings.model, settings.remote)
    return approximate_tokens if own is None else load_tokenizer(own.place).count


def _chosen(bench: LoadedBenchmark, settings: AttributionSettings) -> list[Comparison]:
    wanted, limit = {*settings.items}, settings.source.limit
    found = [one for one in bench.comparisons if not wanted or one.id in wanted]
    if missing := wanted - {one.id for one in found}:
        if limit is not None:
            raise ConfigError(
                f"--limit {limit} took no comparison '{min(missing)}' of '{bench.name}'; leave --limit away"
            )
        raise ConfigError(
            f"no comparison '{min(missing)}' in '{bench.name}'; take an id of its rows, or of items.csv in a run"
        )
    return found


def _check_texts(out: Path, bench: str, chosen: Sequence[Comparison]) -> None:
    """Refuses what was explained before of other texts."""
    digests = {one.id: _digest(one) for one in chosen}
    logs: tuple[Log[AttributionRecord] | Log[AttentionRecord], ...] = (
        Log(out / ATTRIBUTIONS, AttributionRecord),
        Log(out / ATTENTION, AttentionRecord),
    )
    for log in logs:
        for record in log:
            if digests.get(record.id, record.digest) != record.digest:
                raise DataError(
                    f"{bench}: the text of '{record.id}' has changed since it was explained, by {log.path.name}; "
                    "take another --out"
                )


def _digest(comparison: Comparison) -> str:
    return text_digest(comparison.prompt, comparison.responses, comparison.tools)


def _attributed(
    model: RewardModel,
    comparison: Comparison,
    settings: AblationSettings,
    count: Callable[[str], int],
    told: Callable[[int], None],
) -> AttributionRecord:
    """Explains what a model prefers in a comparison; weights are compared with the evidence as it speaks for gold."""
    query = query_of(comparison, range(len(comparison.responses)))
    digest = _digest(comparison)
    whole = model.judge_in_all_orders([query])[0]
    values = points(whole)
    if not values:
        why = f"{whole.outcome}: {whole.detail}"
        found = AttributionRecord(comparison.id, Target(0, 1), detail=why, tokens_computed=0, prompts=0)
        return replace(found, group=comparison.group, digest=digest)
    target = target_of(values, comparison.ranks)
    found = attribute(model, query, target, settings, count, told)
    right = None if _tied(target, values) else _right(target, comparison.ranks)
    length, depth = length_and_depth(comparison)
    spans = [one.span for one in found.sentences]
    for_gold = np.array([one.weight for one in found.sentences]) * (-1 if right is False else 1)
    evidence = evidence_found(spans, for_gold, comparison.evidence)
    return replace(
        found,
        group=comparison.group,
        length=length,
        depth=depth,
        right=right,
        evidence=evidence,
        digest=digest,
    )


def _tied(target: Target, values: Sequence[float]) -> bool:
    return target.against is not None and values[target.response] == values[target.against]


def _right(target: Target, ranks: Sequence[int] | None) -> bool | None:
    """Whether the preferred response is a best one; None where gold does not tell."""
    if ranks is None or len({*ranks}) == 1:
        return None
    return ranks[target.response] == min(ranks)
