"""`longrm synthesize short-to-long`: stage 1."""

from pathlib import Path
from typing import Any

from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.casework import gather_pool, prompt_hashes
from longrm.synthesis.models import Model
from longrm.synthesis.records import Source
from longrm.synthesis.runs.course import Course, Opened, Work
from longrm.synthesis.runs.stages import StageRecipe
from longrm.synthesis.short_to_long import Synthesizer
from longrm.worlds.words_tokenizer import load_tokenizer


class ShortToLongRecipe(StageRecipe):
    """Settings of `longrm synthesize short-to-long`.

    Attributes:
        judge: Scores answers, and says whether passages suffice where settings ask a judge.
    """

    judge: Model


RECIPE = ShortToLongRecipe


def run(recipe: ShortToLongRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-1 rows into the run folder `out`, continuing what is there.

    Returns:
        The manifest.

    Raises:
        ConfigError: The settings are at odds.
        DataError: A document or candidate cannot be read.
        ModelError: A model or the tokenizer cannot be loaded or reached.
        RunError: The folder holds something else, or a model could not be asked.
    """
    tokenizer = load_tokenizer(recipe.tokenizer)
    models = {"judge": recipe.judge} | ({"finder": recipe.finder} if recipe.finder is not None else {})

    def prepare(opened: Opened) -> tuple[Work[Source], int]:
        asked = opened.models
        pool = gather_pool(recipe.documents.read(), tokenizer, recipe)
        synthesizer = Synthesizer(recipe, tokenizer, pool, asked["judge"], asked.get("finder"))
        return synthesizer.work, sum(1 for _ in recipe.sources())

    course = Course[Source](
        "short-to-long",
        recipe,
        recipe.sources,
        lambda source: source.document.id,
        models,
        recipe.provenance(),
        prompt_hashes(recipe),
        recipe.seed,
    )
    return course.take(out, prepare, progress)
