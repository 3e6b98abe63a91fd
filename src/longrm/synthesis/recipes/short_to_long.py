"""`longrm synthesize short-to-long`: a judge labels on the short context, and rows hold the long one (stage 1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.inputs.candidates import SynthesisInput
from longrm.synthesis.inputs.input_settings import InputSettings
from longrm.synthesis.judge import read_judgment
from longrm.synthesis.labels.labeling import (
    Label,
    LabeledAnswer,
    Labeling,
    UnlabeledAnswer,
    gather_pool,
    prompt_hashes,
)
from longrm.synthesis.long_context.padding import PaddedPrompt
from longrm.synthesis.model_requests import AsyncModel, TaskRequest, ask
from longrm.synthesis.models import AskedModel
from longrm.synthesis.pipeline import Provenance, SynthesisRecipe, open_run
from longrm.synthesis.short_to_long_settings import ShortToLongSettings
from longrm.synthesis.stats import Dropped, StepCounts
from longrm.worlds.words_tokenizer import load_tokenizer


class LabelingRecipe(SynthesisRecipe, InputSettings, ShortToLongSettings):
    """What the recipes that label say.

    Attributes:
        evidence_model: Names the critical chunks where `evidence_from = "model"`; by default the judge, or the first
            of several.
        tokenizer: The target tokenizer, a folder, file or Hub id: that of the model that will be trained. "words"
            counts approximate tokens.
    """

    evidence_model: AskedModel | None = None
    tokenizer: str = "words"

    @model_validator(mode="after")
    def _asks_its_evidence_model(self) -> Self:
        if self.evidence_model is not None and self.evidence_from != "model":
            raise ValueError('an evidence_model is asked only with evidence_from = "model"')
        return self

    def with_evidence_model(self, judges: Mapping[str, AskedModel]) -> dict[str, AskedModel]:
        """All models that are asked, by what they do."""
        named = {} if self.evidence_model is None else {"evidence model": self.evidence_model}
        return {**judges, **named}


class ShortToLongRecipe(LabelingRecipe):
    """Settings of `longrm synthesize short-to-long`.

    Attributes:
        judge: Scores answers, and says whether passages suffice where settings ask a judge.
    """

    judge: AskedModel


RECIPE = ShortToLongRecipe


def synthesize(recipe: ShortToLongRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-1 rows into the run folder `out`, continuing what is there."""
    tokenizer = load_tokenizer(recipe.tokenizer)
    models = recipe.with_evidence_model({"judge": recipe.judge})
    provenance = Provenance(recipe.provenance(), recipe.seed, prompt_hashes(recipe), {})
    with open_run("short-to-long", recipe, out, models, provenance) as run:
        judge = run.models["judge"]
        finder = run.models.get("evidence model", judge)
        pool = gather_pool(recipe.read(), tokenizer, recipe)
        labeling = Labeling(recipe, tokenizer, pool, JudgeLabeler(judge), judge, finder)
        return run.write(recipe.read(), labeling.make_rows, total=pool.documents, progress=progress)


class JudgeLabeler:
    """Labels an answer by what one judge says of it."""

    min_gap = 1.0  # scores are whole numbers

    def __init__(self, judge: AsyncModel) -> None:
        self._judge = judge
        self.pair_columns: Mapping[str, Any] = {"judge": judge.name}

    async def label(self, source: SynthesisInput, answer: UnlabeledAnswer, request: TaskRequest) -> Label:
        """Asks the judge; what argues for another score than it gives is no label."""
        (completion,) = await ask(self._judge, request)
        found, counts = read_judgment(completion, request, answer.candidate.text), StepCounts()
        reason = found.reason or ("contradicted" if found.contradicted else "")
        if reason:
            counts.drop(Dropped("judgment", reason))
            return Label(None, counts.steps)
        counts.keep("judgment")
        return Label(found.score, counts.steps, found.text)

    def row(
        self, source: SynthesisInput, labeled: LabeledAnswer, prompt: PaddedPrompt, columns: dict[str, Any]
    ) -> dict[str, Any]:
        """A demonstration of the judgment over the long context (paper, section 3); its prompt holds no rubric."""
        candidate = labeled.answer.candidate
        row = {
            "id": f"{source.id}#{labeled.answer.number}",
            "prompt": prompt.messages,
            "completion": labeled.label.judgment,
            **{name: columns[name] for name in ("document", "domain", "language")},
            "model": candidate.model,
            "perturbation": candidate.perturbation,
            "judge": self._judge.name,
            "score": int(labeled.score),
            **columns,
        }
        return {name: value for name, value in row.items() if value is not None}
