import pytest

from longrm.clients import Completion
from longrm.errors import ConfigError, RunError
from longrm.synthesis.documents import Document
from longrm.synthesis.models import Model
from longrm.synthesis.ranking import Item
from longrm.synthesis.records import Candidate
from longrm.synthesis.second_check import JudgeCheck, by_judge, by_metric, by_scores, verdict_of
from longrm.types import Outcome

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
    (verdicts,) = by_metric()([(DOCUMENT, candidates, items((0, 1), (0, 2), (1, 2)))])
    assert verdicts == ["disagrees", "agrees", "agrees"]


def test_what_has_no_second_metric_is_unchecked():
    quiz = Document("d", "t", "q", "B", metric="right_choices")
    asked = [(quiz, written("B", "A"), items((0, 1)))]
    assert by_metric()(asked) == [["unchecked"]]
    assert by_metric({"right_choices": "exact_match"})(asked) == [["agrees"]]
    with pytest.raises(ConfigError, match="did you mean 'chrf'"):
        by_metric({"rouge_l": "chrff"})


def test_a_judge_rates_every_answer_once_and_may_fail():
    asked = []

    def rate(some):
        asked.extend(texts for _, texts in some)
        return [[{"good": 9.0, "fair": 5.0, "odd": None}[text] for text in texts] for _, texts in some]

    candidates = written("good", "unused", "odd", "fair")
    orders = items((0, 3), (3, 0), (0, 2), (0, 3))
    found = by_scores(rate)([(DOCUMENT, candidates, orders), (DOCUMENT, candidates, [])])
    assert found == [["agrees", "disagrees", "unchecked", "agrees"], []]
    assert asked == [["good", "odd", "fair"], []]


class Judge:
    """Says what its script says of the response that a prompt ends with."""

    name = "scripted"

    def __init__(self, script):
        self.script, self.asked = script, []

    async def ask(self, prompts):
        self.asked += prompts
        return [
            next(said for text, said in self.script.items() if f"\n{text}\n" in prompt.messages[0]["content"])
            for prompt in prompts
        ]


def said(text):
    return Completion(Outcome.ANSWERED, text)


def test_a_judge_reads_the_text_and_no_gold_answer():
    judge = Judge(
        {"good": said("Right.\n\n[[9]]"), "bad": said("No.\n\n[[2]]"), "odd": said("Who knows?"),
         "long": Completion(Outcome.TOO_LONG)}
    )  # fmt: skip
    settings = JudgeCheck(judge=Model(model="simulated:0"))
    document = Document("d", "All of the text.", "Which one?", "the secret gold", metric="token_f1")
    candidates = written("good", "bad", "odd", "long")
    asked = [(document, candidates, items((0, 1), (1, 0), (0, 2), (0, 3)))]
    assert by_judge(judge, settings)(asked) == [["agrees", "disagrees", "unchecked", "unchecked"]]
    prompts = [request.messages[0]["content"] for request in judge.asked]
    assert len(prompts) == 4
    assert all("All of the text." in prompt and "Which one?" in prompt for prompt in prompts)
    assert not any("secret gold" in prompt for prompt in prompts)


def test_a_judge_that_cannot_be_asked_stops_the_build():
    judge = Judge({"good": Completion(Outcome.ERROR, detail="no route"), "bad": said("[[2]]")})
    check = by_judge(judge, JudgeCheck(judge=Model(model="simulated:0")))
    with pytest.raises(RunError, match="scripted could not be asked .no route.; run the same command again"):
        check([(DOCUMENT, written("good", "bad"), items((0, 1)))])


def test_a_rubric_must_be_known():
    with pytest.raises(ConfigError, match="did you mean 'summary'"):
        JudgeCheck.resolve(None, {"judge.model": "simulated:0", "domain": "sumary"})
