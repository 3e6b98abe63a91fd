"""Reward models made of other reward models: ensembles, rubrics, and compression of the context."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from longrm.data.criteria import read_rubrics
from longrm.data.spans import disjoint_spans, edit_context
from longrm.errors import ConfigError, DataError
from longrm.reading import file_digest
from longrm.reward_models.lexical import index
from longrm.reward_models.protocol import RewardModel, WrappedRewardModel
from longrm.reward_models.trials import mean_scores, merge_judgments, to_scores
from longrm.types import Criterion, Cut, Judgment, Outcome, Query, Scale, Span, message_text, text_of

_logger = logging.getLogger(__name__)

# ---- Ensembles ----

Points = Sequence[float]
"""One member's number for every response, higher is better."""


def _mean_rank(points: Points) -> list[float]:
    """1 for the first place down to 0 for the last; ties share their places."""
    others = max(1, len(points) - 1)
    # 0.5 is subtracted for the comparison of each response with itself.
    beaten = [sum((one > other) + 0.5 * (one == other) for other in points) - 0.5 for one in points]
    return [count / others for count in beaten]


def _votes(points: Points) -> list[float]:
    """One vote for the best response, shared by ties."""
    best = [float(value == max(points)) for value in points]
    return [value / sum(best) for value in best]


COMBINATIONS: Mapping[str, Callable[[Points], list[float]]] = {"mean-rank": _mean_rank, "votes": _votes}
"""The registry of combinations: what each member contributes to every response; the ensemble's score is the mean."""


class EnsembleRewardModel(RewardModel):
    """The mean over several reward models of each response's place, or of their votes for the best.

    Scores of the members are not compared, so members of all kinds can be combined. Each member is queried in all
    orders that it distinguishes, so the ensemble distinguishes none. It answers only if every member does: a mean over
    varying members would not measure any judge. Otherwise its outcome is that of the first member without an answer,
    or an error if any member ended in one.
    """

    scale: Scale = "verdict"

    def __init__(self, members: Sequence[RewardModel], combination: str) -> None:
        self.name = f"ensemble:{combination}:{'+'.join(member.name for member in members)}"
        self.samples = any(member.samples for member in members)
        self.by_criterion = all(member.by_criterion for member in members)
        self.provenance = {
            f"{number} {key}": value
            for number, member in enumerate(members, start=1)
            for key, value in member.provenance.items()
        }
        self._members = members
        self._combine = COMBINATIONS[combination]

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Queries one member after the other."""
        by_member = [member.judge_in_all_orders(queries) for member in self._members]
        judgments = []
        for trials in zip(*by_member, strict=True):
            failed = _first_unanswered(trials)
            if failed is None:
                shares = [self._combine(to_scores(trial)) for trial in trials]
                judgments.append(Judgment(Outcome.ANSWERED, mean_scores(shares)))
            else:
                detail = f"{self._members[failed].name}: {trials[failed].detail}"
                judgments.append(Judgment(trials[failed].outcome, detail=detail))
        return judgments


def _first_unanswered(judgments: Sequence[Judgment]) -> int | None:
    """The index of the first error, else of the first judgment without an answer."""
    outcomes = [judgment.outcome for judgment in judgments]
    if Outcome.ERROR in outcomes:
        return outcomes.index(Outcome.ERROR)
    return next((at for at, outcome in enumerate(outcomes) if outcome is not Outcome.ANSWERED), None)


# ---- Rubrics ----


class RubricRewardModel(WrappedRewardModel):
    """Queries a judge about one criterion at a time; the score is the weighted mean.

    All prompts about a query begin alike, up to the criterion, so a model with a prefix cache reads prompt and
    responses once. Weights are normalized by the sum of their absolute values. A query is answered if every criterion
    is; otherwise its outcome is that of the first one without an answer, or an error if any ended in one. `rubrics` is
    "item", for the criteria in each row of the data, or a file of criteria.
    """

    def __init__(self, inner: RewardModel, rubrics: str) -> None:
        if not inner.by_criterion:
            raise ConfigError(
                f"judge.rubrics requires a judge (a causal language model, tokens:MODEL or an endpoint), and "
                f"{inner.name} answers no questions"
            )
        super().__init__(inner)
        self.by_criterion = False
        self._criteria: tuple[Criterion, ...] = ()
        if rubrics != "item":
            self._criteria = read_rubrics(Path(rubrics))
            self.provenance = {**inner.provenance, "rubrics": file_digest(Path(rubrics), DataError)}

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Queries the judge about all criteria of all queries in one call."""
        rubrics = [self._criteria or query.rubrics for query in queries]
        by_criterion = [
            replace(query, criterion=criterion.text)
            for query, criteria in zip(queries, rubrics, strict=True)
            for criterion in criteria
        ]
        judgments = iter(self.inner.judge(by_criterion))
        return [_weighted(criteria, [next(judgments) for _ in criteria]) for criteria in rubrics]


def _weighted(criteria: Sequence[Criterion], judgments: Sequence[Judgment]) -> Judgment:
    if not criteria:
        return Judgment(
            Outcome.ERROR, detail="the row has no `rubrics`; add some, or set judge.rubrics to a file"
        )
    explanations = []
    for criterion, judgment in zip(criteria, judgments, strict=True):
        scores = ", ".join(f"{value:.4g}" for value in to_scores(judgment))
        result = scores or judgment.outcome.replace("_", " ")
        heading = f"{criterion.text} (weight {criterion.weight:g}): {result}"
        explanations.append(f"{heading}\n{judgment.explanation}".rstrip())
    whole = merge_judgments(judgments, "\n\n".join(explanations))
    failed = _first_unanswered(judgments)
    if failed is not None:
        detail = f"criterion {failed + 1} of {len(criteria)}: {judgments[failed].detail}"
        return replace(whole, outcome=judgments[failed].outcome, detail=detail)
    total = sum(abs(criterion.weight) for criterion in criteria)
    rows = tuple(
        # + 0.0 turns the -0.0 of a negative weight into 0.0.
        tuple(criterion.weight / total * value + 0.0 for value in to_scores(judgment))
        for criterion, judgment in zip(criteria, judgments, strict=True)
    )
    return replace(whole, scores=tuple(map(sum, zip(*rows, strict=True))), criteria=rows)


# ---- Compression ----

LEFT_OUT = "\n[...]\n"
"""Replaces chunks of the context that were left out."""

CHUNK = 128
"""Words and punctuation marks of a chunk: a paragraph, which is enough to hold one piece of evidence."""


class CompressRewardModel(WrappedRewardModel):
    """Queries another reward model with only the most relevant chunks of the context.

    Relevance does not depend on the order of the responses, so all orders see the same context. The judgment's `cut`
    counts what was left out. Prompts whose context is not marked are not compressed; the first one is logged. At most
    `tokens` words and punctuation marks are kept, in chunks of `chunk`.
    """

    def __init__(self, inner: RewardModel, tokens: int, chunk: int = CHUNK) -> None:
        super().__init__(inner)
        self.name, self.limit = f"compress:{inner.name}", None  # it reads contexts of any length
        self._tokens, self._chunk = tokens, chunk
        self._warned = False

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Compresses every query and returns what the other model judges."""
        unmarked = next((query.id for query in queries if not _context_of(query)), None)
        if unmarked is not None and not self._warned:
            self._warned = True
            _logger.warning(
                "%s: the context of '%s' is not marked or not plain text, so it and others like it are not compressed",
                self.name,
                unmarked,
            )
        compressed = [compress(query, self._tokens, self._chunk) for query in queries]
        judgments = self.inner.judge([query for query, _ in compressed])
        results = []
        for judgment, (_, cut) in zip(judgments, compressed, strict=True):
            if cut is not None:
                also = 0 if judgment.cut is None else judgment.cut.tokens  # the model may cut further
                judgment = replace(judgment, cut=replace(cut, tokens=cut.tokens + also))
            results.append(judgment)
        return results


def compress(query: Query, tokens: int, chunk: int = CHUNK) -> tuple[Query, Cut | None]:
    """Keeps the chunks of the context that are closest to the question and to the responses.

    Every chunk is scored by BM25 for the question and for each response, relative to the best chunk for it, so that a
    long response does not get more room than a short one. The chunks with the largest sums that fit into `tokens` stay,
    in their order, with `LEFT_OUT` between them.

    Returns:
        The query and None if its context is short enough, not marked, or in a message whose content is a list.
        Otherwise the query with a shorter prompt and adjusted spans, those of the context without the question, and
        the number of words and punctuation marks left out.
    """

    def text_at(span: Span) -> str:
        return message_text(query.prompt[span.message])[span.start : span.end]

    spans = _context_of(query)
    lexicon = index(tuple(map(text_at, spans)), min(chunk, tokens))
    chunks = lexicon.chunks
    if sum(piece.size for piece in chunks) <= tokens:
        return query, None
    # Sorted, because the order of summation must not depend on the presented order.
    sought = sorted(text_of(response) for response in query.responses)
    if query.question is not None:
        sought.append(text_at(query.question))
    relevance = np.zeros(len(chunks))
    for text in sought:
        scores = lexicon.scores(text)
        relevance += scores / (scores.max() or 1.0)
    kept, room = set(), tokens
    for number in np.argsort(-relevance, kind="stable").tolist():
        if chunks[number].size <= room:
            kept.add(number)
            room -= chunks[number].size
    # One mark replaces each run of chunks of one span that were not kept.
    edits = []
    for (is_kept, passage), run in groupby(
        range(len(chunks)), key=lambda number: (number in kept, chunks[number].passage)
    ):
        if not is_kept:
            numbers, span = list(run), spans[passage]
            start, end = chunks[numbers[0]].start, chunks[numbers[-1]].end
            edits.append((Span(span.message, span.start + start, span.start + end), LEFT_OUT))
    left_out = sum(piece.size for number, piece in enumerate(chunks) if number not in kept)
    return edit_context(replace(query, context=tuple(spans)), edits), Cut("compress", left_out)


def _context_of(query: Query) -> list[Span]:
    """The context without the question; empty if it is not marked, or one of its messages is not plain text."""
    spans = disjoint_spans(query.context, query.question)
    plain = all(isinstance(query.prompt[span.message].get("content"), str) for span in spans)
    return spans if plain else []
