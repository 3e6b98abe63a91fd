"""The attribution of one score: ablations, a sparse fit, and tests of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from longrm.attribution.ablation import AblatedScores, Removal, check_plain, sentence_weights
from longrm.attribution.records import AttributionRecord, SentenceWeight, Target, Trust
from longrm.attribution.trust import trust
from longrm.data.chunking import approximate_tokens
from longrm.data.spans import context_in
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import points
from longrm.rng import Draws
from longrm.types import Query

MASKS = 48
"""Prompts to which the weights of single sentences are fitted."""


def attribute(
    model: RewardModel,
    query: Query,
    target: Target,
    removal: Removal = "filler",
    *,
    masks: int = MASKS,
    seed: int = 0,
    count: Callable[[str], int] = approximate_tokens,
    report: Callable[[int], None] = lambda prompts: None,
) -> AttributionRecord:
    """Finds the sentences of a query's context that moved a score, and tests whether that can be trusted.

    The model is asked again without some sentences: without parts of a long context first, then without what the
    influential parts consist of, down to sentences. Their weights are those of a sparse linear model of `masks` prompts
    that leave out each with probability one half (ContextCite, Cohen-Wang et al. 2024).

    Args:
        model: Any reward model.
        query: The prompt, with the spans of its context where they are known, and the responses.
        target: What is explained.
        removal: What takes the place of a sentence: "filler" of as many tokens, or nothing ("deletion").
        masks: Prompts to which the weights are fitted.
        seed: Draws the prompts.
        count: Counts the tokens of a text; fillers are as long as what they replace.
        report: Called with the number of prompts so far.
    """
    scores = AblatedScores(model, query, target, removal, count, report)
    weighted: tuple[SentenceWeight, ...]
    tested: Trust | None
    try:
        check_plain(query)
        if len(scores.sentences) < 2:
            raise DataError(f"the context has {len(scores.sentences)} sentences; at least 2 are required")
        weights, constant = sentence_weights(scores, masks, Draws("attribution", seed, query.id))
        explained = replace(query, responses=tuple(query.responses[at] for at in target.responses()))
        deviation = None if target.against is None else model.head_deviation(explained)
        tested = trust(scores, weights, constant, deviation, Draws("trust", seed, query.id))
        weighted = tuple(
            SentenceWeight(one.message, one.start, one.end, float(weight))
            for one, weight in zip(scores.sentences, weights, strict=True)
        )
        detail = ""
    except DataError as error:
        weighted, tested, detail = (), None, str(error)
    return AttributionRecord(
        query.id,
        target,
        sentences=weighted,
        trust=tested,
        tokens_computed=scores.tokens,
        prompts=scores.prompts,
        detail=detail,
    )


def target_of(values: Sequence[float], ranks: Sequence[int] | None) -> Target:
    """The lead of the response that a model prefers over the next one, or where gold says it erred, over the best.

    Of equal scores the model is taken to prefer what gold ranks higher.
    """
    gold = [0] * len(values) if ranks is None else ranks
    order = sorted(range(len(values)), key=lambda at: (-values[at], gold[at], at))
    preferred, *others = order
    better = [at for at in others if gold[at] < gold[preferred]]
    worse = [at for at in others if gold[at] > gold[preferred]]
    if better:
        return Target(preferred, min(better, key=lambda at: (gold[at], order.index(at))))
    return Target(preferred, (worse or others)[0])


def attribute_prompt(
    model: RewardModel,
    query: Query,
    context: str | None = None,
    removal: Removal = "filler",
    *,
    masks: int = MASKS,
    seed: int = 0,
) -> AttributionRecord:
    """Explains the lead of the response that a model judges best over the next one; see `RewardModel.attribute`."""
    if context is not None:
        query = replace(query, context=context_in(query.prompt, context))
    if all(one == query.responses[0] for one in query.responses):
        raise DataError("all responses are equal: there is no lead to explain")
    check_plain(query)
    (trial,) = model.judge_in_all_orders([query])
    values = points(trial)
    if not values:
        raise DataError(f"{model.name} gave no scores ({trial.outcome}): {trial.detail}")
    return attribute(model, query, target_of(values, None), removal, masks=masks, seed=seed)
