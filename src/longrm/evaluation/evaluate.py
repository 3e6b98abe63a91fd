"""Evaluates a reward model on a benchmark: settings in, a run folder out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longrm import benchmarks, reward_models
from longrm.benchmarks import BenchmarkName, BenchmarkSource, LoadedBenchmark, OwnTokenizer, Probe
from longrm.benchmarks.summhay import recorded_judges
from longrm.clients.remote_settings import ModelName, Remote, refuse_server, servers_of
from longrm.column_names import Columns
from longrm.config import Config
from longrm.data.memory import Data, named
from longrm.errors import ConfigError, DataError
from longrm.evaluation.criteria import summarize_criteria
from longrm.evaluation.judge import LOGS, ShardName, finish, judge_comparisons
from longrm.evaluation.read_run import Run, run_folder
from longrm.evaluation.rules import RULES
from longrm.evaluation.steps import LOGS as STEP_LOGS
from longrm.evaluation.steps import StepSettings, finish_steps, judge_trajectories
from longrm.evaluation.summary_schema import CriteriaSummary, EvaluationSummary, StepSummary, load_summary
from longrm.evaluation.table import Bootstrap
from longrm.evaluation.trials import JudgingSettings
from longrm.reading import short_name
from longrm.reward_models import JudgeSettings, Model, ModelSettings, RewardModel, loaded, name_of
from longrm.reward_models.recorded_steps import RecordedSteps
from longrm.runs.folder import CACHE, RunFolder, claimed_once
from longrm.runs.progress import Progress, no_progress, progress_bars
from longrm.runs.resumable import ResumableRun, Shard
from longrm.runs.workers import WorkerGroup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class JudgedBenchmark(Config):
    """A benchmark and the model that judges it.

    Attributes:
        model: A folder or Hub id, `openai:URL#NAME`, `longrm:URL`, `likelihood:MODEL`,
            `likelihood:MODEL#REFERENCE`, `tokens:MODEL`, `ensemble:mean-rank:MODEL+MODEL`, `baseline:NAME`,
            `compress:MODEL` or `simulated:RATE`.
        bench: `probe`, the path of your own data, or NAME:PATH with `long-rewardbench`, `rewardbench`, `rewardbench-2`,
            `judgebench`, `rm-bench`, `rmb`, `ppe`, `judgelrm`, `memrewardbench`, `if-rewardbench`,
            `long-form-rewardbench`, `fc-rewardbench`, `plan-rewardbench`, `squality`, `qa-feedback`, `tau-bench`,
            `leval` or `file`; of trajectories, `agentprocessbench`, `who-and-when` or `tau-bench-trajectories`; of
            recorded labels of criteria, `summhay`.
        source: How to read a benchmark's files.
        probe: Lengths, depths and tasks of a probe.
        model_args: How to load a model, and what it reads.
        judge: How to prompt a model.
        remote: How to reach a model behind HTTP.
    """

    model: ModelName | None = None
    bench: BenchmarkName
    source: BenchmarkSource = BenchmarkSource()
    probe: Probe = Probe()
    model_args: ModelSettings = ModelSettings()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()


class Evaluation(JudgedBenchmark):
    """Settings of `longrm evaluate`.

    Attributes:
        recorded: A file of earlier judgments to score again, instead of a model.
        judging: Seeds, orders, votes, examples and statistics.
        steps: How scores of steps are read, for trajectories.
        shard: The part of the comparisons to judge, such as "2/4"; by default all.
    """

    recorded: str | None = None
    judging: JudgingSettings = JudgingSettings()
    steps: StepSettings = StepSettings()
    shard: ShardName | None = None


def evaluate(
    model: Model,
    data: Data,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | str | None" = None,
    columns: Columns | None = None,
) -> Run:
    """Evaluates a reward model on comparisons into a run folder, or continues the run there; returns the run.

    Args:
        model: A name as for `longrm evaluate --model`, a loaded model, or a transformers model.
        data: Your own comparisons: a path, a `datasets.Dataset`, a `DataFrame` or a list of dicts. Or a benchmark:
            `probe`, or NAME:PATH, as in `judgebench:FOLDER`. A path that begins with the name of one needs `file:`.
        out: The run folder; by default one that exists as long as the run that is returned.
        settings: Settings of `longrm evaluate` by dotted key, such as {"judging.votes": 5}.
        tokenizer: Of a transformers model; see `longrm.load`.
        columns: Names of columns in the data, as for `longrm.data.read`.

    Raises:
        LongRMError: With the message that `longrm evaluate` prints.
    """
    rows = data if isinstance(data, str) else named(data)  # kept until the run is done
    given = {"model": name_of(model), "bench": str(rows), **({"source.columns": columns} if columns else {})}
    resolved, judge = loaded(model, tokenizer, Evaluation.resolve(overrides={**given, **(settings or {})}))
    folder, kept = run_folder(out)
    with progress_bars() as progress:
        run_evaluation(resolved, folder, model=judge, progress=progress)
    return Run(folder, None if kept is None else short_name(resolved.model or ""), kept=kept)


def run_evaluation(
    settings: Evaluation,
    out: Path,
    *,
    bench: LoadedBenchmark | None = None,
    model: RewardModel | None = None,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> EvaluationSummary | StepSummary | CriteriaSummary:
    """Evaluates a reward model on a benchmark into the run folder `out`, or continues the run there.

    Args:
        settings: The model, the benchmark and how to judge.
        out: The run folder.
        bench: The benchmark, if the caller has already loaded it.
        model: The reward model, if the caller has it in memory; the settings contain its name.
        workers: This process among those that share the comparisons; alone by default.
        progress: Called after every batch.
    """
    workers = workers or WorkerGroup()
    if settings.model is not None and settings.recorded is not None:
        raise ConfigError("--model and --recorded exclude each other")
    if settings.model is None and settings.recorded is None:
        raise ConfigError(
            "an evaluation needs --model, or --recorded for scores or labels that a file already has"
        )
    if workers.count > 1:
        refuse_server(settings.model, "torchrun")
    bench = bench or load_benchmark(settings, model)
    if bench.trajectories is not None:
        return _evaluate_steps(settings, out, bench, model, workers, progress)
    if bench.criteria is not None:
        return _evaluate_criteria(settings, out, bench, workers)
    assert not bench.rule or bench.rule in RULES, f"no scoring rule {bench.rule!r}"
    shard = Shard.parse(settings.shard) if settings.shard is not None else None
    if model is None and settings.recorded is not None:
        from longrm.reward_models.recorded import RecordedRewardModel

        model = RecordedRewardModel(Path(settings.recorded))
        if not any(model.orders(one.id) for one in bench.comparisons):  # before there is a run folder
            raise DataError(f"no comparison of '{bench.name}' is in the record {settings.recorded}")
    with claimed_once(RunFolder(out, "evaluation", settings), workers) as folder:
        judge = model or load_judge(settings, bench, out)
        if workers.is_main_process:
            folder.record(model=judge.provenance, bench=bench.provenance)
        run = ResumableRun(out, LOGS, workers)
        judged = judge_comparisons(bench, judge, run, settings.judging, shard, progress)
        if workers.is_main_process:
            finish(bench, judge, folder, run, settings.judging, shard, *judged)
        workers.wait()  # for the summary
        summary = load_summary(out)
        assert isinstance(summary, EvaluationSummary), "this run wrote it"
        return summary


def _evaluate_steps(
    settings: Evaluation,
    out: Path,
    bench: LoadedBenchmark,
    model: RewardModel | None,
    workers: WorkerGroup,
    progress: Progress,
) -> StepSummary:
    """The same for a benchmark of trajectories."""
    assert bench.trajectories is not None, "the caller has checked it"
    judging, plain = settings.judging, JudgingSettings()
    for name in ("votes", "context_check", "padding_check"):
        if getattr(judging, name) != getattr(plain, name):
            raise ConfigError(f"judging.{name} is not supported with trajectories")
    if settings.shard is not None:
        raise ConfigError("--shard is not supported with trajectories")
    recorded = None if settings.recorded is None else RecordedSteps(Path(settings.recorded))
    if recorded is not None and not any(one.id in recorded for one in bench.trajectories):
        raise DataError(f"no trajectory of '{bench.name}' is in the record {settings.recorded}")
    with claimed_once(RunFolder(out, "step evaluation", settings), workers) as folder:
        if settings.judge.format is None and settings.judge.name is None:
            settings = settings.model_copy(
                update={"judge": settings.judge.model_copy(update={"format": "steps"})}
            )
        judge = recorded or model or load_judge(settings, bench, out)
        if workers.is_main_process:
            folder.record(model=judge.provenance, bench=bench.provenance)
        run = ResumableRun(out, STEP_LOGS, workers)
        order = judge_trajectories(bench, judge, run, settings.source.tokenizer, progress)
        if workers.is_main_process:
            drawn: Bootstrap = {"seed": judging.seed, "resamples": judging.resamples}
            finish_steps(bench, judge, folder, run, settings.steps, order, judging.accuracy_threshold, drawn)
        workers.wait()  # for the summary
        summary = load_summary(out)
        assert isinstance(summary, StepSummary), "this run wrote it"
        return summary


def _evaluate_criteria(
    settings: Evaluation, out: Path, bench: LoadedBenchmark, workers: WorkerGroup
) -> CriteriaSummary:
    """Compares recorded labels of criteria with those of people; it takes seconds, so that nothing is resumed."""
    if settings.recorded is None or settings.shard is not None:
        raise ConfigError(
            f"{bench.name} evaluates the labels of --recorded PATH, without --model and --shard"
        )
    judges = recorded_judges(Path(settings.recorded))
    if not any(key in labels for labels in judges.values() for key in bench.criteria or ()):
        raise DataError(f"no criterion of '{bench.name}' is in the record {settings.recorded}")
    drawn: Bootstrap = {"seed": settings.judging.seed, "resamples": settings.judging.resamples}
    summary = summarize_criteria(bench, settings.recorded, judges, **drawn)
    with claimed_once(RunFolder(out, "criteria evaluation", settings), workers) as folder:
        if workers.is_main_process:
            folder.record(bench=bench.provenance)
            folder.write_summary(summary.to_dict())
        workers.wait()  # for the summary
    return summary


def load_benchmark(settings: JudgedBenchmark, model: RewardModel | None = None) -> LoadedBenchmark:
    """The benchmark of an evaluation; a probe measures lengths in tokens of its model by default.

    `model` is the reward model, if the caller has it in memory, here and below.

    Raises:
        ConfigError: A probe has lengths that leave its model no room for a response.
    """
    name, probe = settings.model or "", settings.probe
    models = reward_models.local_models(name) if settings.bench == "probe" else []
    # With a cut context, or chunks of it, the model reads less than the probe's length.
    shortened = settings.model_args.cut != "refuse" or "compress:" in name
    if models and not shortened and probe.tokenizer in (None, *models):
        window = tokens_read(settings, model)
        lengths = sorted({length for cell in probe.cells for length in cell.lengths})
        too_long = [f"{length:,}" for length in lengths if window is not None and length >= window]
        if too_long:
            raise ConfigError(
                f"{name} reads {window:,} tokens of prompt and response; lengths {', '.join(too_long)} do not fit: "
                "lower --lengths (probe.cells) or set model_args.cut"
            )
    return benchmarks.load(
        settings.bench,
        source=settings.source,
        probe=probe,
        own=lambda: own_tokenizer(settings.model, settings.remote, model),
    )


def tokens_read(settings: JudgedBenchmark, model: RewardModel | None = None) -> int | None:
    """The context window of the local models, by their configs and `model_args.max_length`; None if unknown."""
    if model is not None:
        return model.limit
    from longrm.modeling.folders import positions_of

    names = reward_models.local_models(settings.model or "")
    limits = (settings.model_args.max_length, *map(positions_of, names))
    return min((limit for limit in limits if limit is not None), default=None)


def own_tokenizer(model: str | None, remote: Remote, judge: RewardModel | None = None) -> OwnTokenizer | None:
    """The tokenizer of a reward model (of the first one in an ensemble); None if there is none, or it is unknown.

    For a model behind HTTP it is `remote.tokenizer`.
    """
    names = reward_models.local_models(model) if model is not None else []
    if names and judge is not None and judge.tokenizer is not None:
        return OwnTokenizer(names[0], judge.tokenizer)
    if names:
        from longrm.modeling.folders import find_model_folders

        return OwnTokenizer(names[0], str(find_model_folders(names[0]).tokenizer))
    if model is not None and remote.tokenizer is not None and servers_of(model):
        return OwnTokenizer(remote.tokenizer, remote.tokenizer)
    return None


def load_judge(settings: JudgedBenchmark, bench: LoadedBenchmark, out: Path) -> RewardModel:
    """Loads the reward model; the answers of a model behind HTTP are cached in the run folder."""
    assert settings.model is not None, "run_evaluation checks it"
    return reward_models.load(
        settings.model,
        model_args=settings.model_args,
        judge=settings.judge,
        remote=settings.remote.cached_in(out / CACHE),  # a continued run does not pay twice
        gold=bench.comparisons,
    )
