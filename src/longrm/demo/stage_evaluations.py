"""How the stages of the demo are evaluated: discriminative ones on the same contexts, generative ones on others."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from longrm.benchmarks import LoadedBenchmark, Probe, ProbeCell
from longrm.benchmarks.probe import comparisons
from longrm.data.training_rows import context_digest
from longrm.demo.trainings import (
    GENERATIVE_LOGO,
    GENERATIVE_LONG,
    GENERATIVE_SHORT,
    LONG,
    UNSTRUCTURED,
    UNTRAINED,
    DemoSettings,
    is_generative,
    model_of,
)
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.evaluation_run import Evaluation
from longrm.evaluation.evaluation_run import run_evaluation as evaluate
from longrm.reward_models import JudgeSettings
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord
from longrm.training.step_logs import CONTEXTS
from longrm.training.world_judgments import TEMPLATES
from longrm.types import Comparison

PAIRS, BEST_OF_4, POINTWISE = "pairs", "best_of_4", "pointwise"
UNRELATED = {"unrelated_context": LONG, "judge_unrelated_context": GENERATIVE_LOGO}
"""Controls: the stage that is evaluated on contexts that have nothing to do with the answers."""
# Evaluation contexts are drawn from seeds that no training uses.
_EVALUATION_SEED = 1_000_000
_SHORT, _LONG = (128, 256, 512, 1024), (2048, 4096)
_MAX_TOKENS = 16  # tokens; a judgment has ten
_TOKENIZER = "words"  # that of all stages
_AT_CHANCE = (UNTRAINED, UNSTRUCTURED)
"""Stages that learn nothing are evaluated on the first third of the contexts, ten at least: their intervals may be
wider."""
_FEWEST = 10  # contexts; fewer make no interval that one could trust


def evaluations_of(stage: str) -> tuple[str, ...]:
    """The evaluations of a stage; judges that the recipe makes also rate single responses."""
    if not is_generative(stage):
        return (PAIRS, BEST_OF_4)
    return (PAIRS, POINTWISE) if stage in (GENERATIVE_SHORT, GENERATIVE_LONG, GENERATIVE_LOGO) else (PAIRS,)


def probes(settings: DemoSettings) -> Mapping[tuple[bool, str], Probe]:
    """The evaluations, by whether the model is generative and by name.

    Reading a long context takes time: there are fewer of them, each with more comparisons. So does generation: a
    generative judge gets fewer comparisons, and beside it scalar models get half of theirs.
    """
    drawn = _EVALUATION_SEED + settings.seed
    divisor = 2 if settings.generative else 1
    pairs = (
        ProbeCell(lengths=_SHORT, groups=32, per_group=16 // divisor),
        ProbeCell(lengths=_LONG, groups=16, per_group=32 // divisor),
    )
    best_of_4 = (
        ProbeCell(lengths=_SHORT, groups=16, per_group=8 // divisor),
        ProbeCell(lengths=_LONG, groups=12, per_group=10 // divisor),
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
        (False, PAIRS): Probe(seed=drawn, tokenizer=_TOKENIZER, cells=pairs),
        (False, BEST_OF_4): Probe(seed=drawn, tokenizer=_TOKENIZER, responses=4, cells=best_of_4),
        (True, PAIRS): Probe(seed=drawn, tokenizer=_TOKENIZER, cells=judged),
        (True, POINTWISE): Probe(seed=drawn, tokenizer=_TOKENIZER, cells=scored),
    }


def probe_of(stage: str, evaluation: str, settings: DemoSettings) -> Probe:
    """What a stage is asked in one of its evaluations."""
    probe = probes(settings)[is_generative(stage), evaluation]
    if stage not in _AT_CHANCE:
        return probe
    cells = tuple(
        cell.model_copy(update={"groups": min(cell.groups, max(_FEWEST, cell.groups // 3))})
        for cell in probe.cells
    )
    return probe.model_copy(update={"cells": cells})


def evaluate_stage(
    stage: str, evaluation: str, settings: DemoSettings, out: Path, *, progress: Progress
) -> None:
    """Runs one evaluation of one stage."""
    # In these worlds the words of the question lead to the evidence; one baseline is enough to show it.
    baselines = ("overlap",) if (stage, evaluation) == (LONG, PAIRS) else ()
    probe = probe_of(stage, evaluation, settings)
    drawn = _comparisons(probe)
    evaluate(
        _settings(stage, evaluation, probe, out, baselines),
        out / "stages" / stage / evaluation,
        bench=LoadedBenchmark("probe", drawn, len(drawn), measured=probe.measured(_TOKENIZER)),
        progress=progress,
    )


def evaluate_control(name: str, settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Evaluates a stage on contexts that have nothing to do with the answers."""
    stage = UNRELATED[name]
    cell = ProbeCell(lengths=(256, 1024), groups=16 if is_generative(stage) else 64, per_group=8)
    probe = Probe(seed=_EVALUATION_SEED + settings.seed, tokenizer=_TOKENIZER, unrelated=True, cells=(cell,))
    evaluate(_settings(stage, PAIRS, probe, out, ()), out / "controls" / name, progress=progress)


def assert_unseen(settings: DemoSettings, out: Path, *, progress: Progress) -> None:
    """Fails if a context of the evaluation was trained on."""
    seen = {
        digest
        for contexts in (out / "training").glob(f"*/{CONTEXTS}")
        for record in Log(contexts, ContextRecord)
        for digest in record.digests
    }
    for probe in probes(settings).values():
        for comparison in _comparisons(probe):
            assert context_digest(comparison) not in seen, f"{comparison.id} was trained on"


def _settings(stage: str, evaluation: str, probe: Probe, out: Path, baselines: tuple[str, ...]) -> Evaluation:
    form = "pointwise" if evaluation == POINTWISE else "pairwise"
    judge = JudgeSettings(format=form, template=str(TEMPLATES[form]), max_tokens=_MAX_TOKENS, retries=0)
    return Evaluation(
        model=str(model_of(stage, out)),
        bench="probe",
        probe=probe,
        judge=judge if is_generative(stage) else JudgeSettings(),
        judging=JudgingSettings(baselines=baselines),
    )


@lru_cache
def _comparisons(probe: Probe) -> list[Comparison]:
    """The comparisons of an evaluation, drawn once in every process."""
    return list(comparisons(probe))
