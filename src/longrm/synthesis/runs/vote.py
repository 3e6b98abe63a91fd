"""`longrm synthesize vote`: stage 2."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from longrm.errors import ConfigError
from longrm.runs.folder import MANIFEST, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.agreement import Agreement
from longrm.synthesis.ballots import Cast, measured
from longrm.synthesis.casework import gather_pool, prompt_hashes
from longrm.synthesis.inputs import digest_of
from longrm.synthesis.jury import Jury
from longrm.synthesis.models import Model
from longrm.synthesis.records import Source
from longrm.synthesis.runs.course import Course, Opened, Work
from longrm.synthesis.runs.stages import StageRecipe
from longrm.synthesis.voting import Voting
from longrm.worlds.words_tokenizer import load_tokenizer

VOTES = "votes.jsonl"
EQUAL = "equal"


class VoteRecipe(StageRecipe):
    """Settings of `longrm synthesize vote`.

    Attributes:
        judges: Score every answer, each alone; two at least. Where settings ask a judge whether passages suffice,
            the first is asked.
        voting: The rules by which votes are counted.
        weights: What the judges' votes weigh: "equal", or the folder of an earlier vote of judges with the same
            names, whose measured agreement with the others is taken. With the answers in one `remote.cache`, the
            second of two runs asks nobody again.
    """

    judges: tuple[Model, ...] = Field(min_length=2)
    voting: Voting = Voting()
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


def run(recipe: VoteRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes stage-2 rows and the votes into the run folder `out`, continuing what is there.

    Returns:
        The manifest, with the `agreement` of the judges.

    Raises:
        ConfigError: The settings are at odds.
        DataError: A document or candidate cannot be read.
        ModelError: A model or the tokenizer cannot be loaded or reached.
        RunError: The folder holds something else, or a model could not be asked.
    """
    tokenizer = load_tokenizer(recipe.tokenizer)
    judges = {f"judge {number}": model for number, model in enumerate(recipe.judges, start=1)}
    models = judges | ({"finder": recipe.finder} if recipe.finder is not None else {})
    weights = _weights(recipe)
    with ExitStack() as stack:

        def prepare(opened: Opened) -> tuple[Work[Source], int]:
            asked = opened.models
            pool = gather_pool(recipe.documents.read(), tokenizer, recipe)
            votes = stack.enter_context(Log(opened.folder.path / VOTES, Cast))
            jury = Jury(
                recipe,
                recipe.voting,
                tokenizer,
                pool,
                [asked[role] for role in judges],
                finder=asked.get("finder"),
                weights=weights,
                votes=votes,
            )
            return jury.work, sum(1 for _ in recipe.sources())

        course = Course[Source](
            "vote",
            recipe,
            recipe.sources,
            lambda source: source.document.id,
            models,
            [*recipe.provenance(), *_votes_source(recipe)],
            prompt_hashes(recipe),
            recipe.seed,
        )
        manifest = course.take(out, prepare, progress)
    found = measured(Log(out / VOTES, Cast), recipe.voting.tolerance)
    manifest["agreement"] = told(found) | ({} if weights is None else {"weights": weights})
    write_json(out / MANIFEST, manifest)
    return manifest


def told(found: Agreement) -> dict[str, Any]:
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


def _weights(recipe: VoteRecipe) -> dict[str, float] | None:
    """The judges' weights by their names; None where all weigh the same."""
    if recipe.weights == EQUAL:
        return None
    found = measured(Log(_votes_of(recipe), Cast), recipe.voting.tolerance).weights()
    return {model.called: found[model.called] for model in recipe.judges if model.called in found}


def _votes_of(recipe: VoteRecipe) -> Path:
    path = Path(recipe.weights).expanduser() / VOTES
    if not path.is_file():
        raise ConfigError(
            f"weights = '{recipe.weights}' names no vote: there is no {path}; give the folder of an earlier "
            f"`longrm synthesize vote`, or '{EQUAL}'"
        )
    return path


def _votes_source(recipe: VoteRecipe) -> list[dict[str, str]]:
    if recipe.weights == EQUAL:
        return []
    path = _votes_of(recipe)
    return [{"name": "votes that weigh the judges", "path": str(path), "sha256": digest_of([path])}]
