"""`longrm synthesize responses`: models answer questions about perturbed documents."""

from pathlib import Path
from typing import Any

from pydantic import Field

from longrm.data.chunking import size_of
from longrm.data.tokenizing import Tokenizer
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.answering import Answering, Responses, pool_of
from longrm.synthesis.documents import Document
from longrm.synthesis.inputs import Documents
from longrm.synthesis.models import Model
from longrm.synthesis.pipeline import prompt_hash
from longrm.synthesis.responses import Passage, Shown, prompt_of
from longrm.synthesis.runs.course import Course, Recipe


class ResponsesRecipe(Recipe, Responses):
    """Settings of `longrm synthesize responses`.

    Attributes:
        documents: What is asked about.
        writers: The models that answer, at least one.
        tokenizer: A folder, file or Hub id of a tokenizer, which counts the tokens of perturbations; by default
            they count words and punctuation marks.
    """

    documents: Documents
    writers: tuple[Model, ...] = Field(min_length=1)
    tokenizer: str | None = None


def run(recipe: ResponsesRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes candidates into the run folder `out`, continuing what is there.

    Returns:
        The manifest.

    Raises:
        ConfigError: The settings are at odds.
        DataError: A document cannot be read.
        ModelError: A model or the tokenizer cannot be loaded or reached.
        RunError: The folder holds something else, or a model could not be asked.
    """
    count = Tokenizer.load(recipe.tokenizer).count if recipe.tokenizer else size_of
    course = Course[Document](
        "responses",
        recipe,
        recipe.documents.read,
        lambda document: document.id,
        {f"writer {number}": model for number, model in enumerate(recipe.writers, start=1)},
        [recipe.documents.provenance()],
        {"answering": prompt_hash(str(prompt_of(_EXAMPLE)))},
        recipe.seed,
    )
    total = sum(1 for _ in recipe.documents.read())
    return course.take(
        out,
        lambda opened: (
            Answering(
                recipe, [*opened.models.values()], pool_of(recipe.documents.read(), recipe), count
            ).work,
            total,
        ),
        progress,
    )


RECIPE = ResponsesRecipe
_EXAMPLE = Shown((Passage("", 1),), "", exemplars=("",), hints=("",))  # holds every word of the prompt
