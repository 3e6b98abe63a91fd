import pytest

from longrm.errors import ConfigError
from longrm.synthesis.documents import Document
from longrm.synthesis.ranking import Item
from longrm.synthesis.records import Candidate
from longrm.synthesis.second_check import by_metric, by_scores, verdict_of

DOCUMENT = Document("d", "t", "q", "extraordinary harvest", metric="token_f1")


def items(*orders):
    return [Item("d", "cross", order, tuple(range(len(order), 0, -1))) for order in orders]


def written(*texts):
    return [Candidate("d", "m", text) for text in texts]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((3, 2, 1), "agrees"),
        ((3, 3, 1), "undecided"),
        ((3, 1, 2), "disagrees"),
        ((2, 2, 3), "disagrees"),
        (None, "unchecked"),
    ],
)
def test_verdicts(scores, verdict):
    assert verdict_of(scores) == verdict


def test_characters_contradict_words_where_words_are_blind():
    # Token F1 sees one right word in the first answer and none in the second, which is nearly right.
    candidates = written("harvest of wheat and rye and oats", "extraordinarily harvests", "zzz")
    check = by_metric()
    assert check(DOCUMENT, candidates, items((0, 1), (0, 2), (1, 2))) == ["disagrees", "agrees", "agrees"]


def test_what_has_no_second_metric_is_unchecked():
    quiz = Document("d", "t", "q", "B", metric="right_choices")
    assert by_metric()(quiz, written("B", "A"), items((0, 1))) == ["unchecked"]
    assert by_metric({"right_choices": "exact_match"})(quiz, written("B", "A"), items((0, 1))) == ["agrees"]
    with pytest.raises(ConfigError, match="did you mean 'chrf'"):
        by_metric({"rouge_l": "chrff"})


def test_a_judge_rates_every_answer_once_and_may_fail():
    asked = []

    def rate(document, texts):
        asked.extend(texts)
        return [{"good": 9.0, "fair": 5.0, "odd": None}[text] for text in texts]

    candidates = written("good", "unused", "odd", "fair")
    orders = items((0, 3), (3, 0), (0, 2), (0, 3))
    assert by_scores(rate)(DOCUMENT, candidates, orders) == ["agrees", "disagrees", "unchecked", "agrees"]
    assert asked == ["good", "odd", "fair"]
    assert by_scores(rate)(DOCUMENT, candidates, []) == []
