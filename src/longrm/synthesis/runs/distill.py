"""`longrm synthesize distill`: the best of a policy's answers, by a reward model, as demonstrations."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from longrm import reward_models
from longrm.clients import Completion
from longrm.clients.addresses import ModelName
from longrm.clients.remote_settings import Remote
from longrm.config import Config
from longrm.data.files import find_files
from longrm.reward_models import Compress, JudgeSettings, RewardModel
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.distill import Distillation, Distilling, Reads, ShortSighted, Task, read_tasks, task_of
from longrm.synthesis.documents import Document
from longrm.synthesis.fates import Made
from longrm.synthesis.inputs import Documents, digest_of
from longrm.synthesis.models import CACHE, Model
from longrm.synthesis.runs.course import Course, Opened, Recipe, Work
from longrm.worlds.words_tokenizer import load_tokenizer

Item = Document | Task


class ShortReading(Config):
    """The short-context baseline: the reward model reads a part of the prompt only.

    Attributes:
        tokens: So many tokens of it, the question included.
        part: The "first" ones, the "last" ones, or those at both "ends".
        tokenizer: "words", or a tokenizer's file, folder or Hub id, that counts them.
    """

    tokens: int = Field(ge=1)
    part: Reads = "last"
    tokenizer: str = "words"


class DistillRecipe(Recipe, Distilling):
    """Settings of `longrm synthesize distill`.

    Attributes:
        documents: Whose questions the policy answers; or `prompts`.
        prompts: A file, a folder or a run folder with the prompts that it answers: comparisons, demonstrations, or
            rows with nothing but a `prompt`.
        policy: What answers.
        reward_model: What scores the answers: a folder or Hub id, `openai:URL#NAME`, `baseline:NAME` or
            `compress:MODEL`.
        judge: How a reward model that writes, or reads within a limit, is asked.
        remote: How a reward model behind HTTP is reached.
        compress: What `compress:MODEL` leaves of a context.
        reads: Lets the reward model read a part of every prompt only.
    """

    documents: Documents | None = None
    prompts: str | None = None
    policy: Model
    reward_model: ModelName
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    compress: Compress = Compress()
    reads: ShortReading | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if (self.documents is None) == (self.prompts is None):
            raise ValueError(
                "a policy answers the questions of `documents` or the prompts of `prompts`: give one"
            )
        if self.prompts is not None and self.policy.model.startswith("simulated:"):
            raise ValueError(
                "a simulated policy knows the questions of `documents` only, and not those of `prompts`"
            )
        if self.reward_model.startswith("simulated:"):
            raise ValueError(
                f"'{self.reward_model}' knows no answers that are yet to be written; take baseline:NAME, "
                "openai:URL#NAME or the folder of a reward model"
            )
        return self


RECIPE = DistillRecipe


def run(recipe: DistillRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes demonstrations into the run folder `out`, continuing what is there.

    Returns:
        The manifest.

    Raises:
        ConfigError: The settings are at odds.
        DataError: A document or prompt cannot be read.
        ModelError: A model or the tokenizer cannot be loaded or reached.
        RunError: The folder holds something else, or a model could not be asked.
    """

    def prepare(opened: Opened) -> tuple[Work[Item], int]:
        paid = partial(opened.spending.pay, recipe.reward_model)
        distillation = Distillation(opened.models["policy"], _reward_model(recipe, out, paid), recipe)

        async def work(items: Sequence[Item]) -> list[Made]:
            return await distillation.work(
                [task_of(one) if isinstance(one, Document) else one for one in items]
            )

        return work, sum(1 for _ in _items(recipe))

    course = Course[Item](
        "distill",
        recipe,
        lambda: _items(recipe),
        lambda item: item.id,
        {"policy": recipe.policy},
        [_provenance(recipe)],
        {},
        recipe.seed,
        {"reward model": recipe.reward_model},
    )
    return course.take(out, prepare, progress)


def _items(recipe: DistillRecipe) -> Iterator[Item]:
    if recipe.documents is not None:
        return recipe.documents.read()
    assert recipe.prompts is not None, "checked by the recipe"
    return read_tasks(Path(recipe.prompts).expanduser())


def _provenance(recipe: DistillRecipe) -> dict[str, str]:
    if recipe.documents is not None:
        return recipe.documents.provenance()
    assert recipe.prompts is not None, "checked by the recipe"
    digest = digest_of(find_files(Path(recipe.prompts).expanduser()))
    return {"name": "prompts", "license": "unknown", "path": recipe.prompts, "sha256": digest}


def _reward_model(recipe: DistillRecipe, out: Path, paid: Callable[[Completion], None]) -> RewardModel:
    remote = recipe.remote
    if remote.cache is None:  # what was paid for once is not asked for again when the run continues
        remote = remote.model_copy(update={"cache": str(out / CACHE)})
    model = reward_models.load(
        recipe.reward_model, judge=recipe.judge, remote=remote, compress=recipe.compress, on_usage=paid
    )
    reads = recipe.reads
    if reads is None:
        return model
    return ShortSighted(model, load_tokenizer(reads.tokenizer), reads.tokens, reads.part)
