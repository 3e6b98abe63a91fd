"""The whole package on a laptop: reveals a tiny reward model's context boundary, moves it, and shows both.

One checkpoint, trained on short contexts, is trained further twice, on data that differs in one thing: more short
contexts, or contexts that grow from short to long. A generative judge is trained too, by imitation of judgments, short
and then long, and by preference for judgments of consensus.

Torch is imported in the worker processes only, so that they start sooner.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from longrm import report
from longrm.benchmarks import LoadedBenchmark, Probe, ProbeCell
from longrm.benchmarks.probe import comparisons
from longrm.config import Config
from longrm.data.training_rows import context_digest
from longrm.errors import require
from longrm.evaluation.estimates import paired_difference
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1
from longrm.evaluation.summary_schema import read_summary
from longrm.evaluation.trials import JudgingSettings
from longrm.report.formatting import listed, percent, points
from longrm.report.load import AT_CHANCE, STAGES, STEPS
from longrm.reward_models import JudgeSettings
from longrm.runs.folder import SCHEMA_VERSION, RunFolder
from longrm.runs.judgments import Judgments
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import ContextRecord, Estimate, JudgmentRecord, StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.world_judgments import TEMPLATES
from longrm.types import Comparison
from longrm.worlds.words_tokenizer import load_tokenizer

RECIPES = Path(str(files("longrm") / "recipes" / "demo"))

_EVALUATION_SEED = 1_000_000  # no training uses a seed from here on
_SHORT_LENGTHS, _LONG_LENGTHS = (128, 256, 512, 1024), (2048, 4096)
_TOKENIZER = "words"  # of all stages
_MAX_TOKENS = 16  # a judgment has ten
_MIN_CONTEXTS = 10  # per length; an interval from fewer could not be trusted


class DemoSettings(Config):
    """Settings of `longrm demo`.

    Attributes:
        seed: Seed of the training data, the evaluation data and the initial models.
        generative: Also train a generative judge, in place of the training from an unstructured start.
    """

    seed: int = 0
    generative: bool = False


class DemoTraining(NamedTuple):
    """A training of a demo."""

    stage: str  # the stage that it makes
    recipe: str
    start: str | None  # the stage that it starts from
    data_seed: int  # added to 10 times the demo's seed, so no two trainings of a demo read the same contexts


UNSTRUCTURED = DemoTraining("unstructured", "short", None, 1)
DISCRIMINATIVE = (
    DemoTraining("short", "short", None, 0),
    UNSTRUCTURED,
    DemoTraining("long", "long", "short", 2),
    DemoTraining("control", "control", "short", 3),
)
GENERATIVE = (
    DemoTraining("generative_base", "generative_base", None, 6),
    DemoTraining("generative_short", "generative_short", "generative_base", 7),
    DemoTraining("generative_long", "generative_long", "generative_short", 8),
    DemoTraining("generative_logo", "generative_logo", "generative_long", 9),
    DemoTraining("generative_long_alone", "generative_long_alone", "generative_short", 10),
)
RESCALED = "generative_rescale_only"
"""A stage without training: `generative_short` with the rotary base of `generative_long`, which separates the two."""
UNRELATED = {"unrelated_context": "long", "judge_unrelated_context": "generative_logo"}
"""Controls: the stage that is evaluated on contexts that have nothing to do with the answers."""
CONTRASTS = (
    ("long", "control"),
    ("generative_long", "generative_short"),
    ("generative_long", "generative_long_alone"),
    ("generative_logo", "generative_long"),
)
START_NOTES = {
    "untrained": "The untrained model is random except for its attention, which starts with heads that attend to the "
    "previous few tokens and heads that match equal content.",
    "unstructured": "The row 'unstructured' is the same training from entirely random weights.",
    "generative_logo": "The generative judge starts in the same way, in four layers whose heads return what they copy. "
    "It first learns to write the record that answers a question, then to judge by it: 'Corimo: keeps bucket. [[A]]'. "
    "LOGO prefers the judgment of most of seven simulated judges, each of which errs in 15 of 100 cases, over those of "
    "the others.",
}
"""Notes of the summary on how the models start, for stages that are evaluated."""


def run_demo(settings: DemoSettings, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Trains, evaluates and reports; a killed demo resumes.

    `out` receives a run folder for every training and evaluation, `summary.json` and `report.html`. The summary, which
    is returned, has the stages with their evaluations, the contrasts, the controls, and the seconds of every task, with
    the wall-clock seconds of this call as `total`.
    """
    require("torch", "transformers", "altair", "vl_convert", user="the demo")
    began = time.perf_counter()
    with RunFolder(out, "demo", settings) as folder:
        seconds = run_tasks(tasks_of(settings, out), progress)
        summary = summarize_demo(settings, out, seconds)
        summary["seconds"]["total"] = round(time.perf_counter() - began, 3)
        folder.write_summary(summary)
        report.build([out], out / "report.html")
    return summary


# --- Trainings -------------------------------------------------------------------------------------------------------


def trainings_of(settings: DemoSettings) -> list[DemoTraining]:
    """The trainings of a demo. The longest chain comes first, so that nothing waits for it at the end."""
    if not settings.generative:
        return list(DISCRIMINATIVE)
    return [*GENERATIVE, *(training for training in DISCRIMINATIVE if training != UNSTRUCTURED)]


def stages_of(settings: DemoSettings) -> list[str]:
    """The stages that are evaluated, in reading order; not the judge's base, which writes no verdicts yet."""
    stages = {training.stage for training in trainings_of(settings)} - {"generative_base"} | {"untrained"}
    if settings.generative:
        stages.add(RESCALED)
    return [stage for stage in STAGES if stage in stages]


def is_generative(stage: str) -> bool:
    """Whether the model of a stage is generative."""
    return stage.startswith("generative_")


def model_of(stage: str, out: Path) -> Path:
    """The folder of the model of a stage."""
    if stage in ("untrained", RESCALED):
        return (out / "models" / stage).resolve()
    return (out / "training" / stage / "model").resolve()


def recipe_of(training: DemoTraining, seed: int, out: Path) -> TrainingSettings:
    """The settings of a training."""
    changes: dict[str, Any] = {"seed": seed, "data.world.seed": 10 * seed + training.data_seed}
    if training.start is not None:
        changes["model.path"] = str(model_of(training.start, out))
    if training == UNSTRUCTURED:
        changes |= {"model.new.structured": False, "plateau_steps": 0}  # it stays at chance
    return TrainingSettings.resolve(RECIPES / f"{training.recipe}.toml", changes)


def train_stage(training: DemoTraining, settings: DemoSettings, out: Path) -> None:
    """Trains the model of a stage; the first discriminative training also saves its untrained model."""
    from longrm.modeling.saving import save
    from longrm.training.initial_model import initial_model
    from longrm.training.train import train

    recipe = recipe_of(training, settings.seed, out)
    if training.stage == "short" and not model_of("untrained", out).exists():
        save(initial_model(recipe, "scorer"), model_of("untrained", out))
    train(recipe, out / "training" / training.stage)


def rescale(out: Path) -> None:
    """Saves the model of the stage that differs from another one only in its rotary base."""
    from longrm.modeling.loading import load_language_model, rescale_rope
    from longrm.modeling.saving import save

    if model_of(RESCALED, out).exists():
        return
    model = load_language_model(model_of("generative_short", out))
    theta = TrainingSettings.resolve(
        RECIPES / "generative_long.toml", {"model.path": "unused"}
    ).model.rope_theta
    assert theta is not None, "the recipe has it"
    rescale_rope(model.model, theta)
    save(model, model_of(RESCALED, out))


# --- Evaluations -----------------------------------------------------------------------------------------------------


def evaluations_of(stage: str) -> tuple[str, ...]:
    """The evaluations of a stage; the judges of the recipe also rate single responses."""
    if not is_generative(stage):
        return ("pairs", "best_of_4")
    rates = stage in ("generative_short", "generative_long", "generative_logo")
    return ("pairs", "pointwise") if rates else ("pairs",)


def probes(settings: DemoSettings) -> Mapping[tuple[bool, str], Probe]:
    """The evaluations, by whether the model is generative and by name.

    Long contexts take time to read, so there are fewer of them, each with more comparisons. So does generation: a
    generative judge gets fewer comparisons, and scalar models that are compared with it get half of theirs.
    """
    probe = partial(_probe, settings)
    divisor = 2 if settings.generative else 1
    return {
        (False, "pairs"): probe((_SHORT_LENGTHS, 32, 16 // divisor), (_LONG_LENGTHS, 16, 32 // divisor)),
        (False, "best_of_4"): probe(
            (_SHORT_LENGTHS, 16, 8 // divisor), (_LONG_LENGTHS, 12, 10 // divisor), responses=4
        ),
        (True, "pairs"): probe((_SHORT_LENGTHS, 32, 2), (_LONG_LENGTHS, 8, 8)),
        (True, "pointwise"): probe((_SHORT_LENGTHS, 16, 2), (_LONG_LENGTHS, 4, 8)),
    }


def _probe(settings: DemoSettings, *cells: tuple[tuple[int, ...], int, int], **options: Any) -> Probe:
    """A probe of cells, given as their lengths, contexts per length and comparisons per context."""
    return Probe(
        seed=_EVALUATION_SEED + settings.seed,
        tokenizer=_TOKENIZER,
        cells=tuple(ProbeCell(lengths=lengths, groups=groups, per_group=n) for lengths, groups, n in cells),
        **options,
    )


def probe_of(stage: str, evaluation: str, settings: DemoSettings) -> Probe:
    """The contexts and comparisons of an evaluation of a stage."""
    probe = probes(settings)[is_generative(stage), evaluation]
    if stage not in AT_CHANCE:
        return probe
    # They get the first third of the contexts: their intervals may be wider.
    cells = [
        cell.model_copy(update={"groups": min(cell.groups, max(_MIN_CONTEXTS, cell.groups // 3))})
        for cell in probe.cells
    ]
    return probe.model_copy(update={"cells": tuple(cells)})


@lru_cache
def _comparisons(probe: Probe) -> list[Comparison]:
    """The comparisons of an evaluation, drawn once per process."""
    return list(comparisons(probe))


def evaluate_stage(stage: str, evaluation: str, probe: Probe, out: Path, folder: Path) -> None:
    """Runs one evaluation of one stage."""
    form = "pointwise" if evaluation == "pointwise" else "pairwise"
    judge = JudgeSettings(format=form, template=str(TEMPLATES[form]), max_tokens=_MAX_TOKENS, retries=0)
    # In these worlds the words of the question lead to the evidence; one baseline is enough to show that.
    baselines = ("overlap",) if (stage, evaluation) == ("long", "pairs") and not probe.unrelated else ()
    settings = Evaluation(
        model=str(model_of(stage, out)),
        bench="probe",
        probe=probe,
        judge=judge if is_generative(stage) else JudgeSettings(),
        judging=JudgingSettings(baselines=baselines),
    )
    drawn = _comparisons(probe)
    bench = LoadedBenchmark(
        "probe", drawn, len(drawn), measured=probe.measured(_TOKENIZER, load_tokenizer(_TOKENIZER))
    )
    run_evaluation(settings, folder, bench=bench)


def assert_unseen(settings: DemoSettings, out: Path) -> None:
    """Fails if a context of the evaluation was trained on."""
    logs = (out / "training").glob("*/contexts.jsonl")
    seen = {digest for log in logs for record in Log(log, ContextRecord) for digest in record.digests}
    for probe in probes(settings).values():
        for comparison in _comparisons(probe):
            assert context_digest(comparison) not in seen, f"{comparison.id} was trained on"


# --- Summary ---------------------------------------------------------------------------------------------------------


def summarize_demo(settings: DemoSettings, out: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary of all stages in the folder."""
    stages, summaries = stages_of(settings), {}
    for stage in stages:
        first, *others = evaluations_of(stage)
        summaries[stage] = read_summary(out / "stages" / stage / first) | {
            evaluation: read_summary(out / "stages" / stage / evaluation) for evaluation in others
        }
    notes = {"start": " ".join(note for stage, note in START_NOTES.items() if stage in stages)}
    if trade_off := _trade_off(out):
        notes["trade_off"] = trade_off
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "demo",
        "seed": settings.seed,
        "complete": all(summary["complete"] for summary in summaries.values()),
        "stages": summaries,
        "contrasts": {
            f"{one}_vs_{other}": {
                exam: {length: asdict(gap) for length, gap in _contrast(out, one, other, evaluation).items()}
                for exam, evaluation in (("by_length", "pairs"), ("best_of_4", "best_of_4"))
                if evaluation in evaluations_of(one)
            }
            for one, other in CONTRASTS
            if one in stages
        },
        "controls": {
            name: read_summary(out / "controls" / name)["metrics"]["overall"]["pair_accuracy"]
            for name, stage in UNRELATED.items()
            if stage in stages
        },
        "notes": notes,
        "seconds": dict(seconds),
    }


def _trade_off(out: Path) -> str:
    """Where `long` is worse than its control in best of 4, and why; empty if it is nowhere."""
    gaps = _contrast(out, "long", "control", "best_of_4")
    worse = [
        f"{points(gap.value)} at {int(length):,}"
        for length, gap in gaps.items()
        if gap.high is not None and gap.high < 0
    ]
    if not worse:
        return ""
    # Evidence in experiments/README.md: a model that ranks four responses well before contexts grow does so after it.
    shortest = min(gaps, key=int)
    by_length = {
        stage: read_summary(out / "stages" / stage / "best_of_4")["metrics"]["by_length"]
        for stage in ("short", "control")
    }
    right = {stage: percent(found[shortest][TOP1.name]["value"]) for stage, found in by_length.items()}
    long, control = (
        [step.length for step in Log(out / "training" / stage / STEPS, StepRecord)]
        for stage in ("long", "control")
    )
    practiced = sum(length <= max(control) for length in long)
    return (
        f"In best of 4, long is worse than control, in points: {listed(worse)} tokens (95% intervals below 0). Both "
        f"start from short, which is right in {right['short']} at {shortest} tokens. There control reaches "
        f"{right['control']}, and long spends only {practiced} of its {len(long)} steps on contexts that short."
    )


def _contrast(out: Path, stage: str, other: str, evaluation: str) -> dict[str, Estimate]:
    """The paired difference of two stages' accuracy, by length."""
    metric = (TOP1 if evaluation == "best_of_4" else PAIR_ACCURACY).name
    ours, theirs = (list(Judgments(out / "stages" / name / evaluation)) for name in (stage, other))

    def at(length: int, records: Sequence[JudgmentRecord]) -> list[JudgmentRecord]:
        return [record for record in records if record.length == length]

    lengths = sorted({record.length for record in ours if record.length is not None})
    return {
        str(length): paired_difference(at(length, ours), at(length, theirs), metric) for length in lengths
    }


# --- Tasks -----------------------------------------------------------------------------------------------------------


class DemoTask(NamedTuple):
    """A function that a worker process calls, once the tasks that are named in `after` are finished."""

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    after: tuple[str, ...] = ()


def tasks_of(settings: DemoSettings, out: Path) -> list[DemoTask]:
    """All tasks, with their dependencies."""
    trainings, stages = trainings_of(settings), stages_of(settings)
    made_by = {training.stage: f"train {training.stage}" for training in trainings}
    tasks = []
    for training in trainings:
        after = (made_by[training.start],) if training.start else ()
        tasks.append(DemoTask(made_by[training.stage], train_stage, (training, settings, out), after))
    tasks.append(DemoTask("check contexts", assert_unseen, (settings, out), tuple(made_by.values())))
    made_by["untrained"] = made_by["short"]
    if RESCALED in stages:
        made_by[RESCALED] = "rescale the judge"
        tasks.append(DemoTask(made_by[RESCALED], rescale, (out,), (made_by["generative_short"],)))
    for stage in stages:
        for evaluation in evaluations_of(stage):
            probe, folder = probe_of(stage, evaluation, settings), out / "stages" / stage / evaluation
            arguments = stage, evaluation, probe, out, folder
            tasks.append(
                DemoTask(f"evaluate {stage} {evaluation}", evaluate_stage, arguments, (made_by[stage],))
            )
    for name, stage in UNRELATED.items():
        if stage in stages:
            probe = _probe(settings, ((256, 1024), 16 if is_generative(stage) else 64, 8), unrelated=True)
            arguments = stage, "pairs", probe, out, out / "controls" / name
            tasks.append(DemoTask(f"evaluate {name}", evaluate_stage, arguments, (made_by[stage],)))
    return tasks


def run_tasks(tasks: Sequence[DemoTask], progress: Progress, workers: int | None = None) -> dict[str, float]:
    """Runs tasks in worker processes, one per processor, and returns the seconds that each took.

    A free worker takes the first task in the list whose dependencies are finished. An error of a task is raised here,
    and no further task is started.
    """
    workers = workers or len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(os.getpid(),)
    )
    waiting, running = list(tasks), dict[Future[float], str]()
    seconds: dict[str, float] = {}
    try:
        while waiting or running:
            ready = [task for task in waiting if seconds.keys() >= set(task.after)]
            for task in ready[: workers - len(running)]:
                waiting.remove(task)
                # Worker processes inherit the blocked signal. A terminal sends Ctrl-C to all of them; only this process
                # handles it, and ends the workers.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
                running[pool.submit(_timed, task)] = task.name
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            assert running, f"tasks wait for each other: {[task.name for task in waiting]}"
            progress("demo", len(seconds), len(tasks), ", ".join(running.values()))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                seconds[name] = round(future.result(), 3)
        progress("demo", len(tasks), len(tasks), "")
        return seconds
    except BaseException as error:
        if not isinstance(error, Exception):  # a signal, which must not wait for running tasks
            for worker in multiprocessing.active_children():
                worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    """One thread per worker: tiny models gain little from more, and results are the same on any machine."""
    import torch

    torch.set_num_threads(1)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _timed(task: DemoTask) -> float:
    began = time.perf_counter()
    task.function(*task.arguments)
    return time.perf_counter() - began
