"""`longrm synthesize vote`: a panel's consensus on the short context is learned on the long one (stage 2).

Paper, section 4; the rules are in `labels.consensus`.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from longrm.errors import ConfigError
from longrm.rng import seed_of
from longrm.runs.folder import MANIFEST, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.inputs.candidates import SynthesisInput
from longrm.synthesis.inputs.input_settings import digest_of
from longrm.synthesis.judge import read_judgment
from longrm.synthesis.labels.agreement import Agreement
from longrm.synthesis.labels.consensus import (
    Vote,
    VotingSettings,
    consensus_judgment,
    count_votes,
    judgment_row,
)
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
from longrm.synthesis.pipeline import Provenance, open_run
from longrm.synthesis.recipes.short_to_long import LabelingRecipe
from longrm.synthesis.stats import Dropped, InputOutcome, StepCounts, VoteRecord
from longrm.worlds.words_tokenizer import load_tokenizer

VOTES = "votes.jsonl"
EQUAL = "equal"


class VoteRecipe(LabelingRecipe):
    """Settings of `longrm synthesize vote`.

    Attributes:
        judges: Score every answer, each alone; two at least. Where settings ask a judge whether passages suffice,
            the first is asked.
        voting: The rules by which votes are counted.
        weights: What the judges' votes weigh: "equal", or the folder of an earlier vote of judges with the same
            names, whose measured agreement with the others is taken. With the answers in one `remote.cache`, the
            second of two runs asks nobody again.
    """

    judges: tuple[AskedModel, ...] = Field(min_length=2)
    voting: VotingSettings = VotingSettings()
    weights: str = EQUAL

    @model_validator(mode="after")
    def _asks_different_judges(self) -> Self:
        asked = [(model.model, model.remote.extra) for model in self.judges]
        again = next((one for one in asked if asked.count(one) > 1), None)
        if again is not None and not self.temperature and not again[0].startswith("simulated:"):
            raise ValueError(
                f"'{again[0]}' votes twice, and at temperature 0 it would say the same twice; set temperature, or "
                "name another model"
            )
        return self


RECIPE = VoteRecipe


def synthesize(recipe: VoteRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-2 rows and the votes into the run folder `out`, continuing what is there."""
    tokenizer = load_tokenizer(recipe.tokenizer)
    roles = {f"judge {number}": model for number, model in enumerate(recipe.judges, start=1)}
    sources, weights = recipe.provenance(), None
    if recipe.weights != EQUAL:
        path = _votes_of(recipe)
        known = measure_agreement(Log(path, VoteRecord), recipe.voting.tolerance).weights()
        weights = {model.called: known[model.called] for model in recipe.judges if model.called in known}
        sources.append(
            {"name": "votes that weigh the judges", "path": str(path), "sha256": digest_of([path])}
        )
    provenance = Provenance(sources, recipe.seed, prompt_hashes(recipe), {})
    with open_run("vote", recipe, out, recipe.with_evidence_model(roles), provenance) as run:
        judges = [run.models[role] for role in roles]
        finder = run.models.get("evidence model", judges[0])
        labeler = PanelLabeler(judges, recipe.voting, recipe.rows, weights)
        pool = gather_pool(recipe.read(), tokenizer, recipe)
        labeling = Labeling(recipe, tokenizer, pool, labeler, judges[0], finder)
        with Log(out / VOTES, VoteRecord) as log:
            manifest = run.write(
                recipe.read(),
                labeling.make_rows,
                total=pool.documents,
                progress=progress,
                log=VoteLog(log).append,
            )
    found = measure_agreement(Log(out / VOTES, VoteRecord), recipe.voting.tolerance)
    manifest["agreement"] = agreement_dict(found) | ({} if weights is None else {"weights": weights})
    write_json(out / MANIFEST, manifest)
    return manifest


class PanelLabeler:
    """Labels an answer by the consensus of several judges, each of whom scores it alone (paper, section 4).

    Raises:
        ConfigError: There are too few judges, two have one name, or a weight is missing.
    """

    def __init__(
        self,
        judges: Sequence[AsyncModel],
        voting: VotingSettings,
        rows: Literal["judgments", "pairs"] = "judgments",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._judges, self._voting, self._rows, self._weights = judges, voting, rows, weights
        names = [judge.name for judge in judges]
        if len(judges) < 2 or len(set(names)) < len(judges):
            raise ConfigError(f"voting needs two judges or more with different names, got {', '.join(names)}")
        missing = sorted(set(names) - weights.keys()) if weights is not None else []
        if missing:
            raise ConfigError(f"no weight for the judges {', '.join(missing)}; give every judge one")
        self.min_gap = voting.least_gap
        self.pair_columns: Mapping[str, Any] = {}

    async def votes(self, request: TaskRequest, response: str) -> list[Vote]:
        """Asks all judges about one response, at the same time.

        Each has draws of its own: one model that votes several times, under several names, is not to repeat itself.
        """

        async def vote(judge: AsyncModel) -> Vote:
            (answer,) = await ask(judge, replace(request, seed=seed_of(request.seed, judge.name)))
            found = read_judgment(answer, request, response)
            return Vote(judge.name, found.score, found.text, found.contradicted)

        return await asyncio.gather(*map(vote, self._judges))

    async def label(self, source: SynthesisInput, answer: UnlabeledAnswer, request: TaskRequest) -> Label:
        """Asks all judges and counts their votes."""
        votes = await self.votes(request, answer.candidate.text)
        record = VoteRecord(
            f"{source.id}#{answer.number}",
            source.document.group,
            {vote.judge: vote.score for vote in votes},
        )
        count, counts = count_votes(votes, self._voting, self._weights), StepCounts()
        read = len(votes) - len(count.unparsed)
        if read:
            counts.keep("votes read", read)
        if count.unparsed:
            counts.drop(Dropped("votes read", "unparsed"), len(count.unparsed))
        if count.consensus is None:
            counts.drop(Dropped("consensus", count.reason))
            return Label(None, counts.steps, vote=record)
        counts.keep("consensus")
        found = consensus_judgment(count, self._voting, self._weights)
        score: float | None = count.consensus.score
        if self._rows == "judgments" and found is None:
            counts.drop(Dropped("contrast", "no_contrast"))
            score = None
        elif self._rows == "judgments" and found is not None:
            counts.keep("contrast" if found.contrast != "none" else "marked as without contrast")
        return Label(
            score, counts.steps, consensus=found, cluster_sizes=tuple(count.cluster_sizes), vote=record
        )

    def row(
        self, source: SynthesisInput, labeled: LabeledAnswer, prompt: PaddedPrompt, columns: dict[str, Any]
    ) -> dict[str, Any]:
        """The consensus judgment over the long context, and those that it outvoted."""
        document, candidate, judgment = source.document, labeled.answer.candidate, labeled.label.consensus
        assert judgment is not None, "only answers with a consensus judgment become rows of judgments"
        columns = columns | {
            "query": document.question,
            "answer": candidate.text,
            "model": candidate.model,
            "perturbation": candidate.perturbation,
            "prompt_ctx_length": columns.pop("tokens"),
            "insert_index": prompt.context.chunks_before if prompt.context.text else None,
        }
        identity = f"{document.id}#{labeled.answer.number}"
        return judgment_row(identity, document.group, prompt.messages, judgment, columns)


class VoteLog:
    """Keeps the votes of a run, each once: a killed run may have logged a batch that it now repeats."""

    def __init__(self, log: Log[VoteRecord]) -> None:
        self._log = log
        self._known = {_digest(vote.id) for vote in log}

    def append(self, outcomes: Sequence[InputOutcome]) -> None:
        """Logs the votes of a batch of inputs."""
        votes = [vote for one in outcomes for vote in one.votes]
        self._log.append(*(vote for vote in votes if _digest(vote.id) not in self._known))


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(errors="surrogatepass"), digest_size=8).digest()


def measure_agreement(votes: Iterable[VoteRecord], tolerance: float) -> Agreement:
    """The agreement of a run's judges on all responses, those without a consensus included."""
    found = Agreement(tolerance)
    for vote in votes:
        found.see(vote.scores, vote.group)
    return found


def agreement_dict(found: Agreement) -> dict[str, Any]:
    """What a manifest says of how much judges agree; intervals are a bootstrap over documents."""
    return {
        "krippendorff_alpha": asdict(found.alpha()),
        "pairwise": asdict(found.pairwise()),
        "pairs": [
            {
                "judges": list(pair),
                "n": both.n,
                "agreement": both.agreement,
                "mean_distance": both.mean_distance,
            }
            for pair, both in found.pairs().items()
        ],
        "judges": {
            judge: {
                "asked": known.asked,
                "unparsed": known.unparsed,
                "agreement_with_others": known.others.agreement,
            }
            for judge, known in found.judges().items()
        },
    }


def _votes_of(recipe: VoteRecipe) -> Path:
    path = Path(recipe.weights).expanduser() / VOTES
    if not path.is_file():
        raise ConfigError(
            f"weights = '{recipe.weights}' names no vote: there is no {path}; give the folder of an earlier "
            f"`longrm synthesize vote`, or '{EQUAL}'"
        )
    return path
