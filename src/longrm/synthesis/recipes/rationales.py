"""`longrm synthesize rationales`: reasons for known preferences, as judgments to imitate (GRAM-R^2, arXiv 2509.02492).

A writer that is shown a pair and its label writes the analysis that leads there. It is kept if a checker that reads it
without its verdict finds the label again, in both orders. Pairs without a label get one from a labeler first.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from longrm.data import ComparisonRow
from longrm.data.files import find_files
from longrm.judging.answers import answer_of, argues_otherwise
from longrm.judging.pairwise import Pairwise
from longrm.judging.prompts import free_name, response_text
from longrm.rng import seed_of
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.domains import wrapped
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskName, TaskRequest, ask, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.preferences import (
    PreferenceSettings,
    best_and_worst,
    lead_in_both_orders,
    pair_queries,
)
from longrm.synthesis.settings import WriterRecipe
from longrm.types import Comparison, Query, as_messages, message_text, presented_order

WRITING = (
    "The correct verdict is known: response {letter} is better. Write the analysis of a judge who reaches this "
    "verdict without knowing it: say what decides and quote the passages that show it. Call the responses only "
    "Response A and Response B. Do not mention that the verdict was known. Then write the verdict on the last line: "
    "[[{letter}]]"
)
CHECKING = (
    "Above is the analysis of another judge, without its verdict. It may be wrong: check its claims against the "
    "conversation and the responses, and use only those that are correct. Then output your final verdict on the last "
    f"line, strictly in this format: {Pairwise.form}"
)
PROMPTS = {
    "rationale": (Pairwise.instruction, WRITING),
    "check": (Pairwise.instruction, CHECKING),
    "label": (Pairwise.instruction, Pairwise.request),
}

_PAIRWISE = Pairwise()
_VERDICT = r"\[\[[ABC]\]\]"
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")
_NAME = re.compile(r"\b(responses?|answers?|assistants?) ([AB])\b", re.IGNORECASE)
# A bare letter may be the article or a word of the responses, so it cannot be swapped.
_BARE = re.compile(
    r"\bB\b|\bA(?=['’]s\b)|\bA (?:is|was|has|does|says|states|gives|names|claims|fails|omits|also|correctly)\b"
)
_MENTIONS_LABEL = re.compile(
    r"\b(?:I|we) (?:am|are|was|were) told\b|\bthe (?:known|given|right|stated|gold) (?:label|verdict|preference)\b",
    re.IGNORECASE,
)


class RationalesRecipe(WriterRecipe):
    """Settings of `longrm synthesize rationales`.

    Attributes:
        preferences: Comparisons; of more than two responses the best and the worst are used.
        labeler: Labels pairs whose gold order is unknown, in both orders; without it they are dropped.
    """

    preferences: PreferenceSettings
    labeler: ModelSettings | None = None

    @model_validator(mode="after")
    def _labeler_can_judge(self) -> Self:
        if self.labeler is not None and self.labeler.model.startswith("simulated:"):
            raise ValueError("a simulated labeler knows no label: set labeler.model to another model")
        return self

    @property
    def models(self) -> dict[str, ModelSettings]:
        """The models to ask, by role."""
        return super().models | ({"labeler": self.labeler} if self.labeler else {})


RECIPE = RationalesRecipe


def synthesize(recipe: RationalesRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes demonstrations of judgments into the run folder `out`, continuing what is there."""
    preferences = recipe.preferences
    sources = [preferences.provenance(find_files(preferences.place))]
    total = sum(1 for _ in preferences.read())
    with open_run("rationales", recipe, out, recipe.models, sources, PROMPTS) as run:
        writer = run.models["writer"]
        make = partial(
            make_rows, recipe, writer, run.models.get("checker", writer), run.models.get("labeler")
        )
        return run.write(preferences.read(), make, total=total, progress=progress)


async def make_rows(
    recipe: RationalesRecipe,
    writer: AsyncModel,
    checker: AsyncModel,
    labeler: AsyncModel | None,
    source: ComparisonRow,
) -> InputOutcome:
    """Makes two judgments of a pair, one for each order; none if a step drops it."""
    comparison, steps = source.comparison, Steps()
    pair: tuple[int, int] | None
    if comparison.ranks is not None:
        pair = best_and_worst(comparison)
        steps["pairs", KEPT if pair else "tied"] += 1
    elif labeler is None or len(comparison.responses) > 2:
        pair = None
        steps["pairs", "order_unknown" if labeler is None else "more_than_two_responses"] += 1
    else:
        steps["pairs", KEPT] += 1
        pair, reason = await _label(recipe, labeler, comparison)
        steps["labels", reason or KEPT] += 1
    if pair is None:
        return InputOutcome(source.id, (), steps)

    # The drawn order decides which letter is right: no model learns the label from the place.
    shown = [index for index in presented_order(comparison, recipe.seed) if index in pair]
    letter, other = ("A", "B") if shown[0] == pair[0] else ("B", "A")
    query, swapped = pair_queries(comparison, (shown[0], shown[1]))
    seed = seed_of("rationale", recipe.seed, comparison.id)
    (reply,) = await ask(
        writer, _request("rationale", recipe, query, WRITING.format(letter=letter), seed, letter=letter)
    )
    reason = failure_of(reply) or problem_of(reply.text, query, letter)
    steps.reply("rationales", reason, reply.text)
    if reason:
        return InputOutcome(source.id, (), steps)

    analysis = analysis_of(reply.text)
    judgments = (
        (query, shown, analysis, letter),
        (swapped, shown[::-1], with_names_swapped(analysis), other),
    )
    requests = []
    for one, _, text, _ in judgments:
        claims = without_winner(text)
        tag = free_name("analysis", [claims, *(response_text(response, one) for response in one.responses)])
        requests.append(
            _request("verify", recipe, one, f"{wrapped(tag, claims)}\n\n{CHECKING}", analysis=claims)
        )
    reason, lead = lead_in_both_orders((query, swapped), await ask(checker, *requests))
    reason = reason or ("tie" if not lead else "" if (lead > 0) == (letter == "A") else "wrong")
    steps["check", reason or KEPT] += 1
    if reason:
        return InputOutcome(source.id, (), steps)
    rows = []
    for one, order, text, verdict in judgments:
        (messages,) = _PAIRWISE.render(one)
        rows.append(
            {
                "id": f"{comparison.id}#{'-'.join(map(str, order))}",
                "group": comparison.group,
                "prompt": [dict(message) for message in messages],
                "completion": f"{text}\n\n[[{verdict}]]",
                "order": order,
                "label": "given" if comparison.ranks is not None else "model",
                "writer": writer.name,
                "checker": checker.name,
            }
        )
    return InputOutcome(source.id, rows, steps)


async def _label(
    recipe: RationalesRecipe, labeler: AsyncModel, comparison: Comparison
) -> tuple[tuple[int, int] | None, str]:
    """The chosen and the rejected response by the labeler's verdicts, or why there is no label."""
    queries = pair_queries(comparison, (0, 1))
    requests = [_request("", recipe, query, Pairwise.request) for query in queries]
    reason, lead = lead_in_both_orders(queries, await ask(labeler, *requests))
    if reason or not lead:
        return None, reason or "tie"
    return ((0, 1) if lead > 0 else (1, 0)), ""


def _request(
    task: TaskName, recipe: RationalesRecipe, query: Query, request: str, seed: int = 0, **parts: str
) -> TaskRequest:
    """A judging prompt that ends with this request in place of the format's."""
    (messages,) = _PAIRWISE.render(query)
    content = message_text(messages[0]).removesuffix(Pairwise.request) + request
    first, second = (response_text(response, query) for response in query.responses)
    return TaskRequest(
        as_messages(content, "user"),
        recipe.max_tokens,
        0.0,
        seed,
        _VERDICT,
        task=task,
        parts={"first": first, "second": second, **parts},
    )


def problem_of(reply: str, query: Query, letter: str) -> str:
    """Why a writer's reply is no analysis that leads to the label; empty if it is one."""
    verdict, analysis = _PAIRWISE.parse(reply, query), analysis_of(reply)
    if verdict is None:
        return "no_verdict"
    if verdict.values != ((1.0, 0.0) if letter == "A" else (0.0, 1.0)) or verdict.contradicted:
        return "another_verdict"
    if not without_winner(analysis).strip():
        return "no_analysis"
    if _MENTIONS_LABEL.search(analysis):
        return "mentions_the_label"
    return "bare_letters" if _BARE.search(_NAME.sub("", analysis)) else ""


def analysis_of(reply: str) -> str:
    """A reply without thoughts and without the lines of its verdict."""
    lines = answer_of(reply).strip().splitlines()
    return "\n".join(line for line in lines if not _PAIRWISE.marker.search(line)).strip()


def without_winner(analysis: str) -> str:
    """An analysis without the sentences that only state which response wins: they would reveal the label."""
    lines = []
    for line in analysis.splitlines():
        kept = [one for one in _SENTENCE.split(line) if not _states_winner(one)]
        lines.append(" ".join(kept))
    return "\n".join(lines).strip()


def _states_winner(sentence: str) -> bool:
    plain = sentence.strip(" *_#.!。")
    claimed = _PAIRWISE.claimed(plain) is not None or _PAIRWISE.labeled.fullmatch(plain) is not None
    return claimed or argues_otherwise(sentence, (1.0, 0.0)) is not None


def with_names_swapped(analysis: str) -> str:
    """The analysis for the responses in the other order: Response A becomes Response B, and B becomes A."""
    return _NAME.sub(lambda match: f"{match[1]} {'BA'['AB'.index(match[2].upper())]}", analysis)
