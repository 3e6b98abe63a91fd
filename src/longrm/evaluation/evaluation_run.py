"""An evaluation as a user asks for it: settings in, a run folder out."""

from pathlib import Path

from longrm import benchmarks, reward_models
from longrm.benchmarks import BenchmarkSource, Leval, LoadedBenchmark, OwnTokenizer, Probe
from longrm.clients.remote_settings import ModelName, Remote, refuse_server, servers_of
from longrm.config import Config
from longrm.errors import ConfigError
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.rules import check_rule
from longrm.evaluation.runner import Shard, ShardName, evaluate
from longrm.evaluation.summaries import EvaluationSummary
from longrm.reward_models import Compress, JudgeSettings, RewardModel
from longrm.runs.folder import CACHE, RunFolder, claimed_once
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup


class Evaluation(Config):
    """Settings of `longrm evaluate`.

    Attributes:
        model: A folder or Hub id, `openai:URL#NAME`, `longrm:URL`, `likelihood:MODEL`,
            `likelihood:MODEL#REFERENCE`, `tokens:MODEL`, `ensemble:mean-rank:MODEL+MODEL`, `baseline:NAME`,
            `compress:MODEL` or `simulated:RATE`.
        recorded: Judgments written earlier, which are scored again, in place of a model.
        bench: `probe`, or NAME:PATH with `long-rewardbench`, `rewardbench`, `rewardbench-2`, `judgebench`, `rm-bench`,
            `ppe`, `memrewardbench`, `if-rewardbench`, `long-form-rewardbench`, `plan-rewardbench`, `leval` or `file`.
        source: How a benchmark's files are read.
        probe: What the probe asks.
        leval: How answers become comparisons in `leval`.
        judge: How a model is asked.
        remote: How a model behind HTTP is reached.
        compress: What `compress:MODEL` leaves of a context.
        judging: Seeds, orders, votes, examples and statistics.
        shard: The part of the comparisons that this run judges, such as "2/4"; by default all.
    """

    model: ModelName | None = None
    recorded: str | None = None
    bench: str
    source: BenchmarkSource = BenchmarkSource()
    probe: Probe = Probe()
    leval: Leval = Leval()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    compress: Compress = Compress()
    judging: JudgingSettings = JudgingSettings()
    shard: ShardName | None = None


def run_evaluation(
    settings: Evaluation,
    out: Path,
    *,
    bench: LoadedBenchmark | None = None,
    model: RewardModel | None = None,
    place: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> EvaluationSummary:
    """Evaluates a reward model on a benchmark into the run folder `out`, continuing what is there.

    Args:
        settings: What to evaluate, on what.
        out: The run folder.
        bench: The benchmark, where the caller has loaded it already.
        model: The reward model, where the caller has it in memory; the settings hold its name.
        place: This process among those that share the comparisons; alone by default.
        progress: Called after every batch.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ConfigError: Neither a model nor recorded judgments are given, or both are, or several processes would ask one
            server.
    """
    place = place or WorkerGroup()
    if (settings.model is None) == (settings.recorded is None):
        raise ConfigError(
            "an evaluation needs a model or recorded judgments: give either --model or --recorded"
        )
    if place.count > 1:
        refuse_server(settings.model, "torchrun")
    if bench is None:
        bench = load_benchmark(settings)
    if bench.rule:
        check_rule(bench.rule)
    with claimed_once(RunFolder(out, "evaluation", settings), place) as folder:
        judge = model or load_judge(settings, bench, out)
        if place.is_main_process:
            folder.record(model=judge.provenance, bench=bench.provenance)
        return evaluate(
            bench,
            judge,
            folder,
            judging=settings.judging,
            shard=Shard.parse(settings.shard) if settings.shard is not None else None,
            place=place,
            progress=progress,
        )


def load_benchmark(settings: Evaluation) -> LoadedBenchmark:
    """The benchmark of an evaluation; by default a probe measures lengths in its model's tokens.

    Raises:
        ConfigError: A probe has lengths that its model cannot read.
    """
    if settings.bench == "probe":
        _check_lengths(settings)
    return benchmarks.load(
        settings.bench,
        source=settings.source,
        probe=settings.probe,
        leval=settings.leval,
        own=lambda: own_tokenizer(settings.model, settings.remote),
    )


def tokens_read(settings: Evaluation) -> int | None:
    """The most tokens that the models on this machine read, by their configs and `judge.max_length`; None if unknown.

    Raises:
        ModelError: There is no such model, or its config cannot be read.
    """
    from longrm.modeling.folders import positions_of

    names = reward_models.local_models(settings.model or "")
    limits = (settings.judge.max_length, *map(positions_of, names))
    return min((limit for limit in limits if limit is not None), default=None)


def _check_lengths(settings: Evaluation) -> None:
    """Refuses lengths that leave no room for a response, where lengths count in the model's own tokens."""
    name, probe = settings.model or "", settings.probe
    models = reward_models.local_models(name)
    # With a cut, or chunks of the context alone, the model reads less than the probe's length.
    shortened = settings.judge.cut != "refuse" or "compress:" in name
    if not models or shortened or probe.tokenizer not in (None, *models):
        return
    window = tokens_read(settings)
    lengths = sorted({length for cell in probe.cells for length in cell.lengths})
    too_long = [f"{length:,}" for length in lengths if window is not None and length >= window]
    if too_long:
        raise ConfigError(
            f"{name} reads {window:,} tokens, prompt and response together; lengths {', '.join(too_long)} do not fit: "
            "lower --lengths (probe.cells), or name a judge.cut"
        )


def own_tokenizer(model: str | None, remote: Remote) -> OwnTokenizer | None:
    """The tokenizer of a reward model, or of the first one that its name holds.

    Of a model behind HTTP it is `remote.tokenizer`. None where there is no model, or none whose tokenizer is known.

    Raises:
        ConfigError: An unknown kind of model, or a name that lacks a part.
        ModelError: There is no such model.
    """
    names = reward_models.local_models(model) if model is not None else []
    if names:
        from longrm.modeling.folders import find_model_folders

        return OwnTokenizer(names[0], str(find_model_folders(names[0]).tokenizer))
    if model is not None and remote.tokenizer is not None and servers_of(model):
        return OwnTokenizer(remote.tokenizer, remote.tokenizer)
    return None


def load_judge(settings: Evaluation, bench: LoadedBenchmark, out: Path) -> RewardModel:
    """What judges in an evaluation; a model behind HTTP keeps its answers in the run folder.

    Raises:
        ConfigError: As `longrm.reward_models.load`.
        ModelError: Likewise.
    """
    if settings.recorded is not None:
        from longrm.reward_models.recorded import RecordedRewardModel

        return RecordedRewardModel.load(Path(settings.recorded))
    assert settings.model is not None, "checked before"
    remote = settings.remote
    if remote.cache is None:  # what was paid for once is not asked for again when the run continues
        remote = remote.model_copy(update={"cache": str(out / CACHE)})
    return reward_models.load(
        settings.model,
        judge=settings.judge,
        remote=remote,
        compress=settings.compress,
        key=bench.comparisons,
    )
