"""The attribution of one score: ablations, a sparse fit, and tests of it on prompts that it was not fitted to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from longrm.attribution.ablation import (
    HALVES,
    PARTS,
    SINGLE,
    AblatedScores,
    Removal,
    check_plain,
    left_out,
    random_masks,
    sentence_weights,
)
from longrm.attribution.records import AttributionRecord, SentenceWeight, Target, TopDrop, Trust
from longrm.data.chunking import WORD_OR_MARK, approximate_tokens
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.rng import Rng
from longrm.types import Query

MASKS = 48
"""Prompts to which the weights of single sentences are fitted."""

# Fresh prompts for the LDS, and how many are needed: a context of few sentences has no more prompts than were fitted.
_FRESH, _LEAST_FRESH = 24, 8

# Numbers of strongest sentences that are left out together, and how often as many random others are.
_TOPS = (1, 3, 5)
_RANDOM_DRAWS = 8

# Two sentences may say the same if they share this part of their words; at most so many copies are tried.
_SAME_WORDS, _COPIES = 0.8, 4

# Thresholds of `Trust.shown`.
_LEAST_LDS = 0.4
_LEAST_DEVIATION = 3.0  # of a scalar head from random ones, in standard deviations
_ALMOST_ZERO = 0.02  # of the largest weight
_LEAST_SHARE = 0.25  # of the score that must be lost without the strongest sentences
_LEAST_DROP = 0.25  # in log-odds; starting from an even preference this is six points of probability


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
        removal: What replaces a removed sentence: "filler" of as many tokens, or nothing ("deletion").
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
            raise DataError(f"the context needs at least 2 sentences; it has {len(scores.sentences)}")
        weights, constant = sentence_weights(scores, masks, Rng("attribution", seed, query.id))
        explained = replace(query, responses=tuple(query.responses[at] for at in target.responses()))
        deviation = None if target.against is None else model.head_deviation(explained)
        tested = trust(scores, weights, constant, deviation, Rng("trust", seed, query.id))
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


def prompts_at_most(sentences: int, masks: int) -> int:
    """An upper bound of the prompts that the search, the fit and these tests score."""
    if sentences < 2:
        return 0
    # The longest part is at least halved from one level of the search to the next.
    levels = ((sentences - 1) // PARTS).bit_length() if sentences > SINGLE else 0
    top = _TOPS[1]
    tops = sum(2 * k <= sentences for k in _TOPS) * (_RANDOM_DRAWS + 3)
    redundant = comb(top, 2) + top + 1 + _COPIES + 1
    asked = 1 + levels * (PARTS + HALVES) + masks + _FRESH + tops + redundant
    return min(asked, 1 << min(sentences, 62))  # there are no more sets of sentences


def trust(
    scores: AblatedScores,
    weights: NDArray[np.float64],
    constant: float,
    head_deviation: float | None,
    rng: Rng,
) -> Trust:
    """Tests the weights, and the predicted score `constant` without any sentence, on fresh prompts."""
    whole = float(scores.of([()])[0])
    lds = _lds(scores, weights, constant, rng)
    raising = [int(at) for at in np.argsort(-weights, kind="stable") if weights[at] > 0]
    # As many others must be left to compare with.
    tops = tuple(_top(scores, raising[:k], whole, k, rng) for k in _TOPS if 2 * k <= len(weights))
    redundant = _redundant(scores, raising[: _TOPS[1]], whole)
    least_drop = _LEAST_DROP if scores.scale == "logit" else 0.0
    largest = float(np.abs(weights).max(initial=0.0))
    last = tops[-1]
    reason = _not_shown(whole, largest, head_deviation, lds, last, least_drop)
    return Trust(not reason, reason, lds, whole, last.drop, last.drop_random, head_deviation, tops, redundant)


def _not_shown(
    whole: float, largest: float, deviation: float | None, lds: float | None, top: TopDrop, least_drop: float
) -> str:
    """The first threshold that is not met; empty where all are."""
    falls = f"without the {'strongest sentence' if top.k == 1 else f'{top.k} strongest sentences'} the score falls by"
    others = max(top.drop_random, top.drop_placebo)
    if not whole:
        return "the responses are tied: there is no lead to explain"
    # A random head yields weights, too, that fit (Adebayo et al. 2018).
    if deviation is not None and abs(deviation) < _LEAST_DEVIATION:
        if abs(whole) < _ALMOST_ZERO * largest:
            return f"the lead is almost zero ({whole:.2g}), as with a random head: positive and negative effects cancel"
        return (
            f"a random head would score similarly: the score differs by {abs(deviation):.1f} standard deviations, less "
            f"than {_LEAST_DEVIATION:g}"
        )
    if lds is None:
        return "the context has too few sentences for prompts that were not fitted"
    if lds < _LEAST_LDS:
        return f"on fresh prompts predicted and true scores have a correlation of {lds:.2f}, less than {_LEAST_LDS}"
    if top.drop <= least_drop:
        return f"{falls} only {top.drop:.2f}"
    if top.drop < _LEAST_SHARE * abs(whole):
        return f"{falls} {top.drop:.2f} of {abs(whole):.2f}, less than a quarter"
    if top.drop <= 2 * others:
        return f"{falls} {top.drop:.2f}, and without others by {others:.2f}"
    return ""


def _lds(scores: AblatedScores, weights: NDArray[np.float64], constant: float, rng: Rng) -> float | None:
    """The correlation of predicted and true scores on prompts that were not scored before."""
    drawn = random_masks(rng, len(weights), 4 * _FRESH)
    units = [(at,) for at in range(len(weights))]
    fresh = {
        tuple(out): mask
        for out, mask in zip(left_out(drawn, units), drawn, strict=True)
        if not scores.known(out)
    }
    chosen = list(fresh)[:_FRESH]
    if len(chosen) < _LEAST_FRESH:
        return None
    predicted = np.array([fresh[out] for out in chosen]) @ weights + constant
    true = scores.of(chosen)
    if not np.ptp(predicted) or not np.ptp(true):
        return 0.0
    return float(spearmanr(predicted, true).statistic)


def _top(scores: AblatedScores, top: Sequence[int], whole: float, k: int, rng: Rng) -> TopDrop:
    every = range(len(scores.texts))
    size = scores.token_count
    random_sets = []
    for _ in range(_RANDOM_DRAWS):
        chosen: list[int] = []
        for one in top:  # another sentence, out of the eight whose length is nearest
            rest = [at for at in every if at not in top and at not in chosen]
            nearest = sorted(rest, key=lambda at: (abs(size(at) - size(one)), at))[:8]
            chosen += [rng.choice(nearest)] if nearest else []
        random_sets.append(chosen)
    neighbors: list[int] = []
    for one in top:
        free = [at for at in every if at not in top and at not in neighbors]
        neighbors += sorted(free, key=lambda at: (abs(at - one), at))[:1]
    fell = whole - scores.of([top, neighbors, *random_sets])
    only = scores.of([[at for at in every if at not in top]])[0]
    return TopDrop(k, float(fell[0]), float(fell[2:].mean()), float(fell[1]), float(only))


def _redundant(scores: AblatedScores, top: Sequence[int], whole: float) -> tuple[tuple[int, ...], ...]:
    """Groups of the strongest sentences that only matter together.

    Pairs are tried first; if there is none, all of these sentences, and the strongest with its copies.
    """
    pairs = tuple(combinations(top, 2))
    scores.of([*pairs, *((one,) for one in top)])  # at once: an endpoint answers many concurrently
    found = tuple(pair for pair in pairs if _matter_together(scores, pair, whole))
    groups = dict.fromkeys((tuple(top), _copies(scores.texts, top)))
    return found or tuple(
        group for group in groups if len(group) > 2 and _matter_together(scores, group, whole)
    )


def _matter_together(scores: AblatedScores, group: Sequence[int], whole: float) -> bool:
    """Whether the score falls by a quarter without all of them, and twice as far as the sum of the single falls."""
    together, *alone = whole - scores.of([group, *((one,) for one in group)])
    return bool(together > _LEAST_SHARE * abs(whole) and together > 2 * max(0.0, sum(alone)))


def _copies(texts: Sequence[str], top: Sequence[int]) -> tuple[int, ...]:
    """The strongest sentence with those that have nearly the same words, most alike first."""
    if not top:
        return ()
    words = [{*WORD_OR_MARK.findall(text.lower())} for text in texts]
    own = words[top[0]]
    alike = [len(own & some) / max(1, len(own | some)) for some in words]
    others = [at for at in range(len(texts)) if at != top[0] and alike[at] >= _SAME_WORDS]
    return (top[0], *sorted(others, key=lambda at: -alike[at])[:_COPIES])
