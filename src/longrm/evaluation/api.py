"""The Python API of evaluations: `longrm.evaluate` and `longrm.probe`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.evaluation.probe_plan import COMPARISONS, probe_cells
from longrm.evaluation.run import Run
from longrm.reward_models import RewardModel


def evaluate(
    model: str | RewardModel,
    bench: str | Path,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Evaluates a reward model on a benchmark into a run folder, or continues the run there; returns the run.

    Args:
        model: A name as for `longrm evaluate --model`, or a loaded model.
        bench: The path of your own comparisons, such as `pairs.jsonl`; `probe`; or NAME:PATH, as in
            `judgebench:FOLDER`. A path that begins with the name of a benchmark needs `file:`.
        out: The run folder.
        settings: Settings of `longrm evaluate` by dotted key, such as {"judging.votes": 5}.

    Raises:
        LongRMError: With the message that `longrm evaluate` prints.
    """
    loaded = None if isinstance(model, str) else model
    run_evaluation(_resolved(model, {"bench": str(bench), **(settings or {})}), Path(out), model=loaded)
    return Run(out)


def probe(
    model: str | RewardModel,
    out: str | Path,
    *,
    lengths: Sequence[int] | None = None,
    depths: Sequence[float] | None = None,
    tasks: Sequence[str] | None = None,
    n: int = COMPARISONS,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Evaluates a model on generated contexts whose answers are known, as `longrm probe` does.

    Args:
        model: As for `evaluate`.
        out: The run folder.
        lengths: Context lengths in tokens of the model; by default powers of two up to the model's limit.
        depths: Positions of the evidence, from 0 (start) to 1 (end); by default uniform.
        tasks: Names of worlds; by default those that fit the model's tokenizer.
        n: Comparisons per length, depth and task.
        settings: Further settings of `longrm evaluate` by dotted key.
    """
    given = {"bench": "probe", **(settings or {})}
    grid = [None if values is None else ",".join(map(str, values)) for values in (lengths, depths, tasks)]
    cells = probe_cells(_resolved(model, given), grid[0], grid[1], grid[2], n)
    return evaluate(model, "probe", out, {**given, "probe.cells": [cell.model_dump() for cell in cells]})


def _resolved(model: str | RewardModel, settings: Mapping[str, Any]) -> Evaluation:
    name = model if isinstance(model, str) else model.name
    return Evaluation.resolve(overrides={"model": name, **settings})
