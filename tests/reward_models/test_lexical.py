import math
import random
from collections import Counter

import numpy as np
import pytest

from longrm.data.chunking import words_of
from longrm.reward_models import load
from longrm.reward_models.lexical import LexicalIndex, index
from longrm.types import Query, Span

STORY = (
    "Alora keeps her anchor in the old harbor. The captain never saw it again.\n\n"
    "Bekin sold seven silver baskets on the market. Nobody asked for the price.\n\n"
    "Rain fell on the square, and the old captain went home early that day.\n\n"
)
FILLER = "The tailor walked slowly to the village. Some quiet music came from the library.\n\n"


def prose(sentences, seed=0, vocabulary=4000):
    """Sentences of words that are as unequally frequent as those of a language (Zipf's law)."""
    draw = random.Random(seed)
    names = [f"word{number}" for number in range(1, vocabulary)]
    weights = [1 / number for number in range(1, vocabulary)]
    return [" ".join(draw.choices(names, weights, k=draw.randint(6, 20))) + ". " for _ in range(sentences)]


def query(responses, context=STORY, question="What did Bekin sell?"):
    return Query(
        "q",
        ({"role": "user", "content": f"{context}\n\n{question}"},),
        tuple(({"role": "assistant", "content": text},) for text in responses),
        (Span(0, 0, len(context)),),
        Span(0, len(context) + 2, len(context) + 2 + len(question)),
    )


def overlap(responses, **parts):
    (judgment,) = load("baseline:overlap").judge([query(responses, **parts)])
    return judgment.scores


def bm25(texts, sought, k1=1.5, b=0.75):
    """Lucene's formula written out, with the words that are sought weighing by their rarity too."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score, counts = 0.0, Counter(text)
        for word in {*sought}:
            holding = sum(word in other for other in texts)
            rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            score += rarity**2 * counts[word] / (counts[word] + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def test_scores_follow_the_formula():
    found = LexicalIndex((STORY * 2, FILLER), 12)
    passages = (STORY * 2, FILLER)
    texts = [words_of(passages[chunk.passage][chunk.start : chunk.end]) for chunk in found.chunks]
    sought = "The OLD captain, the captain: anchor, zebra and Bekin!"
    assert len(texts) > 6
    np.testing.assert_allclose(found.scores(sought), bm25(texts, words_of(sought)), rtol=1e-5)
    assert not np.allclose(found.scores(sought), bm25(texts, words_of(sought), k1=1.2), rtol=1e-3)


def test_what_the_context_says_is_preferred_to_what_it_does_not_say():
    true, mixed, foreign = overlap(
        [
            "Bekin sold silver baskets on the market.",
            "Alora sold silver rain on the library.",
            "Quantum chromodynamics explains hadrons.",
        ],
        context=STORY + "".join(prose(300)),
    )
    assert true > mixed > foreign == 0


@pytest.mark.parametrize("seed", range(4))
def test_length_alone_wins_nothing(seed):
    sentences = prose(600, seed)
    context, draw = "".join(sentences), random.Random(seed)
    short = draw.choice(sentences)
    babble = " ".join(draw.choices(words_of(context), k=400))
    padded = short + "It should be noted that further considerations apply elsewhere. " * 5
    once, five_times, drawn, longer = overlap([short, short * 5, babble, padded], context=context)
    assert once == pytest.approx(five_times, rel=1e-6)
    assert once > 1.5 * drawn
    assert once > 1.5 * longer
    # A sum that is no share prefers the longest: the negative control.
    found = LexicalIndex((context,), 128)
    assert found.scores(babble).max() > found.scores(short).max()


def test_longer_responses_that_the_context_holds_lose_nothing_either():
    sentences = prose(600)
    places = range(0, 597, 15)
    responses = [sentences[at] for at in places] + ["".join(sentences[at : at + 3]) for at in places]
    scores = overlap(responses, context="".join(sentences))
    short, longer = scores[: len(places)], scores[len(places) :]
    assert sum(longer) == pytest.approx(sum(short), rel=0.1)


def test_the_question_is_no_evidence_unless_the_context_is_not_known():
    asked = query(["Did Zorro sell?", "Did they buy?"], question="Did Zorro sell?")
    unknown = Query(asked.id, asked.prompt, asked.responses)
    within, whole = load("baseline:overlap").judge([asked, unknown])
    assert within.scores[0] == 0
    assert whole.scores[0] > 0


def test_one_context_is_indexed_once():
    index.cache_clear()
    load("baseline:overlap").judge([query(["a", "b"]), query(["c", "d"]), query(["e", "f"], context=FILLER)])
    assert index.cache_info().misses == 2
    assert index.cache_info().hits == 1


def test_equal_shares_are_equal_numbers_whatever_the_order_of_summation():
    held = {
        **dict(zip("abcdef", (2, 6, 8, 9, 2, 6), strict=True)),
        **dict(zip("uvwxyz", (2, 6, 2, 6, 8, 9), strict=True)),
    }
    passages = [
        " ".join(word for word in half if held[word] > at) for half in ("abcdef", "uvwxyz") for at in range(9)
    ]
    found = LexicalIndex([text for text in passages if text], 64)
    assert found.support("a b c d e f") == found.support("u v w x y z") > 0
    assert found.support("a b c d e u") != found.support("u v w x y z"), "the control"
