"""The demo's course: what is trained from what, what every stage is asked, and what is made of it."""

import os
import time
from dataclasses import asdict
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from longrm import report
from longrm.benchmarks import Benchmark, Cell, Probe
from longrm.benchmarks.probe import comparisons
from longrm.config import Config
from longrm.data.training_rows import context_digest
from longrm.demo.processes import Part, Processes
from longrm.evaluation.asking import Judging
from longrm.evaluation.metrics import paired_difference
from longrm.evaluation.run import Evaluation
from longrm.evaluation.run import run as evaluate
from longrm.modeling.loading import load_scorer, rescale_rope, save
from longrm.runs.folder import SCHEMA_VERSION, RunFolder, read_json, read_summary, write_json
from longrm.runs.judgments import read_judgments
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, silent
from longrm.runs.records import ContextRecord, JudgmentRecord
from longrm.training.bradley_terry import BradleyTerryTraining
from longrm.training.run import run as train
from longrm.training.start import start_of
from longrm.training.trainer import CONTEXTS
from longrm.types import Comparison

RECIPES = Path(str(files("longrm") / "recipes" / "demo"))
UNTRAINED, SHORT, CONTROL, LONG, RESCALED = "untrained", "short", "control_short", "long", "rescale_only"
PAIRS, BEST_OF_4, SECONDS = "pairs", "best_of_4", "seconds.json"
START = (
    "The untrained model is random but for its attention, which begins with heads that look back a few tokens and "
    "heads that match equal content; the row 'unstructured' is the same training from a wholly random start."
)
# Evaluation contexts are drawn from seeds that no training uses.
_EVALUATION_SEED = 1_000_000


class DemoSettings(Config):
    """Settings of `longrm demo`.

    Attributes:
        seed: Of the training data, the evaluation data and the starts.
        controls: Also run the arms that tell what the gain is due to.
    """

    seed: int = 0
    controls: bool = False


class Arm(NamedTuple):
    """A training of the demo: the stage it makes, its recipe, the stage it starts from, what it changes."""

    stage: str
    recipe: str
    start: str | None
    changes: dict[str, Any]


ARMS = (
    Arm(SHORT, SHORT, None, {}),
    Arm("unstructured", SHORT, None, {"model.new.structured": False, "stall_steps": 0}),
    Arm(LONG, LONG, SHORT, {}),
    Arm(CONTROL, CONTROL, SHORT, {}),
)
CONTROL_ARMS = (
    Arm("long_without_rescale", LONG, SHORT, {"model.rope_theta": None}),
    Arm("shuffled_labels", SHORT, None, {"data.world.shuffle_labels": True, "stall_steps": 0}),
)
STAGES = (UNTRAINED, "unstructured", SHORT, CONTROL, LONG)
CONTROL_STAGES = (RESCALED, *(arm.stage for arm in CONTROL_ARMS))


def run(settings: DemoSettings, out: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """Trains, evaluates and reports; a killed demo continues.

    Args:
        settings: The seed, and whether the controls run too.
        out: Holds a run folder for every training and evaluation, `summary.json` and `report.html`.
        progress: Called by all parts.

    Returns:
        The summary: the stages with their evaluations, the contrasts, the controls, and the seconds: of the
        parts as they ran, and `total`, the wall-clock seconds of this call.
    """
    began = time.perf_counter()
    arms = (*ARMS, *(CONTROL_ARMS if settings.controls else ()))
    stages = (*STAGES, *(CONTROL_STAGES if settings.controls else ()))
    with (
        RunFolder(out, "demo", settings) as folder,
        Processes(len(os.sched_getaffinity(0)), progress) as workers,
    ):
        seconds = _Seconds(out / SECONDS)
        seconds.add(workers.run(_parts(arms, stages, settings, out)))
        summary = _summary(settings, out, stages, seconds.parts)
        summary["seconds"]["total"] = round(time.perf_counter() - began, 3)
        folder.write_summary(summary)
        report.build([out], out / "report.html")
    return summary


def train_arm(arm: Arm, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Trains one arm; the first of them leaves the untrained model too, and the rescaled one where asked for."""
    resolved = _recipe(arm, settings.seed, out)
    if arm.stage == SHORT and not _model_of(UNTRAINED, out).exists():
        save(start_of(resolved, "scorer"), _model_of(UNTRAINED, out))
    train(resolved, out / "training" / arm.stage, progress=progress)
    if arm.stage == SHORT and settings.controls and not _model_of(RESCALED, out).exists():
        scorer = load_scorer(_model_of(SHORT, out))
        theta = BradleyTerryTraining.resolve(
            RECIPES / f"{LONG}.toml", {"model.path": "short"}
        ).model.rope_theta
        assert theta is not None, "the long recipe rescales"
        rescale_rope(scorer.model, theta)
        save(scorer, _model_of(RESCALED, out))


def take_exam(stage: str, exam: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Asks one stage one of the exams that every stage takes."""
    # Words alone lead to the evidence in these worlds; once is enough to say so.
    beside = ("overlap",) if (stage, exam) == (LONG, PAIRS) else ()
    asked = Evaluation(
        model=str(_model_of(stage, out)),
        bench="probe",
        probe=_probes(settings.seed)[exam],
        judging=Judging(baselines=beside),
    )
    drawn = _drawn(exam, settings.seed)
    bench = Benchmark("probe", drawn, len(drawn))
    evaluate(asked, out / "stages" / stage / exam, bench=bench, progress=progress)


def evaluate_unrelated(settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Asks the best stage about contexts that have nothing to do with the answers."""
    cell = Cell(lengths=(256, 1024), groups=64, per_group=8)
    probe = Probe(seed=_EVALUATION_SEED + settings.seed, unrelated=True, cells=(cell,))
    asked = Evaluation(
        model=str(_model_of(LONG, out)), bench="probe", probe=probe, judging=Judging(baselines=())
    )
    evaluate(asked, out / "controls" / "unrelated_context", progress=progress)


def assert_unseen(settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Fails if a context of the evaluation was trained on."""
    seen = {
        digest
        for contexts in (out / "training").glob(f"*/{CONTEXTS}")
        for record in Log(contexts, ContextRecord)
        for digest in record.digests
    }
    for exam in _probes(settings.seed):
        for comparison in _drawn(exam, settings.seed):
            assert context_digest(comparison) not in seen, f"{comparison.id} was trained on"


def _probes(seed: int) -> dict[str, Probe]:
    """What every stage is asked: pairs, and best of 4, on the same contexts for all stages."""
    drawn = _EVALUATION_SEED + seed
    short, long = (128, 256, 512, 1024), (2048, 4096)
    pairs = (Cell(lengths=short, groups=256, per_group=2), Cell(lengths=long, groups=64, per_group=8))
    listed = (Cell(lengths=short, groups=64, per_group=2), Cell(lengths=long, groups=32, per_group=4))
    return {
        PAIRS: Probe(seed=drawn, cells=pairs),
        BEST_OF_4: Probe(seed=drawn, responses=4, cells=listed),
    }


@lru_cache
def _drawn(exam: str, seed: int) -> list[Comparison]:
    """The comparisons of an exam, drawn once in every process."""
    return list(comparisons(_probes(seed)[exam]))


def _parts(arms: tuple[Arm, ...], stages: tuple[str, ...], settings: DemoSettings, out: Path) -> list[Part]:
    """All that is to be done, and after what."""
    trained = {arm.stage: f"train {arm.stage}" for arm in arms}
    # The short arm leaves the untrained and the rescaled model too.
    made_by = {stage: trained.get(stage, trained[SHORT]) for stage in stages}
    trainings = [
        Part(trained[arm.stage], train_arm, (arm, settings, out), (trained[arm.start],) if arm.start else ())
        for arm in arms
    ]
    exams = [
        Part(f"evaluate {stage} {exam}", take_exam, (stage, exam, settings, out), (made_by[stage],))
        for stage in stages
        for exam in _probes(settings.seed)
    ]
    unrelated = Part("evaluate unrelated context", evaluate_unrelated, (settings, out), (trained[LONG],))
    check = Part("check contexts", assert_unseen, (settings, out), tuple(trained.values()))
    return [*trainings, *exams, unrelated, check]


def _recipe(arm: Arm, seed: int, out: Path) -> BradleyTerryTraining:
    number = (*ARMS, *CONTROL_ARMS).index(arm)
    changes: dict[str, Any] = {"seed": seed, "data.world.seed": 10 * seed + number}
    if arm.start is not None:
        changes["model.path"] = str(_model_of(arm.start, out))
    return BradleyTerryTraining.resolve(RECIPES / f"{arm.recipe}.toml", changes | arm.changes)


def _model_of(stage: str, out: Path) -> Path:
    if stage in (UNTRAINED, RESCALED):
        return (out / "models" / stage).resolve()
    return (out / "training" / stage / "model").resolve()


def _summary(
    settings: DemoSettings, out: Path, stages: tuple[str, ...], seconds: dict[str, float]
) -> dict[str, Any]:
    found = {}
    for stage in stages:
        pairs, best = (read_summary(out / "stages" / stage / exam) for exam in (PAIRS, BEST_OF_4))
        found[stage] = pairs | {"best_of_4": best}
    unrelated = read_summary(out / "controls" / "unrelated_context")
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "demo",
        "seed": settings.seed,
        "complete": all(stage["complete"] for stage in found.values()),
        "stages": found,
        "contrasts": {f"{LONG}_vs_{CONTROL}": {"by_length": _contrast(out, LONG, CONTROL)}},
        "controls": {"unrelated_context": unrelated["metrics"]["overall"]["pair_accuracy"]},
        "notes": {"start": START},
        "seconds": dict(seconds),
    }


def _contrast(out: Path, stage: str, other: str) -> dict[str, Any]:
    """The paired difference of two stages' pair accuracy, by length."""
    ours, theirs = (_records_by_length(out / "stages" / name / PAIRS) for name in (stage, other))
    return {str(length): asdict(paired_difference(ours[length], theirs[length])) for length in sorted(ours)}


def _records_by_length(run_folder: Path) -> dict[int, list[JudgmentRecord]]:
    records: dict[int, list[JudgmentRecord]] = {}
    for record in read_judgments(run_folder):
        assert record.length is not None, "generated comparisons know their length"
        records.setdefault(record.length, []).append(record)
    return records


class _Seconds:
    """How long each part took when it did its work: a continued demo keeps the longer time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts: dict[str, float] = read_json(path) if path.exists() else {}

    def add(self, parts: dict[str, float]) -> None:
        self.parts |= {name: max(seconds, self.parts.get(name, 0.0)) for name, seconds in parts.items()}
        write_json(self._path, self.parts)
