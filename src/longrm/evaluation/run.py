"""An evaluation as a user asks for it: settings in, a run folder out."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from longrm import benchmarks, reward_models
from longrm.benchmarks import Probe, Source
from longrm.config import Config
from longrm.evaluation.runner import Judging, evaluate
from longrm.runs.folder import RunFolder
from longrm.runs.progress import Progress, silent
from longrm.types import Comparison


class Evaluation(Config):
    """Settings of `longrm evaluate`.

    Attributes:
        model: A folder or Hub id, or `baseline:NAME`.
        bench: `probe`, or `file:PATH`.
        source: How a file is read.
        probe: What the probe asks.
        judging: Seeds, examples and statistics.
    """

    model: str
    bench: str
    source: Source = Source()
    probe: Probe = Probe()
    judging: Judging = Judging()


def run(
    settings: Evaluation,
    out: Path,
    *,
    comparisons: Iterable[Comparison] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Evaluates a reward model on a benchmark into the folder `out`, continuing what is there.

    Args:
        settings: What to evaluate, on what.
        out: The run folder.
        comparisons: The benchmark's comparisons, where the caller has loaded them already.
        progress: Called after every batch.

    Returns:
        The summary; `summary.json` holds the same.
    """
    bench = benchmarks.load(settings.bench, settings.source, settings.probe)
    if comparisons is not None:
        bench = replace(bench, comparisons=comparisons)
    with RunFolder(out, "evaluation", settings) as folder:
        model = reward_models.load(settings.model)
        summary = evaluate(
            bench.comparisons,
            model,
            folder,
            bench=bench.name,
            judging=settings.judging,
            total=bench.total,
            progress=progress,
        )
        if bench.reading is not None:
            bench.reading.tell_skipped()
            summary["counts"]["skipped_rows"] = bench.reading.skipped.count
            folder.write_summary(summary)
    return summary
