"""`longrm demo`: finds the context boundary of a tiny reward model, moves it, and reports both.

An example of the Python API: it trains, evaluates with `longrm.evaluate`, compares with `longrm.compare`, and writes a
report of labeled runs. `docs/tutorials/train.md` does the same on the command line.

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
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import longrm
from longrm.config import Config, to_toml
from longrm.errors import require
from longrm.evaluation.read_run import Run
from longrm.reporting import ReportSettings, RunGroup
from longrm.runs.folder import SCHEMA_VERSION, RunFolder, write_file
from longrm.runs.progress import Progress, no_progress
from longrm.training.settings import TrainingSettings

RECIPES = Path(str(files("longrm") / "recipes" / "demo"))


class Stage(NamedTuple):
    """A model of the demo: trained with the recipe of its name, except for two that are made without training."""

    name: str
    meaning: str
    start: str = ""  # the stage that its training continues
    # Added to 10 times the demo's seed, so no two trainings read the same contexts; None without a training
    data_seed: int | None = None
    exams: tuple[str, ...] = ("pairs", "best_of_4")  # what it is evaluated on

    @property
    def label(self) -> str:
        """Its name in the report."""
        return self.name.replace("generative_", "judge: ").replace("_", " ")


SCALAR = (
    Stage("untrained", "random, except for attention heads that look back and match equal words"),
    Stage("unstructured", "trained as short, but from random weights without such heads", data_seed=1),
    Stage("short", "trained on short contexts only", data_seed=0),
    Stage(
        "control",
        "short, then more short contexts, with the same RoPE theta, steps, tokens and optimizer as long",
        "short",
        3,
    ),
    Stage(
        "long",
        "short, then contexts that grow from short to long",
        "short",
        2,
        ("pairs", "best_of_4", "unrelated"),
    ),
)
JUDGES = (
    Stage(
        "generative_base", "SFT on the text of records, before any judgment was seen", data_seed=6, exams=()
    ),
    Stage(
        "generative_short",
        "judge: base, then SFT on judgments of short contexts",
        "generative_base",
        7,
        ("pairs", "pointwise"),
    ),
    Stage(
        "generative_rescale_only",
        "judge: short, with the RoPE theta of judge: long and no further training",
        exams=("pairs",),
    ),
    Stage(
        "generative_long_alone",
        "judge: short, then SFT on long contexts alone, with the RoPE theta of judge: long, for about its time",
        "generative_short",
        10,
        ("pairs",),
    ),
    Stage(
        "generative_long",
        "judge: short, then SFT on judgments of short-to-long contexts",
        "generative_short",
        8,
        ("pairs", "pointwise"),
    ),
    Stage(
        "generative_logo",
        "judge: long, then LOGO on consensus judgments",
        "generative_long",
        9,
        ("pairs", "pointwise", "unrelated"),
    ),
)
CONTRASTS = (
    ("long", "control"),
    ("generative_long", "generative_short"),
    ("generative_long", "generative_long_alone"),
    ("generative_logo", "generative_long"),
)
NOTE = (
    "An illustration, not evidence on 8B models: the tiny model fails because it never saw such positions in "
    "training."
)
GROUPS = (
    (
        "Scalar reward models",
        SCALAR,
        "pairs",
        "The untrained model is random except for its attention, which starts with heads that attend to the previous "
        "few tokens and heads that match equal content.",
    ),
    (
        "Generative reward models",
        JUDGES,
        "pairs",
        "The generative judge starts in the same way, in four layers whose heads return what they copy. It first "
        "learns to write the record that answers a question, then to judge by it: 'Corimo: keeps bucket. [[A]]'. LOGO "
        "prefers the judgment of most of seven simulated judges, each of which errs in 15 of 100 cases, over those of "
        "the others.",
    ),
    ("Best of 4", SCALAR, "best_of_4", ""),
    ("Single scores", JUDGES, "pointwise", ""),
    (
        "Unrelated contexts",
        SCALAR + JUDGES,
        "unrelated",
        "Unrelated contexts have nothing to do with the answers: accuracy other than chance would be a leak.",
    ),
)
"""The groups of evaluations in the report: title, stages, exam and note."""


class DemoSettings(Config):
    """Settings of `longrm demo`.

    Attributes:
        seed: Seed of the training data, the evaluation data and the initial models.
        generative: Also train a generative judge, in place of the training from an unstructured start.
    """

    seed: int = 0
    generative: bool = False

    @property
    def stages(self) -> list[Stage]:
        """The stages in the order of the report."""
        if not self.generative:
            return list(SCALAR)
        return [*(stage for stage in SCALAR if stage.name != "unstructured"), *JUDGES]


def run_demo(settings: DemoSettings, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Trains, evaluates and reports; a killed demo resumes.

    `out` receives a run folder for every training and evaluation, `summary.json`, `report.html`, and `report.toml` with
    the labels and groups of that report. Returns the summary: the accuracy of every stage by length, the contrasts, and
    the wall-clock seconds of this call.
    """
    require("torch", "transformers", "altair", "vl_convert", user="the demo")
    began = time.perf_counter()
    with RunFolder(out, "demo", settings) as folder:
        run_tasks(tasks_of(settings, out), progress)
        write_report(settings, out)
        summary = summarize(settings, out) | {"seconds": round(time.perf_counter() - began, 3)}
        folder.write_summary(summary)
    return summary


# --- Models ----------------------------------------------------------------------------------------------------------


def model_of(stage: str, out: Path) -> Path:
    """The folder of the model of a stage."""
    made = stage in ("untrained", "generative_rescale_only")
    return (out / "models" / stage if made else out / "training" / stage / "model").resolve()


def recipe_of(stage: Stage, seed: int, out: Path) -> TrainingSettings:
    """The settings of a training."""
    assert stage.data_seed is not None, "it is trained"
    name = stage.name
    changes: dict[str, Any] = {"seed": seed, "data.world.seed": 10 * seed + stage.data_seed}
    if stage.start:
        changes["model.path"] = str(model_of(stage.start, out))
    if name == "unstructured":
        name = "short"
        changes |= {"model.new.structured": False, "plateau_steps": 0}  # it stays at chance
    return TrainingSettings.resolve(RECIPES / f"{name}.toml", changes)


def train_stage(stage: Stage, seed: int, out: Path) -> None:
    """Trains the model of a stage; the first scalar training also saves its untrained model."""
    from longrm.modeling.saving import save
    from longrm.training.initial_model import initial_model
    from longrm.training.train import train

    recipe = recipe_of(stage, seed, out)
    if stage.name == "short" and not model_of("untrained", out).exists():
        save(initial_model(recipe, "scorer"), model_of("untrained", out))
    train(recipe, out / "training" / stage.name)


def rescale(out: Path) -> None:
    """Saves `generative_short` with the rotary base of `generative_long`: its effect without that of the training."""
    from longrm.modeling.loading import load_language_model, rescale_rope
    from longrm.modeling.saving import save

    if model_of("generative_rescale_only", out).exists():
        return
    model = load_language_model(model_of("generative_short", out))
    recipe = TrainingSettings.resolve(RECIPES / "generative_long.toml", {"model.path": "unused"})
    assert recipe.model.rope_theta is not None, "the recipe has it"
    rescale_rope(model.model, recipe.model.rope_theta)
    save(model, model_of("generative_rescale_only", out))


# --- Evaluations -----------------------------------------------------------------------------------------------------

# Contexts of each length up to 1,024 tokens and questions about each; the same of longer contexts. These take time to
# read, so there are fewer of them, each with more questions. Generation takes time, too: judges get fewer questions.
SIZES = {
    "pairs": ((32, 16), (16, 32)),
    "best_of_4": ((16, 8), (12, 10)),
    "judge pairs": ((32, 2), (8, 8)),
    "judge pointwise": ((16, 2), (4, 8)),
}


def cells_of(stage: Stage, exam: str, settings: DemoSettings) -> list[dict[str, Any]]:
    """The lengths of an evaluation, with the number of contexts at each and of questions about each context."""
    judge = stage in JUDGES
    if exam == "unrelated":
        return [{"lengths": (256, 1024), "groups": 16 if judge else 64, "per_group": 8}]
    cells = []
    sizes = SIZES[f"judge {exam}" if judge else exam]
    for lengths, (groups, per_group) in zip(((128, 256, 512, 1024), (2048, 4096)), sizes, strict=True):
        if stage.name in ("untrained", "unstructured"):
            # They are at chance, so their intervals may be wider; from fewer than ten contexts they are unreliable.
            groups = min(groups, max(10, groups // 3))
        if settings.generative and not judge:
            per_group //= 2
        cells.append({"lengths": lengths, "groups": groups, "per_group": per_group})
    return cells


def evaluate_stage(stage: Stage, exam: str, settings: DemoSettings, out: Path) -> None:
    """Evaluates the model of a stage."""
    options: dict[str, Any] = {
        "probe.seed": 1_000_000 + settings.seed,  # of no training
        "probe.tokenizer": "words",  # of all stages
        "probe.cells": cells_of(stage, exam, settings),
        "probe.responses": 4 if exam == "best_of_4" else 2,
        "probe.unrelated": exam == "unrelated",
        # In these worlds the words of the question lead to the evidence; one baseline is enough to show that.
        "judging.baselines": ["overlap"] if (stage.name, exam) == ("long", "pairs") else [],
    }
    if stage in JUDGES:
        form = "pointwise" if exam == "pointwise" else "pairwise"
        template = str(RECIPES / f"judge_{form}.jinja")
        # A judgment has ten tokens.
        options |= {
            "judge.format": form,
            "judge.template": template,
            "judge.max_tokens": 16,
            "judge.retries": 0,
        }
    longrm.evaluate(str(model_of(stage.name, out)), "probe", out / "stages" / stage.name / exam, options)


# --- Results ---------------------------------------------------------------------------------------------------------


def contrasts_of(settings: DemoSettings) -> list[tuple[Stage, Stage]]:
    """The contrasts among the stages of a demo."""
    stages = {stage.name: stage for stage in settings.stages}
    return [(stages[one], stages[other]) for one, other in CONTRASTS if one in stages]


def write_report(settings: DemoSettings, out: Path) -> None:
    """Writes the report, and the file that repeats it: `longrm report --config report.toml --out report.html`."""
    stages = settings.stages
    groups = [
        RunGroup(
            title=title,
            runs={
                stage.label: f"stages/{stage.name}/{exam}"
                for stage in stages
                if stage in of and exam in stage.exams
            },
            note=note,
            brief=exam != "pairs",
        )
        for title, of, exam, note in GROUPS
    ]
    for title, of in (("Trainings", SCALAR), ("Trainings of judges", JUDGES)):
        trained = [stage for stage in stages if stage in of and stage.data_seed is not None]
        groups.append(
            RunGroup(title=title, runs={stage.label: f"training/{stage.name}" for stage in trained})
        )
    report = ReportSettings(
        title=f"Demo, seed {settings.seed}",
        notes=(NOTE,),
        groups=tuple(group for group in groups if group.runs),
        contrasts=tuple((one.label, other.label) for one, other in contrasts_of(settings)),
        meanings={stage.label: stage.meaning for stage in stages},
    )
    write_file(out / "report.toml", to_toml(report.to_dict()))
    longrm.report([], out / "report.html", ReportSettings.read(out / "report.toml"))


def summarize(settings: DemoSettings, out: Path) -> dict[str, Any]:
    """The accuracy of every stage overall ("all") and by length, and the contrasts by length."""
    runs = {
        (stage.name, exam): Run(out / "stages" / stage.name / exam)
        for stage in settings.stages
        for exam in stage.exams
    }
    accuracy: dict[str, dict[str, Any]] = {}
    for (stage, exam), run in runs.items():
        metrics, main = run.evaluation.metrics, run.evaluation.main_metric
        parts = {"all": metrics.overall, **metrics.by_length}
        accuracy.setdefault(exam, {})[stage] = {length: asdict(row[main]) for length, row in parts.items()}
    contrasts: dict[str, dict[str, Any]] = {}
    for one, other in contrasts_of(settings):
        for exam in one.exams:
            if exam in other.exams:
                found = longrm.compare(runs[other.name, exam].path, runs[one.name, exam].path)
                gaps = {length: asdict(part.difference) for length, part in found.by_length.items()}
                contrasts.setdefault(f"{one.name}_vs_{other.name}", {})[exam] = gaps
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "demo",
        "seed": settings.seed,
        "complete": all(run.evaluation.complete for run in runs.values()),
        "accuracy": accuracy,
        "contrasts": contrasts,
    }


# --- Tasks -----------------------------------------------------------------------------------------------------------


class DemoTask(NamedTuple):
    """A function that a worker process calls, once the tasks that are named in `after` are finished."""

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    after: tuple[str, ...] = ()


def tasks_of(settings: DemoSettings, out: Path) -> list[DemoTask]:
    """All tasks, with their dependencies. Trainings come first, those of the longest chains before the others."""
    stages = settings.stages
    made_by = {stage.name: f"train {stage.name}" for stage in stages}
    tasks = []
    for stage in reversed(stages):
        if stage.data_seed is not None:
            after = (made_by[stage.start],) if stage.start else ()
            arguments = (stage, settings.seed, out)
            tasks.append(DemoTask(made_by[stage.name], train_stage, arguments, after))
    made_by["untrained"] = made_by["short"]
    if settings.generative:
        made_by["generative_rescale_only"] = "rescale the judge"
        tasks.append(DemoTask("rescale the judge", rescale, (out,), (made_by["generative_short"],)))
    for stage in stages:
        for exam in stage.exams:
            name, after = f"evaluate {stage.name} {exam}", (made_by[stage.name],)
            tasks.append(DemoTask(name, evaluate_stage, (stage, exam, settings, out), after))
    return tasks


def run_tasks(tasks: Sequence[DemoTask], progress: Progress, workers: int | None = None) -> None:
    """Runs tasks in worker processes, one per processor.

    A free worker takes the first task in the list whose dependencies are finished. An error of a task is raised here,
    and no further task is started.
    """
    workers = workers or len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(os.getpid(),)
    )
    waiting, running, done = list(tasks), dict[Future[None], str](), set[str]()
    try:
        while waiting or running:
            ready = [task for task in waiting if done.issuperset(task.after)]
            for task in ready[: workers - len(running)]:
                waiting.remove(task)
                # Worker processes inherit the blocked signal. A terminal sends Ctrl-C to all of them; only this process
                # handles it, and ends the workers.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
                running[pool.submit(task.function, *task.arguments)] = task.name
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            assert running, f"tasks wait for each other: {[task.name for task in waiting]}"
            progress("demo", len(done), len(tasks), ", ".join(running.values()))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done.add(running.pop(future))
                future.result()
        progress("demo", len(tasks), len(tasks), "")
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
