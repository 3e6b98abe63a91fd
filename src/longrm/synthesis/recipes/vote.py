"""`longrm synthesize vote`: a panel's consensus on the short context is learned on the long one (stage 2).

Paper, section 4; the rules are in `synthesis.voting`.
"""

import asyncio
from collections.abc import Iterable, Sequence
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
from longrm.synthesis.labeling import Answer, Labeling, gather_pool, read_judgment
from longrm.synthesis.long_context import PaddedPrompt
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask
from longrm.synthesis.pipeline import KEPT, InputOutcome, LogBatch, open_run
from longrm.synthesis.settings import LabelingRecipe
from longrm.synthesis.voting import Agreement, Vote, VotingSettings, count_votes, judgment_row
from longrm.worlds.words_tokenizer import load_tokenizer

VOTES = "votes.jsonl"


class VoteRecipe(LabelingRecipe):
    """Settings of `longrm synthesize vote`.

    Attributes:
        judges: Each scores every answer on its own; at least two. The first also names and checks passages if the
            settings ask a model.
        voting: How votes are counted.
    """

    judges: tuple[ModelSettings, ...] = Field(min_length=2)
    voting: VotingSettings = VotingSettings()

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
    """The scores of a panel for one response (a line of `votes.jsonl`), on which the agreement is measured.

    `group` is shared by responses about one document. Scores are in points, by judge; None if there is none.
    """

    id: str
    group: str
    scores: dict[str, float | None]


def synthesize(recipe: VoteRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-2 rows and the votes into the run folder `out`, continuing what is there."""
    tokenizer = load_tokenizer(recipe.tokenizer or "words")
    models = {f"judge {number}": judge for number, judge in enumerate(recipe.judges, start=1)}
    with open_run("vote", recipe, out, models, recipe.provenance(), Labeling.prompts(recipe)) as run:
        judges = [*run.models.values()]
        pool = gather_pool(recipe, tokenizer)
        labeling = PanelLabeling(recipe, tokenizer, pool, judges, recipe.voting)
        with Log(out / VOTES, VoteRecord) as votes:
            manifest = run.write(
                recipe.read(),
                labeling.make_rows,
                total=pool.documents,
                progress=progress,
                log=append_votes(votes),
            )
    agreement = measure_agreement(Log(out / VOTES, VoteRecord), recipe.voting.tolerance).to_dict()
    manifest["agreement"] = agreement
    write_json(out / MANIFEST, manifest)
    return manifest


class PanelLabeling(Labeling):
    """Labels an answer with the consensus of several judges, each of whom scores it on its own (paper, section 4)."""

    def __init__(
        self,
        recipe: LabelingRecipe,
        tokenizer: Tokenizer,
        pool: DistractorPool,
        judges: Sequence[AsyncModel],
        voting: VotingSettings,
    ) -> None:
        super().__init__(recipe, tokenizer, pool, judges[0])
        self._judges, self._voting = judges, voting

    async def label(self, document: Document, answer: Answer) -> None:
        """Asks all judges and counts their votes."""
        votes = await ask_panel(self._judges, answer.request, answer.candidate.text)
        count = count_votes(votes, self._voting)
        answer.count, steps = count, answer.steps
        read = len(votes) - len(count.unparsed)
        if read:
            steps["votes read", KEPT] += read
        if count.unparsed:
            steps["votes read", "unparsed"] += len(count.unparsed)
        if count.consensus is None:
            steps["consensus", count.reason] += 1
            return
        steps["consensus", KEPT] += 1
        if self.recipe.rows == "judgments":
            if count.chosen is None:
                steps["contrast", "no_contrast"] += 1
                return
            step = "contrast" if count.contrast != "none" else "marked as without contrast"
            steps[step, KEPT] += 1
        answer.score = count.consensus.score

    def row(
        self, document: Document, answer: Answer, prompt: PaddedPrompt, columns: dict[str, Any]
    ) -> dict[str, Any]:
        """The consensus judgment over the long context, and those that it outvoted."""
        assert answer.count is not None
        columns = columns | {
            "query": document.question,
            "answer": answer.candidate.text,
            "model": answer.candidate.model,
            "perturbation": answer.candidate.perturbation,
            "prompt_ctx_length": columns.pop("tokens"),
            "insert_index": prompt.context.chunks_before if prompt.context.text else None,
        }
        identity = f"{document.id}#{answer.number}"
        return judgment_row(identity, document.group, prompt.messages, answer.count, columns)

    def votes(self, document: Document, answers: Sequence[Answer]) -> list[VoteRecord]:
        """The votes on all answers of a document, those without a consensus included."""
        found = []
        for answer in answers:
            assert answer.count is not None
            cast = [
                *(vote for cluster in answer.count.clusters for vote in cluster.votes),
                *answer.count.unparsed,
            ]
            scores = {vote.judge: vote.score for vote in cast}
            ordered = {judge.name: scores[judge.name] for judge in self._judges}
            found.append(VoteRecord(f"{document.id}#{answer.number}", document.group, ordered))
        return found


async def ask_panel(judges: Sequence[AsyncModel], request: TaskRequest, response: str) -> list[Vote]:
    """Asks all judges about one response at the same time.

    Each gets its own seed, so that one model that votes several times, under several names, does not repeat itself.
    """

    async def vote(judge: AsyncModel) -> Vote:
        own = replace(request, seed=seed_of(request.seed, judge.name))
        (completion,) = await ask(judge, own)
        return read_judgment(judge.name, completion, request, response)

    return await asyncio.gather(*map(vote, judges))


def append_votes(log: Log[VoteRecord]) -> LogBatch:
    """Logs the votes of a batch, each once: a killed run may have logged a batch that now comes again."""
    known = {vote.id for vote in log}

    def append(outcomes: Sequence[InputOutcome]) -> None:
        log.append(*(vote for one in outcomes for vote in one.votes if vote.id not in known))

    return append


def measure_agreement(votes: Iterable[VoteRecord], tolerance: float) -> Agreement:
    """The agreement of the judges on all responses, those without a consensus included."""
    found = Agreement(tolerance)
    for vote in votes:
        found.see(vote.scores, vote.group)
    return found
