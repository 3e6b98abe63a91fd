import asyncio
import time

import pytest

from longrm.clients import Completion
from longrm.errors import ConfigError, RunError
from longrm.runs.logs import Log
from longrm.synthesis.labels.consensus import VotingSettings, count_votes
from longrm.synthesis.model_requests import TaskRequest
from longrm.synthesis.recipes.vote import PanelLabeler, VoteLog, measure_agreement
from longrm.synthesis.stats import InputOutcome, VoteRecord
from longrm.types import Outcome, message_text


class Judge:
    """Scores a response by what stands behind `quality`, plus its own bias; or says something else."""

    def __init__(self, name, bias=0, says=None, outcome=Outcome.ANSWERED):
        self.name, self.bias, self.says, self.outcome, self.asked = name, bias, says, outcome, []

    async def ask(self, requests):
        self.asked += requests
        found = []
        for request in requests:
            quality = int(message_text(request.messages[0]).rpartition("quality ")[2])
            text = self.says or f"{self.name} finds it sound.\n\n[[{min(10, quality + self.bias)}]]"
            found.append(Completion(self.outcome, text, detail="the server is gone"))
        return found


def judges(*biases):
    return [Judge(f"judge {index}", bias) for index, bias in enumerate(biases)]


def responses(document, *qualities):
    return [
        (
            f"case {document}#{number}",
            f"document {document}",
            TaskRequest(({"role": "user", "content": f"Judge with the rubric: quality {quality}"},), 64),
            f"answer {quality}",
        )
        for number, quality in enumerate(qualities)
    ]


async def votes_of(panel, given):
    return await asyncio.gather(*(panel.votes(request, response) for _, _, request, response in given))


def counted_votes(judges, given, voting=None, weights=None):
    voted = asyncio.run(votes_of(PanelLabeler(judges, VotingSettings()), given))
    return [count_votes(votes, voting or VotingSettings(), weights) for votes in voted]


def test_every_judge_reads_every_response_and_votes_are_counted():
    panel = [*judges(0, 0, 0, 3), Judge("mute", says="No idea.")]
    first, second = counted_votes(panel, responses(1, 4, 7))
    assert (first.consensus.score, second.consensus.score) == (4, 7)
    assert first.cluster_sizes == [3, 1, 1]
    assert [vote.judge for vote in first.unparsed] == ["mute"]
    assert all(len(judge.asked) == 2 for judge in panel)
    assert counted_votes(judges(0, 2), responses(1, 4))[0].reason == "tie"


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome.TRUNCATED, "It is sound, so I would say [[9]]"),
        (Outcome.REFUSED, "[[9]]"),
        (Outcome.ANSWERED, "Between two: [[2.5]]"),
    ],
)
def test_what_a_judge_did_not_end_or_may_not_say_is_no_vote(outcome, says):
    (counted,) = counted_votes([*judges(0, 0), Judge("odd", says=says, outcome=outcome)], responses(1, 9))
    assert [vote.judge for vote in counted.unparsed] == ["odd"]
    assert counted.cluster_sizes == [2, 1]


def test_thinking_is_no_part_of_a_judgment():
    says = "<think>The rubric says 8 for this.</think>It is sound.\n\n[[4]]"
    (counted,) = counted_votes([Judge("thinker", says=says), *judges(0)], responses(1, 4))
    texts = {vote.judge: vote.text for vote in counted.consensus.votes}
    assert texts["thinker"] == "It is sound.\n\n[[4]]"


def test_every_judge_draws_for_itself():
    panel = judges(0, 0, 0)
    counted_votes(panel, responses(1, 4, 7))
    assert len({request.seed for judge in panel for request in judge.asked}) == 3
    again = judges(0, 0, 0)
    counted_votes(again, responses(1, 4, 7))
    assert [judge.asked for judge in panel] == [judge.asked for judge in again]


def test_judges_are_asked_at_the_same_time():
    class Waiting(Judge):
        """Answers once all have been asked: one after another, they would wait for ever."""

        async def ask(self, requests):
            waiting.add(self.name)
            while len(waiting) < 3:
                assert time.monotonic() < deadline, "the judges are asked one after another"
                await asyncio.sleep(0)
            return await super().ask(requests)

    waiting, deadline = set(), time.monotonic() + 5
    assert len(counted_votes([Waiting(name) for name in "abc"], responses(1, 4))) == 1


def test_weights_of_judges_are_used():
    weights = {"judge 0": 3.0, "judge 1": 1.0, "judge 2": 1.0}
    assert counted_votes(judges(0, 2, 2), responses(1, 4), weights=weights)[0].consensus.score == 4
    assert counted_votes(judges(0, 2, 2), responses(1, 4))[0].consensus.score == 6


def log_votes(log, judges, given):
    voted = asyncio.run(votes_of(PanelLabeler(judges, VotingSettings()), given))
    records = tuple(
        VoteRecord(identity, group, {vote.judge: vote.score for vote in votes})
        for (identity, group, *_), votes in zip(given, voted, strict=True)
    )
    VoteLog(log).append([InputOutcome("any", votes=records)])


def test_votes_are_logged_once_and_measured(tmp_path):
    for _ in range(2):  # the second time as after a kill
        with Log(tmp_path / "votes.jsonl", VoteRecord) as log:
            log_votes(log, judges(0, 0, 2), [*responses(1, 4, 7), *responses(2, 3)])
    cast = [*Log(tmp_path / "votes.jsonl", VoteRecord)]
    assert [one.id for one in cast] == ["case 1#0", "case 1#1", "case 2#0"]
    found = measure_agreement(cast, 0.0)
    assert found.pairwise().n == 9
    assert found.pairwise().value == pytest.approx(1 / 3)
    assert found.judges()["judge 2"].others.agreement == 0


def test_what_a_user_did_wrong_is_said():
    with pytest.raises(ConfigError, match="two judges"):
        PanelLabeler(judges(0), VotingSettings())
    with pytest.raises(ConfigError, match="judge 1"):
        PanelLabeler(judges(0, 0), VotingSettings(), weights={"judge 0": 1.0})
    lost = [Judge("here"), Judge("gone", outcome=Outcome.ERROR)]
    with pytest.raises(RunError, match="gone could not be asked .the server is gone"):
        counted_votes(lost, responses(1, 4))
