"""What the runs of all pipelines share: the folder, the models and what they cost, the manifest."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from longrm.config import Config
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_json
from longrm.runs.progress import Progress
from longrm.synthesis.model_requests import AsyncModel
from longrm.synthesis.models import AskedModel, Spending, open_models
from longrm.synthesis.pipeline import MakeRows, PipelineInput, Provenance, ignore, run_pipeline
from longrm.synthesis.shards import OutputSettings
from longrm.synthesis.simulated_model import GoldAnswers
from longrm.synthesis.stats import InputOutcome


class SynthesisRecipe(Config):
    """What every recipe says.

    Attributes:
        output: How rows are written.
    """

    output: OutputSettings = OutputSettings()


@dataclass(frozen=True)
class RowWork(Generic[PipelineInput]):
    """What a recipe does once its models are open.

    Attributes:
        make_rows: Works on one input.
        total: How many inputs there are.
        log: Keeps what else a batch of inputs became.
    """

    make_rows: MakeRows[PipelineInput]
    total: int
    log: Callable[[Sequence[InputOutcome]], None] = ignore


def run_recipe(
    kind: str,
    recipe: SynthesisRecipe,
    out: Path,
    *,
    inputs: Callable[[], Iterable[PipelineInput]],
    models: Mapping[str, AskedModel],
    provenance: Provenance,
    prepare: Callable[[Mapping[str, AsyncModel], Spending], RowWork[PipelineInput]],
    progress: Progress,
) -> dict[str, Any]:
    """Runs a recipe in the folder `out`, continuing what is there.

    Args:
        kind: Which subcommand.
        recipe: Its settings.
        out: The run folder.
        inputs: Reads all inputs anew, always in the same order.
        models: The models that are asked, by what they do.
        provenance: For the manifest, where the names of these models are added.
        prepare: Is given the open models, by what they do, and the account of what they cost.
        progress: Told how many inputs are done, and what was spent.
    """
    answers = GoldAnswers(max(1024, 2 * recipe.output.batch))
    names = {role: model.called for role, model in models.items()}
    with (
        RunFolder(out, f"synthesis of {kind}", recipe) as folder,
        open_models([*models.values()], out, answers=answers, seed=provenance.seed) as (opened, spending),
    ):
        work = prepare(dict(zip(models, opened, strict=True)), spending)
        run = run_pipeline(
            folder,
            answers.watching(inputs()),
            work.make_rows,
            replace(provenance, models=names | dict(provenance.models)),
            recipe.output,
            total=work.total,
            progress=progress,
            note=spending.note,
            log=work.log,
        )
        asyncio.run(run)
        manifest = read_manifest(out) | {"spending": spending.to_dict()}
        write_json(out / MANIFEST, manifest)
    return manifest
