"""`longrm synthesize short-to-long`: a judge labels on the short context, and rows have the long one (stage 1)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.documents import Document
from longrm.synthesis.labeling import Answer, Labeling, gather_pool, labeling_prompts, read_judgment
from longrm.synthesis.long_context import PaddedPrompt
from longrm.synthesis.models import ModelSettings, ask
from longrm.synthesis.pipeline import Steps, open_run
from longrm.synthesis.settings import LabelingRecipe
from longrm.worlds.words_tokenizer import load_tokenizer


class ShortToLongRecipe(LabelingRecipe):
    """Settings of `longrm synthesize short-to-long`.

    Attributes:
        judge: Scores the answers, and names and checks passages if the settings ask a model.
    """

    judge: ModelSettings


RECIPE = ShortToLongRecipe


def synthesize(recipe: ShortToLongRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-1 rows into the run folder `out`, continuing what is there."""
    tokenizer = load_tokenizer(recipe.tokenizer or "words")
    models, sources, prompts = {"judge": recipe.judge}, recipe.provenance(), labeling_prompts(recipe)
    with open_run("short-to-long", recipe, out, models, sources, prompts) as run:
        pool = gather_pool(recipe, tokenizer)
        labeling = JudgeLabeling(recipe, tokenizer, pool, run.models["judge"])
        return run.write(recipe.read(), labeling.make_rows, total=pool.documents, progress=progress)


class JudgeLabeling(Labeling):
    """Labels an answer with one judge's score."""

    async def label(self, answer: Answer) -> Steps:
        """Asks the judge; a text that argues for another score than it gives is no label."""
        (completion,) = await ask(self._model, answer.request)
        vote = read_judgment(self._model.name, completion, answer.request, answer.candidate.text)
        reason = vote.reason or ("contradicted" if vote.contradicted else "")
        if not reason:
            answer.score, answer.judgment = vote.score, vote.text
        steps = Steps()
        steps.reply("judgment", reason, completion.text)
        return steps

    def row(self, document: Document, answer: Answer, prompt: PaddedPrompt) -> dict[str, Any]:
        """A demonstration of the judgment over the long context (paper, section 3); its prompt has no rubric."""
        columns = self.columns(document, answer, prompt)
        row = {
            "id": f"{document.id}#{answer.number}",
            "prompt": prompt.messages,
            "completion": answer.judgment,
            **{name: columns[name] for name in ("document", "domain", "language")},
            "model": answer.candidate.model,
            "perturbation": answer.candidate.perturbation,
            "judge": self._model.name,
            "score": int(answer.score or 0),
            **columns,
        }
        return {name: value for name, value in row.items() if value is not None}

    def pair_columns(self, pair: Sequence[Answer]) -> Mapping[str, Any]:
        """The judge's name."""
        return {"judge": self._model.name}
