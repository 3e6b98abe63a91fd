"""A second, independent opinion on a gold order that one metric has made."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from pydantic import Field, field_validator

from longrm.answer_metrics import AnswerMetric, answer_metric
from longrm.clients import Completion, Request
from longrm.config import Config
from longrm.errors import nearest
from longrm.judging.pointwise import Pointwise
from longrm.synthesis.asking import ask_all
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import DOMAINS, SCORE, language_of
from longrm.synthesis.models import Model
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.ranking import Item
from longrm.synthesis.records import Candidate
from longrm.types import Outcome, Query, as_messages

Verdict = Literal["agrees", "disagrees", "undecided", "unchecked"]
"""Of the whole order of one item; "undecided" ties some of it, and contradicts none."""

Checked = tuple[Document, Sequence[Candidate], Sequence[Item]]
"""A document with all its candidates, and the items that were made of them."""

Check = Callable[[Sequence[Checked]], list[list[Verdict]]]
"""Says of every item of some documents whether its order holds."""

Answers = tuple[Document, Sequence[str]]
Rate = Callable[[Sequence[Answers]], list[list[float | None]]]
"""Rates answers to the questions of some documents: higher is better, None where there is no rating."""

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
    checking: dict[str, AnswerMetric] = {name: answer_metric(other) for name, other in second.items()}

    def rate(asked: Sequence[Answers]) -> list[list[float | None]]:
        return [[_rated(checking, document, text) for text in texts] for document, texts in asked]

    return by_scores(rate)


def by_scores(rate: Rate) -> Check:
    """Checks by whatever rates every candidate alone; those that stand in no item are not rated."""

    def check(some: Sequence[Checked]) -> list[list[Verdict]]:
        wanted = [sorted({at for item in items for at in item.candidates}) for _, _, items in some]
        rated = rate(
            [
                (document, [candidates[at].text for at in places])
                for (document, candidates, _), places in zip(some, wanted, strict=True)
            ]
        )
        scores = [dict(zip(*both, strict=True)) for both in zip(wanted, rated, strict=True)]
        return [
            [verdict_of(_known(item, of_document)) for item in items]
            for (_, _, items), of_document in zip(some, scores, strict=True)
        ]

    return check


class JudgeCheck(Config):
    """How a judge rates candidates for the second check: each alone, on the whole text, without the gold answer.

    Attributes:
        judge: The model.
        domain: By whose rubric, a key of `synthesis.domains.DOMAINS`.
        max_tokens: The most tokens of a judgment.
    """

    judge: Model
    domain: str = "qa_faithfulness"
    max_tokens: int = Field(1024, ge=1)

    @field_validator("domain")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in DOMAINS:
            raise ValueError(nearest(name, DOMAINS))
        return name


def by_judge(judge: Asked, settings: JudgeCheck) -> Check:
    """Checks by a judge that reads the text itself: it may see truth that no metric beside a gold answer can.

    Raises:
        RunError: On checking: the judge could not be asked. What it answered is in its cache.
    """
    scores = Pointwise()

    def rate(asked: Sequence[Answers]) -> list[list[float | None]]:
        requests = [[_request(document, text, settings) for text in texts] for document, texts in asked]
        answers = asyncio.run(ask_all(judge, requests))
        return [
            [read(document, *pair) for pair in zip(texts, own, strict=True)]
            for (document, texts), own in zip(asked, answers, strict=True)
        ]

    def read(document: Document, text: str, completion: Completion) -> float | None:
        if completion.outcome is not Outcome.ANSWERED:
            return None
        reading = scores.parse(completion.text, Query(document.id, (), (as_messages(text, "assistant"),)))
        return None if reading is None or reading.contradicted else reading.values[0]

    return by_scores(rate)


def _request(document: Document, text: str, settings: JudgeCheck) -> Request:
    domain, language = DOMAINS[settings.domain], language_of(document.question)
    prompt = domain.prompt(language, document.text, document.question, text, tag="", rubric=True)
    return Request(as_messages(prompt, "user"), settings.max_tokens, verdict=SCORE)


def _rated(checking: Mapping[str, AnswerMetric], document: Document, text: str) -> float | None:
    metric = checking.get(document.metric)
    return None if metric is None else metric(text, document.answer)


def _known(item: Item, scores: Mapping[int, float | None]) -> list[float] | None:
    known = [score for at in item.candidates if (score := scores[at]) is not None]
    return known if len(known) == len(item.candidates) else None
