import asyncio

import pytest

from longrm.clients import Completion
from longrm.errors import ConfigError, RunError
from longrm.synthesis.inputs.candidate_ranking import RankedCandidates
from longrm.synthesis.inputs.candidates import CandidateAnswer
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.selection import RankedDocument
from longrm.synthesis.models import AskedModel
from longrm.synthesis.second_check import SecondCheckSettings, by_judge, by_metric, by_scores, opinion_of
from longrm.types import Outcome

DOCUMENT = Document("d", "t", "q", "extraordinary harvest", metric="token_f1")


def checked(check, ranked):
    return asyncio.run(check(ranked))


def items(*orders):
    return [RankedCandidates("d", "cross", order, tuple(range(len(order), 0, -1))) for order in orders]


def written(*texts):
    return [CandidateAnswer("d", "m", text) for text in texts]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((3, 2, 1), "agrees"),
        ((3, 3, 1), "undecided"),
        ((3, 1, 2), "disagrees"),
        ((2, 2, 3), "disagrees"),
        ((3, None, 1), "unchecked"),
    ],
)
def test_verdicts(scores, verdict):
    assert opinion_of(scores) == verdict


def test_characters_contradict_words_where_words_are_blind():
    # Token F1 sees one right word in the first answer and none in the second, which is nearly right.
    candidates = written("harvest of wheat and rye and oats", "extraordinarily harvests", "zzz")
    ranked = RankedDocument(DOCUMENT, candidates, items((0, 1), (0, 2), (1, 2)))
    assert checked(by_metric(), ranked) == ["disagrees", "agrees", "agrees"]


def test_what_has_no_second_metric_is_unchecked():
    quiz = Document("d", "t", "q", "B", metric="right_choices")
    ranked = RankedDocument(quiz, written("B", "A"), items((0, 1)))
    assert checked(by_metric(), ranked) == ["unchecked"]
    assert checked(by_metric({"right_choices": "exact_match"}), ranked) == ["agrees"]
    with pytest.raises(ConfigError, match="did you mean 'chrf'"):
        by_metric({"rouge_l": "chrff"})


def test_a_judge_rates_every_answer_once_and_may_fail():
    asked = []

    async def rate(document, texts):
        asked.append(texts)
        return [{"good": 9.0, "fair": 5.0, "odd": None}[text] for text in texts]

    candidates = written("good", "unused", "odd", "fair")
    orders = items((0, 3), (3, 0), (0, 2), (0, 3))
    found = [checked(by_scores(rate), RankedDocument(DOCUMENT, candidates, some)) for some in (orders, [])]
    assert found == [["agrees", "disagrees", "unchecked", "agrees"], []]
    assert asked == [["good", "odd", "fair"], []]


class Judge:
    """Says what its script says of the response that a prompt ends with."""

    name = "scripted"

    def __init__(self, script):
        self.script, self.asked = script, []

    async def ask(self, requests):
        self.asked += requests
        return [
            next(
                said for text, said in self.script.items() if f"\n{text}\n" in request.messages[0]["content"]
            )
            for request in requests
        ]


def said(text):
    return Completion(Outcome.ANSWERED, text)


def test_a_judge_reads_the_text_and_no_gold_answer():
    judge = Judge(
        {"good": said("Right.\n\n[[9]]"), "bad": said("No.\n\n[[2]]"), "odd": said("Who knows?"),
         "long": Completion(Outcome.TOO_LONG)}
    )  # fmt: skip
    settings = SecondCheckSettings(judge=AskedModel(model="simulated:0"))
    document = Document("d", "All of the text.", "Which one?", "the secret gold", metric="token_f1")
    candidates = written("good", "bad", "odd", "long")
    ranked = RankedDocument(document, candidates, items((0, 1), (1, 0), (0, 2), (0, 3)))
    assert checked(by_judge(judge, settings), ranked) == ["agrees", "disagrees", "unchecked", "unchecked"]
    prompts = [request.messages[0]["content"] for request in judge.asked]
    assert len(prompts) == 4
    assert all("All of the text." in prompt and "Which one?" in prompt for prompt in prompts)
    assert not any("secret gold" in prompt for prompt in prompts)


def test_a_judge_that_cannot_be_asked_stops_the_build():
    judge = Judge({"good": Completion(Outcome.ERROR, detail="no route"), "bad": said("[[2]]")})
    check = by_judge(judge, SecondCheckSettings(judge=AskedModel(model="simulated:0")))
    with pytest.raises(RunError, match="scripted could not be asked .no route.; run the same command again"):
        checked(check, RankedDocument(DOCUMENT, written("good", "bad"), items((0, 1))))


def test_a_rubric_must_be_known():
    with pytest.raises(ConfigError, match="did you mean 'summary'"):
        SecondCheckSettings.resolve(None, {"judge.model": "simulated:0", "domain": "sumary"})
