"""Prompts without some sentences of their context, their scores, and a sparse linear model of these scores."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from longrm.attribution.records import Target
from longrm.data.chunking import WORD_OR_MARK, sentence_spans, unspaced
from longrm.data.spans import disjoint_spans, edit_context
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.reward_models.lexical import LexicalIndex
from longrm.reward_models.trials import to_scores
from longrm.rng import Rng
from longrm.types import Judgment, Outcome, Query, Scale, Span, message_text, text_of

Removal = Literal["filler", "deletion"]
"""What replaces a removed sentence: text of the same length, or nothing."""

# Words and punctuation marks of a sentence. A longer one, such as a line of data, is cut between words.
_LONGEST = 64

# Sentences whose words become filler.
_FILLERS = 16

# Added to the votes of each of two responses, so that the log-odds of unanimous votes are finite.
_PRIOR = 0.5

# Search: contexts of more than SINGLE sentences are first cut into PARTS parts. Each is left out alone, and HALVES
# times a random half of all; with 16 halves, one of two parts that say the same may be missed. Parts with at least
# LEAST of the strongest weight, at most KEPT, are cut again.
SINGLE, PARTS, HALVES = 32, 24, 32
_KEPT, _LEAST = 12, 0.25

# Of the LASSO, on scores and masks of unit variance.
_ALPHA = 0.01


def context_sentences(query: Query) -> tuple[Span, ...]:
    """The sentences of a query's context in reading order, without the question.

    Without a known context it is all of the prompt but the question. White space belongs to the sentence before it.
    Messages whose content is a list of parts have no sentences.
    """
    return tuple(
        Span(region.message, region.start + start, region.start + end)
        for region in _regions(query)
        if isinstance(text := query.prompt[region.message].get("content"), str)
        for start, end in sentence_spans(text[region.start : region.end], _LONGEST)
    )


def check_plain(query: Query) -> None:
    """Raises `DataError` for a context with a message whose content is a list of parts: no part can be left out."""
    for region in _regions(query):
        if not isinstance(query.prompt[region.message].get("content"), str):
            raise DataError(
                f"message {region.message} of the prompt is a list of parts; sentences can only be left out of a text"
            )


def _regions(query: Query) -> list[Span]:
    known = query.context or tuple(
        Span(number, 0, len(message_text(message))) for number, message in enumerate(query.prompt)
    )
    return disjoint_spans(known, query.question)


class AblatedScores:
    """Scores of one prompt without some of its sentences; equal prompts are scored once.

    The score is the target's value: the lead of one response over another, both scored over one ablated prompt, or one
    score alone. For a judge whose scores are shares of votes, it is the log-odds of its votes in all orders.

    Filler consists of words of the context itself, in a random order: of the sentences that share least with the
    question and the responses, and never of the sentence that it replaces. It has as many tokens as the sentence, so
    that positions and length stay.

    `count` counts the tokens of a text; `report` is called with the number of prompts after each batch.
    """

    def __init__(
        self,
        model: RewardModel,
        query: Query,
        target: Target,
        removal: Removal,
        count: Callable[[str], int],
        report: Callable[[int], None] = lambda prompts: None,
    ) -> None:
        self._query, self._count, self._report = query, count, report
        self._responses = tuple(query.responses[number] for number in target.responses())
        self._model = _Counted(model)
        self._votes = 2 if model.sees_order else 1
        self._is_verdict = model.scale == "verdict" and target.against is not None
        self.scale: Scale = "logit" if self._is_verdict else model.scale  # of differences of scores
        self.prompts = 0  # how many were scored
        # Scores by the numbers of the sentences that are left out.
        self._known: dict[frozenset[int], float] = {}
        self.sentences = context_sentences(query)
        self.texts = [message_text(query.prompt[one.message])[one.start : one.end] for one in self.sentences]
        self._space = "" if unspaced("\n".join(self.texts)) else " "
        self._unrelated = self._least_related() if removal == "filler" else []
        self._fillers: dict[int, str] = {}

    @property
    def tokens(self) -> int:
        """Tokens of prompts that were read, without cached ones."""
        return self._model.tokens

    def token_count(self, number: int) -> int:
        """The tokens of a sentence."""
        return self._count(self.texts[number])

    def without(self, left_out: Collection[int]) -> Query:
        """The query without the sentences of these numbers."""
        edits = [(self.sentences[number], self._replacement(number)) for number in left_out]
        return edit_context(self._query, edits)

    def known(self, left_out: Collection[int]) -> bool:
        """Whether the prompt without these sentences was scored already."""
        return frozenset(left_out) in self._known

    def of(self, left_out: Iterable[Iterable[int]]) -> NDArray[np.float64]:
        """The scores without each of these sets of sentences; raises `DataError` where a prompt has no score."""
        sets = [frozenset(one) for one in left_out]
        # Prompts that leave out late sentences first: they share the longest prefix with the whole prompt, which a
        # model with a prefix cache need not read again. The whole prompt itself is scored before all others.
        missing = sorted({*sets} - self._known.keys(), key=lambda one: (-min(one, default=-1), sorted(one)))
        if frozenset() in missing:
            self._score([frozenset()])
            missing.remove(frozenset())
        self._score(missing)
        return np.array([self._known[one] for one in sets])

    def _score(self, sets: Sequence[frozenset[int]]) -> None:
        queries = [replace(self.without(one), responses=self._responses) for one in sets]
        self.prompts += len(sets)
        trials = self._model.judge_in_all_orders(queries)
        self._report(self.prompts)
        for one, trial in zip(sets, trials, strict=True):
            if trial.outcome is not Outcome.ANSWERED:
                raise DataError(f"{trial.outcome}: {trial.detail}")
            first, *others = (value + 0.0 for value in to_scores(trial))  # turns -0.0 into 0.0
            lead = first - others[0] if others else first
            if self._is_verdict:
                won = self._votes * (1 + lead) / 2
                lead = log((won + _PRIOR) / (self._votes - won + _PRIOR))
            self._known[one] = lead

    def _replacement(self, number: int) -> str:
        """Filler of at most as many tokens as the sentence, with the sentence's white space at its end."""
        if not self._unrelated:
            return ""
        if number not in self._fillers:
            text = self.texts[number]
            body = text.rstrip()
            sources = [self.texts[other] for other in self._unrelated if other != number]
            known = [word for source in sources for word in WORD_OR_MARK.findall(source)]
            words = cycle(Rng("filler", number).order(known))
            needed, filler, longer = self._count(body), "", next(words)
            while not filler or self._count(longer) <= needed:
                filler, longer = longer, f"{longer}{self._space}{next(words)}"
            self._fillers[number] = filler + text[len(body) :]
        return self._fillers[number]

    def _least_related(self) -> list[int]:
        """The sentences that share least with question and responses: at most half of all, at least two."""
        lexicon = LexicalIndex(self.texts, 2 * _LONGEST)
        sought = [text_of(response) for response in self._query.responses]
        if (span := self._query.question) is not None:
            sought.append(message_text(self._query.prompt[span.message])[span.start : span.end])
        related = sum((lexicon.scores(text) for text in sought), np.zeros(len(lexicon.chunks)))
        count = min(_FILLERS, max(2, len(self.texts) // 2))
        return [lexicon.chunks[at].passage for at in np.argsort(related, kind="stable")[:count]]


class _Counted(RewardModel):
    """Counts the tokens of the prompts that a model reads."""

    def __init__(self, model: RewardModel) -> None:
        self.name, self.sees_order = model.name, model.sees_order
        self.tokens = 0
        self._model = model

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        judgments = self._model.judge(queries)
        self.tokens += sum((one.prompt_tokens or 0) - one.cached_tokens for one in judgments)
        return judgments


def random_masks(rng: Rng, parts: int, count: int) -> NDArray[np.bool_]:
    """Masks that keep each part with probability one half; [count, parts]."""
    return np.array([[rng.fraction() < 0.5 for _ in range(parts)] for _ in range(count)], dtype=bool)


def left_out(masks: NDArray[np.bool_], units: Sequence[Sequence[int]]) -> list[list[int]]:
    """The sentences of the parts that each mask leaves out."""
    return [[one for at in np.flatnonzero(~mask).tolist() for one in units[at]] for mask in masks]


def sentence_weights(scores: AblatedScores, masks: int, rng: Rng) -> tuple[NDArray[np.float64], float]:
    """The weights of all sentences, and the predicted score without any, of a sparse linear model.

    Large contexts are searched from parts down to sentences first; sentences that are not candidates have weight 0.
    """
    weights = np.zeros(len(scores.sentences))
    whole = float(scores.of([()])[0])
    units = _split(range(len(weights)), SINGLE if len(weights) <= SINGLE else PARTS)
    while any(len(unit) > 1 for unit in units):
        each_alone = ~np.eye(len(units), dtype=bool)
        drawn = np.concatenate([each_alone, random_masks(rng, len(units), HALVES)])
        sizes = np.abs(fit(drawn, scores.of(left_out(drawn, units)))[0])
        strongest = [
            at
            for at in np.argsort(-sizes, kind="stable")[:_KEPT]
            if sizes[at] and sizes[at] >= _LEAST * sizes.max()
        ]
        pieces = PARTS // max(1, len(strongest))
        units = [piece for at in sorted(strongest) for piece in _split(units[at], pieces)]
    candidates = [unit[0] for unit in units]
    if not candidates:
        return weights, whole
    drawn = random_masks(rng, len(candidates), masks)
    weights[candidates], constant = fit(drawn, scores.of(left_out(drawn, [(one,) for one in candidates])))
    return weights, constant


def fit(masks: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Fits a LASSO to scores (ContextCite, Cohen-Wang et al. 2024).

    Args:
        masks: Which parts each prompt had; [prompts, parts].
        scores: Their scores; [prompts].

    Returns:
        By how much each part raises the score, and the score without any part.
    """
    from sklearn.linear_model import Lasso

    spread, deviation = scores.std(), masks.std(axis=0)
    weights = np.zeros(masks.shape[1])
    if not spread:
        return weights, float(scores.mean())
    # Scaled to unit variance, so that one alpha suits every unit of scores; a part that never varied has weight 0.
    varied = deviation > 0
    scaled = (masks - masks.mean(axis=0))[:, varied] / deviation[varied]
    lasso = Lasso(alpha=_ALPHA, max_iter=100_000).fit(scaled, (scores - scores.mean()) / spread)
    weights[varied] = lasso.coef_ * spread / deviation[varied] + 0.0  # turns -0.0 into 0.0
    return weights, float(scores.mean() - masks.mean(axis=0) @ weights)


def _split(units: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Cuts numbers of sentences into at most `count` runs of nearly equal length."""
    count = min(count, len(units))
    edges = [len(units) * part // count for part in range(count + 1)] if count else []
    return [tuple(units[low:high]) for low, high in pairwise(edges)]
