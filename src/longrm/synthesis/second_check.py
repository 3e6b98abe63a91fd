"""A second, independent opinion on a gold order that one metric has made."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from longrm.synthesis.answers import Metric, metric_named
from longrm.synthesis.documents import Document
from longrm.synthesis.ranking import Item
from longrm.synthesis.records import Candidate

Verdict = Literal["agrees", "disagrees", "undecided", "unchecked"]
"""Of the whole order of one item; "undecided" ties some of it, and contradicts none."""

Check = Callable[[Document, Sequence[Candidate], Sequence[Item]], list[Verdict]]
"""Says of every item of a document whether its order holds."""

SECOND: Mapping[str, str] = MappingProxyType(
    {"rouge_l": "chrf", "token_f1": "chrf", "edit_similarity": "token_f1", "chrf": "token_f1"}
)
"""Which metric checks which: words against characters. What is right or wrong and nothing between (choices, numbers,
citations) has no second metric worth the name; a judge can check it."""


def verdict_of(best_first: Sequence[float] | None) -> Verdict:
    """What scores, listed in the gold order, say about it; None where they could not be had."""
    if best_first is None:
        return "unchecked"
    steps = [better - worse for better, worse in pairwise(best_first)]
    if any(step < 0 for step in steps):
        return "disagrees"
    return "agrees" if all(step > 0 for step in steps) else "undecided"


def by_metric(second: Mapping[str, str] = SECOND) -> Check:
    """Checks by another metric beside the same gold answer: it errs elsewhere, but sees no more of the truth.

    Args:
        second: The checking metric by the checked one; a metric that is not there goes unchecked.

    Raises:
        ConfigError: There is no such metric.
    """
    checking: dict[str, Metric] = {name: metric_named(other) for name, other in second.items()}

    def check(document: Document, candidates: Sequence[Candidate], items: Sequence[Item]) -> list[Verdict]:
        metric = checking.get(document.metric)
        if metric is None:
            return ["unchecked"] * len(items)
        wanted = sorted({at for item in items for at in item.candidates})
        scores = {at: metric(candidates[at].text, document.answer) for at in wanted}
        return [verdict_of([scores[at] for at in item.candidates]) for item in items]

    return check


def by_scores(
    rate: Callable[[Document, Sequence[str]], Sequence[float | None]],
) -> Check:
    """Checks by a judge that rates every candidate of a document alone, whatever it is.

    Args:
        rate: One score an answer, higher is better; None where the judge gave none.
    """

    def check(document: Document, candidates: Sequence[Candidate], items: Sequence[Item]) -> list[Verdict]:
        wanted = sorted({at for item in items for at in item.candidates})
        rated = rate(document, [candidates[at].text for at in wanted]) if wanted else []
        scores = dict(zip(wanted, rated, strict=True))
        verdicts = []
        for item in items:
            known = [score for at in item.candidates if (score := scores[at]) is not None]
            verdicts.append(verdict_of(known if len(known) == len(item.candidates) else None))
        return verdicts

    return check
