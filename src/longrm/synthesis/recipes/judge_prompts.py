"""`longrm synthesize judge-prompts`: comparisons with known gold become judging prompts to train judges on."""

import hashlib
import json
from collections.abc import Iterable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from longrm import benchmarks
from longrm.benchmarks import OwnTokenizer, Probe
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging import JudgingFormat, load_format
from longrm.judging.judge_prompts import ASK_ANSWER, ASK_CONFIDENCE, judge_prompt_rows, stated_answers
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import ComparisonRecipe
from longrm.types import Comparison, text_of
from longrm.worlds.words_tokenizer import load_tokenizer


class PromptProbe(Probe):
    """The questions of generated worlds.

    Attributes:
        seed: Seed of the generated contexts; `longrm probe` and `longrm evaluate` use 1000000.
    """

    seed: int = 0


class JudgePromptsRecipe(ComparisonRecipe):
    """Settings of `longrm synthesize judge-prompts`.

    Attributes:
        probe: Lengths, depths and tasks of a probe.
        formats: "pairwise" (every pair of responses that gold orders, in both orders), "listwise" (all responses, in a
            drawn order and its reverse), "pointwise" (every response alone); several make rows of each.
        template: Your own judging prompt (jinja2), for a single format.
        tokenizer: "words", "judge_words", "approximate", or a tokenizer's file, folder or Hub id, that of the judge to
            train: it counts the tokens of prompts (`length`), with its chat template, and of a probe's contexts.
        solve: Ask for the judge's own answer before the verdict; the column `answer` has the gold answers.
        confidence: Ask for the judge's confidence before the verdict.
    """

    probe: PromptProbe = PromptProbe()
    formats: tuple[Literal["pairwise", "listwise", "pointwise"], ...] = Field(("pairwise",), min_length=1)
    template: str | None = None
    tokenizer: str = "approximate"
    solve: bool = False
    confidence: bool = False

    @model_validator(mode="after")
    def _fits_the_template(self) -> Self:
        if len(set(self.formats)) < len(self.formats):
            raise ValueError(f"formats must differ, got {list(self.formats)}")
        if self.template is not None and len(self.formats) > 1:
            raise ValueError(f"template requires a single format, got {list(self.formats)}")
        return self


RECIPE = JudgePromptsRecipe


def synthesize(recipe: JudgePromptsRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes judging prompts into the run folder `out`, continuing what is there."""
    name = recipe.tokenizer
    tokenizer = load_tokenizer(name)
    bench = benchmarks.load(
        recipe.source,
        source=recipe.reading,
        probe=recipe.probe,
        own=lambda: OwnTokenizer(name, name),
    )
    template = None if recipe.template is None else Path(recipe.template).expanduser()
    formats = [load_format(format, template=template) for format in recipe.formats]
    prompts = {format.name: [*format.prompt_texts, ASK_ANSWER, ASK_CONFIDENCE] for format in formats}
    with open_run("judge-prompts", recipe, out, {}, recipe.provenance(bench), prompts) as run:
        total, contradictory = contradictory_pairs(bench.comparisons)
        make = partial(make_rows, recipe, formats, tokenizer, contradictory)
        return run.write(bench.comparisons, make, total=total, progress=progress)


async def make_rows(
    recipe: JudgePromptsRecipe,
    formats: Iterable[JudgingFormat],
    tokenizer: Tokenizer,
    contradictory: frozenset[bytes],
    comparison: Comparison,
) -> InputOutcome:
    """The rows of a comparison; none if its gold is unknown or a tie, or another comparison contradicts it."""
    if comparison.role == "judgment":
        raise DataError(
            f"{recipe.source}: comparison '{comparison.id}' has judgments of one response; judging prompts need "
            "responses to a prompt"
        )
    steps, ranks = Steps(), comparison.ranks
    reason = (
        "order_unknown"
        if ranks is None
        else "tied"
        if len(set(ranks)) == 1
        else "contradictory"
        if contradictory.intersection(ordered_pairs(comparison))
        else KEPT
    )
    steps["comparisons", reason] += 1
    if reason != KEPT or ranks is None:
        return InputOutcome(comparison.id, (), steps)
    if "pairwise" in recipe.formats:
        for one, other in combinations(ranks, 2):
            steps["pairs", "tied" if one == other else KEPT] += 1
    rows = [
        row
        for format in formats
        for row in judge_prompt_rows(
            comparison,
            format,
            tokenizer=tokenizer,
            seed=recipe.seed,
            solve=recipe.solve,
            confidence=recipe.confidence,
        )
    ]
    if recipe.solve:
        steps["gold answers", KEPT if stated_answers(comparison) else "not_in_data"] += len(rows)
    return InputOutcome(comparison.id, rows, steps)


def contradictory_pairs(comparisons: Iterable[Comparison]) -> tuple[int, frozenset[bytes]]:
    """The number of comparisons, and the pairs of responses that gold orders in both ways."""
    first_wins: dict[bytes, bool] = {}
    contradictory = set()
    total = 0
    for comparison in comparisons:
        total += 1
        for pair, wins in ordered_pairs(comparison).items():
            if first_wins.setdefault(pair, wins) != wins:
                contradictory.add(pair)
    return total, frozenset(contradictory)


def ordered_pairs(comparison: Comparison) -> dict[bytes, bool]:
    """The pairs that gold orders: a digest of the prompt and both texts, and whether the text that sorts first wins.

    Readers refuse identical responses with different ranks, so a comparison cannot contradict itself.
    """
    if comparison.ranks is None:
        return {}
    prompt = _digest(json.dumps([text_of(comparison.prompt), comparison.tools], default=str).encode())
    texts = [_digest(text_of(response).encode(errors="surrogatepass")) for response in comparison.responses]
    return {
        _digest(prompt + first + second): rank < other_rank
        for (first, rank), (second, other_rank) in combinations(
            sorted(zip(texts, comparison.ranks, strict=True)), 2
        )
        if rank != other_rank
    }


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
