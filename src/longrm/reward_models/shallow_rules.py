"""Rules that understand nothing, but read the context: overlap, retrieval, distance, counting and order.

A pair that such a rule decides does not measure reading. A response is scored by its own words, those that not all
responses of the comparison have: in "It is in Rome." and "It is in Oslo.", Rome and Oslo.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from longrm.data.chunking import sentence_spans, words_of
from longrm.types import Query, message_text, text_of

Rule = Callable[[Query], Sequence[float]]
"""One number per response; the higher is better."""

_CHUNK = 128  # words and punctuation marks of a chunk of the context, of which one should support a claim
_SENTENCE = 48  # likewise of a sentence at most; longer ones are cut
_WINDOW = 8  # words on either side of a mention, in which n-grams of the question are looked for


@dataclass(frozen=True, slots=True)
class _Context:
    """The words of a context, in lower case, where each occurs, and in which sentence each is."""

    words: tuple[str, ...]
    places: dict[str, list[int]]
    sentences: tuple[tuple[str, ...], ...]
    sentence_of: tuple[int, ...]  # by word

    def at(self, word: str) -> list[int]:
        return self.places.get(word, [])


@lru_cache(maxsize=4)  # consecutive queries are about one context
def _context(texts: tuple[str, ...]) -> _Context:
    sentences = tuple(
        tuple(words_of(text[start:end])) for text in texts for start, end in sentence_spans(text, _SENTENCE)
    )
    words = tuple(word for sentence in sentences for word in sentence)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    sentence_of = tuple(number for number, sentence in enumerate(sentences) for _ in sentence)
    return _Context(words, places, sentences, sentence_of)


def _texts(query: Query) -> tuple[str, ...]:
    """The context, or the whole prompt where the context is not marked."""
    texts = tuple(message_text(message) for message in query.prompt)
    return tuple(texts[span.message][span.start : span.end] for span in query.context) or texts


def _question(query: Query) -> str:
    """The question, or the last message where the question is not marked."""
    if (span := query.question) is not None:
        return message_text(query.prompt[span.message])[span.start : span.end]
    return message_text(query.prompt[-1])


def _own_words(query: Query) -> list[list[str]]:
    """The words of each response that not all responses have."""
    words = [list(dict.fromkeys(words_of(text_of(response)))) for response in query.responses]
    shared = set.intersection(*map(set, words))
    return [[word for word in of if word not in shared] for of in words]


def _mean(rule: Callable[[Query, _Context], Callable[[str], float]]) -> Rule:
    """Makes a rule for words one for responses: the mean over the own words of each, 0 without any."""

    def scores(query: Query) -> list[float]:
        of_word = rule(query, _context(_texts(query)))
        return [
            round(sum(map(of_word, words)) / len(words), 9) if words else 0.0 for words in _own_words(query)
        ]

    scores.__doc__ = rule.__doc__
    return scores


@_mean
def first_mention(_: Query, context: _Context) -> Callable[[str], float]:
    """The context mentions it early."""
    return lambda word: -float(min(context.at(word), default=len(context.words)))


@_mean
def last_mention(_: Query, context: _Context) -> Callable[[str], float]:
    """The context mentions it late."""
    return lambda word: float(max(context.at(word), default=-1))


@_mean
def frequency(_: Query, context: _Context) -> Callable[[str], float]:
    """The context mentions it often."""
    return lambda word: float(len(context.at(word)))


@_mean
def nearest(query: Query, context: _Context) -> Callable[[str], float]:
    """The context mentions it a few words away from the question's rarest word, which is mostly a name."""
    own = {word for words in _own_words(query) for word in words}
    asked = [word for word in words_of(_question(query)) if context.at(word) and word not in own]
    names = context.at(min(asked, key=lambda word: len(context.at(word)))) if asked else []

    def near(word: str) -> float:
        found = float(len(context.words))
        for place in context.at(word):
            behind = bisect_left(names, place)
            found = min([found, *(abs(place - name) for name in names[max(0, behind - 1) : behind + 1])])
        return -found

    return near


@_mean
def predicate(query: Query, context: _Context) -> Callable[[str], float]:
    """A sentence that mentions it has many words of the question and of the responses, names aside."""
    texts = [_question(query), *map(text_of, query.responses)]
    names = {word for text in texts for name in re.findall(r"\b[A-Z]\w*", text) for word in words_of(name)}
    own = {word for words in _own_words(query) for word in words}
    asked = {word for text in texts for word in words_of(text)} - names - own

    known = [float(len(asked.intersection(sentence))) for sentence in context.sentences]
    return lambda word: max((known[context.sentence_of[place]] for place in context.at(word)), default=-1.0)


@_mean
def question_ngrams(query: Query, context: _Context) -> Callable[[str], float]:
    """Many pairs of words around a mention are in the question."""
    asked = _ngrams(words_of(_question(query)), 2)
    before = [0, *accumulate(pair in asked for pair in pairwise(context.words))]  # how many pairs before each

    def around(place: int) -> float:
        last = min(place + _WINDOW, len(before) - 1)
        return float(before[last] - before[max(0, place - _WINDOW)])

    return lambda word: max(map(around, context.at(word)), default=-1.0)


def ngrams(query: Query) -> list[float]:
    """The share of its pairs and triples of words that the context has."""
    held = _context_ngrams(_texts(query))
    found = []
    for response in query.responses:
        own = {gram for n in (2, 3) for gram in _ngrams(words_of(text_of(response)), n)}
        found.append(round(len(own & held) / len(own), 9) if own else 0.0)
    return found


@lru_cache(maxsize=4)
def _context_ngrams(texts: tuple[str, ...]) -> set[tuple[str, ...]]:
    words = _context(texts).words
    return {gram for n in (2, 3) for gram in _ngrams(words, n)}


def _ngrams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + n]) for start in range(len(words) - n + 1)}


def subsequence(query: Query) -> list[float]:
    """The longest subsequence of words that it shares with one sentence of the context, relative to its length."""
    sentences = _context(_texts(query)).sentences
    found = []
    for response in query.responses:
        words = words_of(text_of(response))
        found.append(round(_longest_subsequence(words, sentences) / len(words), 9) if words else 0.0)
    return found


def _longest_subsequence(words: Sequence[str], sentences: Sequence[Sequence[str]]) -> int:
    """The length of the longest common subsequence with any sentence, by the bit-parallel algorithm of Hyyro (2004)."""
    masks: dict[str, int] = {}
    for place, word in enumerate(words):
        masks[word] = masks.get(word, 0) | 1 << place
    full, longest = (1 << len(words)) - 1, 0
    for sentence in sentences:
        row = full
        for word in sentence:
            if (mask := masks.get(word)) and (match := row & mask):
                row = ((row + match) | (row - match)) & full
        longest = max(longest, len(words) - row.bit_count())
    return longest


def overlap(query: Query) -> list[float]:
    """The share of it that is found in the context, each part within 128 words."""
    # Imported late: only this rule and the next need arrays and BM25.
    from longrm.reward_models.lexical import index

    lexicon = index(_texts(query), _CHUNK)
    return [lexicon.support(text_of(response)) for response in query.responses]


def bm25(query: Query) -> list[float]:
    """The BM25 score of the context's best sentence or two for the question and the response."""
    from longrm.reward_models.lexical import index

    lexicon, question = index(_texts(query), _SENTENCE), _question(query)
    best = (lexicon.scores(f"{question} {text_of(response)}").max(initial=0) for response in query.responses)
    return [round(float(score), 9) for score in best]
