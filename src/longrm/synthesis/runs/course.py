"""What the runs of all pipelines share: the folder, the models and what they cost, the manifest."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from longrm.config import Config
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_json
from longrm.runs.progress import Progress
from longrm.synthesis.fates import Made
from longrm.synthesis.models import Model, Spending, asked_models
from longrm.synthesis.pipeline import Asked, Pipeline, Provenance
from longrm.synthesis.shards import Output
from longrm.synthesis.simulated import Knowledge

Item = TypeVar("Item")
Work = Callable[[Sequence[Item]], Awaitable[Sequence[Made]]]


class Recipe(Config):
    """What every recipe says.

    Attributes:
        output: How rows are written.
    """

    output: Output = Output()


@dataclass(frozen=True, slots=True)
class Opened:
    """What a run works with once it has begun.

    Attributes:
        folder: The open run folder.
        models: The models that are asked, by what they do.
        spending: The account of what they cost.
    """

    folder: RunFolder
    models: Mapping[str, Asked]
    spending: Spending


@dataclass(frozen=True)
class Course(Generic[Item]):
    """A run of a pipeline.

    Attributes:
        kind: Which subcommand.
        recipe: Its settings.
        items: Reads all inputs anew, always in the same order.
        identity: Tells inputs apart.
        models: All models that are asked, by what they do.
        sources: For the manifest, as `Provenance` has them.
        prompts: For the manifest, likewise.
        seed: Of all draws.
        named: Names of models that the work asks in its own way, by what they do, for the manifest.
    """

    kind: str
    recipe: Recipe
    items: Callable[[], Iterable[Item]]
    identity: Callable[[Item], str]
    models: Mapping[str, Model]
    sources: Sequence[Mapping[str, str]]
    prompts: Mapping[str, str]
    seed: int
    named: Mapping[str, str] = field(default_factory=dict)

    def take(
        self,
        out: Path,
        prepare: Callable[[Opened], tuple[Work[Item], int]],
        progress: Progress,
    ) -> dict[str, Any]:
        """Runs in the folder `out`, continuing what is there.

        Args:
            out: The run folder.
            prepare: Returns the pipeline's work and how many inputs there are.
            progress: Told how many are done, and what was spent.

        Returns:
            The manifest.
        """
        knowledge = Knowledge(max(1024, 2 * self.recipe.output.batch))
        models = [*self.models.values()]
        with (
            RunFolder(out, f"synthesis of {self.kind}", self.recipe) as folder,
            asked_models(models, out, knowledge=knowledge, seed=self.seed) as (asked, spending),
        ):
            work, total = prepare(Opened(folder, dict(zip(self.models, asked, strict=True)), spending))
            names = {role: model.called for role, model in self.models.items()} | dict(self.named)
            run = Pipeline[Item](self.identity, work).run(
                folder,
                knowledge.watching(self.items()),
                Provenance(self.sources, self.seed, self.prompts, names),
                self.recipe.output,
                total=total,
                progress=progress,
                note=spending.note,
            )
            asyncio.run(run)
            manifest = read_manifest(out) | {"spending": spending.to_dict()}
            write_json(out / MANIFEST, manifest)
        return manifest
