import re
from functools import cached_property

import pytest

from longrm.types import message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.worlds.trained_bpe import trained_bpe

RECORD = re.compile(r"(?:code of|say that|old ledger|agreed that) (\w+) (?:is|has|holds|keeps) (\w+)\.")
LINK = re.compile(r"(\w+) works together with (\w+) in town\.")
CLAIM = re.compile(r"(partner of )?([A-Z]\w+) (?:is|has) (\w+)")


class View:
    """The facts and claims of a comparison, read by regular expressions that share nothing with the generator."""

    def __init__(self, comparison):
        self.comparison = comparison
        self.text = message_text(comparison.prompt[0])
        self.context = self.cut(comparison.context[0])
        self.question = self.cut(comparison.question)
        self.evidence = [self.cut(span) for span in comparison.evidence]
        self.sentences = [sentence.strip() for sentence in re.findall(r"[^.]+\.", self.context)]
        self.responses = [message_text(response[0]) for response in comparison.responses]

    def cut(self, span):
        return self.text[span.start : span.end]

    @cached_property
    def values(self):
        return dict(RECORD.findall(self.context))

    @cached_property
    def partners(self):
        links = LINK.findall(self.context)
        return {**dict(links), **{second: first for first, second in links}}

    def said(self, response):
        """The claims of a response as (of the partner or not, entity, value), without reading the context."""
        return CLAIM.findall(response)

    def claims(self, response):
        """The claims of a response as (entity whose value it is about, value); no entity if it is unknown."""
        return [
            (self.partners.get(entity) if partner else entity, value)
            for partner, entity, value in self.said(response)
        ]

    def right(self, response):
        return sum(self.values.get(entity) == value for entity, value in self.claims(response))


@pytest.fixture(scope="session")
def view():
    return View


@pytest.fixture(scope="session")
def word_tokenizer():
    return words_tokenizer()


@pytest.fixture(scope="session")
def bpe(word_tokenizer):
    """A byte-level BPE so small that entities are several tokens of unequal number."""
    return trained_bpe(_texts(WorldPlan("chain", 400, seed=99), 40, word_tokenizer), 500)


@pytest.fixture(scope="session")
def merging(word_tokenizer):
    """A BPE whose tokens reach across words and sentences, so that the counts of parts do not add up."""
    return trained_bpe(_texts(WorldPlan("records", 200, seed=98), 10, word_tokenizer), 600, across_words=True)


def _texts(plan, count, tokenizer):
    return [message_text(comparison.prompt[0]) for comparison in generate(plan, count, tokenizer)]
