"""What every stage of the demo is asked; on the same contexts for all stages of a road."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from longrm.benchmarks import LoadedBenchmark, Probe, ProbeCell
from longrm.benchmarks.probe import comparisons
from longrm.data.training_rows import context_digest
from longrm.demo.arms import LONG, WRITES_LOGO, WRITES_LONG, WRITES_SHORT, DemoSettings, model_of, writes
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.evaluation_run import Evaluation
from longrm.evaluation.evaluation_run import run_evaluation as evaluate
from longrm.reward_models import JudgeSettings
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord
from longrm.training.logs import CONTEXTS
from longrm.training.written import TEMPLATES
from longrm.types import Comparison

PAIRS, BEST_OF_4, POINTWISE = "pairs", "best_of_4", "pointwise"
UNRELATED = {"unrelated_context": LONG, "judge_unrelated_context": WRITES_LOGO}
"""Controls: the stage that is asked about contexts that have nothing to do with the answers."""
# Evaluation contexts are drawn from seeds that no training uses.
_EVALUATION_SEED = 1_000_000
_SHORT, _LONG = (128, 256, 512, 1024), (2048, 4096)
_ROOM = 16  # tokens; a judgment has ten


def exams_of(stage: str) -> tuple[str, ...]:
    """What a stage is asked; judges that the recipe makes are also asked to score single responses."""
    if not writes(stage):
        return (PAIRS, BEST_OF_4)
    return (PAIRS, POINTWISE) if stage in (WRITES_SHORT, WRITES_LONG, WRITES_LOGO) else (PAIRS,)


def probes(settings: DemoSettings) -> Mapping[tuple[bool, str], Probe]:
    """The exams by road (whether the model writes) and name.

    Writing takes time: a judge gets fewer contexts, and where there are judges the other road gets half of its own.
    """
    drawn = _EVALUATION_SEED + settings.seed
    part = 2 if settings.generative else 1
    pairs = (
        ProbeCell(lengths=_SHORT, groups=256 // part, per_group=2),
        ProbeCell(lengths=_LONG, groups=64 // part, per_group=8),
    )
    listed = (
        ProbeCell(lengths=_SHORT, groups=64 // part, per_group=2),
        ProbeCell(lengths=_LONG, groups=32 // part, per_group=4),
    )
    judged = (
        ProbeCell(lengths=_SHORT, groups=32, per_group=2),
        ProbeCell(lengths=_LONG, groups=8, per_group=8),
    )
    scored = (
        ProbeCell(lengths=_SHORT, groups=16, per_group=2),
        ProbeCell(lengths=_LONG, groups=4, per_group=8),
    )
    return {
        (False, PAIRS): Probe(seed=drawn, cells=pairs),
        (False, BEST_OF_4): Probe(seed=drawn, responses=4, cells=listed),
        (True, PAIRS): Probe(seed=drawn, cells=judged),
        (True, POINTWISE): Probe(seed=drawn, cells=scored),
    }


def take_exam(stage: str, exam: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Asks one stage one of its exams."""
    # Words alone lead to the evidence in these worlds; once is enough to say so.
    beside = ("overlap",) if (stage, exam) == (LONG, PAIRS) else ()
    probe = probes(settings)[writes(stage), exam]
    drawn = _drawn(probe)
    evaluate(
        _asked(stage, exam, probe, out, beside),
        out / "stages" / stage / exam,
        bench=LoadedBenchmark("probe", drawn, len(drawn)),
        progress=progress,
    )


def take_control(name: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Asks a stage about contexts that have nothing to do with the answers."""
    stage = UNRELATED[name]
    cell = ProbeCell(lengths=(256, 1024), groups=16 if writes(stage) else 64, per_group=8)
    probe = Probe(seed=_EVALUATION_SEED + settings.seed, unrelated=True, cells=(cell,))
    evaluate(_asked(stage, PAIRS, probe, out, ()), out / "controls" / name, progress=progress)


def assert_unseen(settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Fails if a context of the evaluation was trained on."""
    seen = {
        digest
        for contexts in (out / "training").glob(f"*/{CONTEXTS}")
        for record in Log(contexts, ContextRecord)
        for digest in record.digests
    }
    for probe in probes(settings).values():
        for comparison in _drawn(probe):
            assert context_digest(comparison) not in seen, f"{comparison.id} was trained on"


def _asked(stage: str, exam: str, probe: Probe, out: Path, beside: tuple[str, ...]) -> Evaluation:
    form = "pointwise" if exam == POINTWISE else "pairwise"
    judge = JudgeSettings(format=form, template=str(TEMPLATES[form]), max_tokens=_ROOM, retries=0)
    return Evaluation(
        model=str(model_of(stage, out)),
        bench="probe",
        probe=probe,
        judge=judge if writes(stage) else JudgeSettings(),
        judging=JudgingSettings(baselines=beside),
    )


@lru_cache
def _drawn(probe: Probe) -> list[Comparison]:
    """The comparisons of an exam, drawn once in every process."""
    return list(comparisons(probe))
