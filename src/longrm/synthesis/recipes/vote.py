"""`longrm synthesize vote`: a panel's consensus on the short context is learned on the long one (stage 2).

Paper, section 4; the rules are in `synthesis.voting`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from longrm.data.tokenizing import Tokenizer
from longrm.rng import seed_of
from longrm.runs.folder import MANIFEST, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.chunks import DistractorPool
from longrm.synthesis.documents import Document
from longrm.synthesis.labeling import Answer, Labeling, gather_pool, labeling_prompts, read_judgment
from longrm.synthesis.long_context import PaddedPrompt
from longrm.synthesis.models import AsyncModel, ModelSettings, ask
from longrm.synthesis.pipeline import KEPT, VOTES, Steps, open_run
from longrm.synthesis.settings import LabelingRecipe
from longrm.synthesis.voting import Agreement, Vote, count_votes, judgment_row
from longrm.worlds.words_tokenizer import load_tokenizer


class VoteRecipe(LabelingRecipe):
    """Settings of `longrm synthesize vote`.

    Attributes:
        judges: Each scores every answer on its own; at least two. The first also names and checks passages if the
            settings ask a model.
        majority: The share of all votes, including those without a score, that the consensus must exceed.
    """

    judges: tuple[ModelSettings, ...] = Field(min_length=2)
    majority: float = Field(0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _judges_differ(self) -> Self:
        models = [(judge.model, judge.remote.extra) for judge in self.judges]
        again = next((model for model in models if models.count(model) > 1), None)
        if again is not None and not self.temperature and not again[0].startswith("simulated:"):
            raise ValueError(
                f"'{again[0]}' votes twice, and at temperature 0 it would give the same answer; set temperature, or "
                "use another model"
            )
        return self


RECIPE = VoteRecipe


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """The scores of a panel for one response (a line of `votes.jsonl`), on which the agreement is measured."""

    id: str
    group: str  # shared by responses about one document
    scores: dict[str, float | None]  # points by judge; None if there is none


def synthesize(recipe: VoteRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-2 rows and the votes into the run folder `out`, continuing what is there."""
    tokenizer = load_tokenizer(recipe.tokenizer or "words")
    models = {f"judge {number}": judge for number, judge in enumerate(recipe.judges, start=1)}
    with open_run("vote", recipe, out, models, recipe.provenance(), labeling_prompts(recipe)) as run:
        pool = gather_pool(recipe, tokenizer)
        labeling = PanelLabeling(recipe, tokenizer, pool, [*run.models.values()])
        manifest = run.write(
            recipe.read(), labeling.make_rows, total=pool.documents, progress=progress, votes=VoteRecord
        )
    agreement = Agreement()
    for vote in Log(out / VOTES, VoteRecord):  # those without a consensus included
        agreement.see(vote.scores, vote.group)
    manifest["agreement"] = agreement.to_dict()
    write_json(out / MANIFEST, manifest)
    return manifest


class PanelLabeling(Labeling):
    """Labels an answer with the consensus of several judges, each of whom scores it on its own (paper, section 4)."""

    def __init__(
        self, recipe: VoteRecipe, tokenizer: Tokenizer, pool: DistractorPool, judges: Sequence[AsyncModel]
    ) -> None:
        super().__init__(recipe, tokenizer, pool, judges[0])
        self._judges, self._majority = judges, recipe.majority

    async def label(self, answer: Answer) -> Steps:
        """Asks all judges at the same time and counts their votes."""
        request = answer.request

        async def vote(judge: AsyncModel) -> Vote:
            # Its own seed, so that one model that votes several times, under several names, does not repeat itself.
            own = replace(request, seed=seed_of(request.seed, judge.name))
            (completion,) = await ask(judge, own)
            return read_judgment(judge.name, completion, request, answer.candidate.text)

        votes = await asyncio.gather(*map(vote, self._judges))
        count = count_votes(votes, self._majority)
        answer.count, steps = count, Steps()
        read = len(votes) - len(count.unparsed)
        if read:
            steps["votes read", KEPT] += read
        for one in count.unparsed:
            steps.reply("votes read", "unparsed", one.text)
        steps["consensus", count.reason or KEPT] += 1
        if not count.consensus:
            return steps
        if self.recipe.rows == "judgments":
            steps["contrast", KEPT if count.chosen else "no_contrast"] += 1
        if self.recipe.rows == "pairs" or count.chosen is not None:
            answer.score = count.consensus_score
        return steps

    def row(self, document: Document, answer: Answer, prompt: PaddedPrompt) -> dict[str, Any]:
        """The consensus judgment over the long context, and those that it outvoted."""
        assert answer.count is not None
        columns = self.columns(document, answer, prompt)
        columns |= {
            "query": document.question,
            "answer": answer.candidate.text,
            "model": answer.candidate.model,
            "perturbation": answer.candidate.perturbation,
            "prompt_ctx_length": columns.pop("tokens"),
            "insert_index": prompt.context.chunks_before if prompt.context.text else None,
        }
        identity = f"{document.id}#{answer.number}"
        return judgment_row(identity, document.group, prompt.messages, answer.count, columns)

    def pair_columns(self, pair: Sequence[Answer]) -> Mapping[str, Any]:
        """The sizes of the clusters of votes for each response."""
        return {"conf": [answer.count.cluster_sizes for answer in pair if answer.count is not None]}

    def votes(self, document: Document, answers: Sequence[Answer]) -> list[VoteRecord]:
        """The votes on all answers of a document, those without a consensus included."""
        found = []
        for answer in answers:
            assert answer.count is not None
            scores = {vote.judge: vote.score for vote in answer.count.votes}
            ordered = {judge.name: scores[judge.name] for judge in self._judges}
            found.append(VoteRecord(f"{document.id}#{answer.number}", document.group, ordered))
        return found
