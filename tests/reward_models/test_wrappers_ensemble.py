import pytest

import longrm
from longrm.clients.remote_settings import servers_of
from longrm.errors import ConfigError
from longrm.reward_models import RewardModel, pinned
from longrm.reward_models.wrappers import EnsembleRewardModel
from longrm.types import Judgment, Outcome, Query


class Says(RewardModel):
    """A member that gives fixed points by the text of a response, or none."""

    def __init__(self, name, points=None, outcome=Outcome.ANSWERED, *, sees_order=False):
        self.name, self._points, self._outcome, self.sees_order = name, points, outcome, sees_order
        self.asked = 0

    def judge(self, queries):
        self.asked += len(queries)
        if self._outcome is not Outcome.ANSWERED:
            return [Judgment(self._outcome, detail="why") for _ in queries]
        return [
            Judgment(
                Outcome.ANSWERED, tuple(self._points[answer[0]["content"]] for answer in query.responses)
            )
            for query in queries
        ]


def query(texts="abc"):
    return Query(
        "q", ({"role": "user", "content": "?"},), tuple(({"role": "assistant", "content": t},) for t in texts)
    )


ONE = Says("one", {"a": 900.0, "b": 1.0, "c": 0.0})
TWO = Says("two", {"a": 0.1, "b": 0.3, "c": 0.2})
THREE = Says("three", {"a": 0.0, "b": 5.0, "c": 5.0})


@pytest.mark.parametrize(
    ("combination", "expected"),
    [
        ("mean-rank", [(1 + 0 + 0) / 3, (0.5 + 1 + 0.75) / 3, (0 + 0.5 + 0.75) / 3]),
        ("votes", [1 / 3, (0 + 1 + 0.5) / 3, 0.5 / 3]),
    ],
)
def test_members_judge_together_whatever_their_scales(combination, expected):
    ensemble = EnsembleRewardModel([ONE, TWO, THREE], combination)
    (judgment,) = ensemble.judge([query()])
    assert judgment.scores == pytest.approx(expected)
    (turned,) = ensemble.judge([query("cba")])
    assert turned.scores == judgment.scores[::-1]
    assert ensemble.name == f"ensemble:{combination}:one+two+three"
    assert ensemble.scale == "verdict"


def test_each_member_is_asked_in_the_orders_that_it_sees():
    blind, seeing = Says("blind", {"a": 1.0, "b": 0.0}), Says("seeing", {"a": 1.0, "b": 0.0}, sees_order=True)
    ensemble = EnsembleRewardModel([blind, seeing], "votes")
    ensemble.judge([query("ab")])
    assert (blind.asked, seeing.asked, ensemble.sees_order) == (1, 2, False)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((Outcome.TOO_LONG,), "too_long"),
        ((Outcome.UNPARSED, Outcome.TOO_LONG), "unparsed"),
        ((Outcome.TOO_LONG, Outcome.ERROR), "error"),
    ],
)
def test_it_answers_where_every_member_does(outcomes, expected):
    silent = [Says(f"silent {number}", outcome=outcome) for number, outcome in enumerate(outcomes)]
    (judgment,) = EnsembleRewardModel([ONE, *silent, TWO], "mean-rank").judge([query()])
    assert (judgment.outcome, judgment.scores) == (expected, ())
    assert judgment.detail == f"silent {outcomes.index(Outcome(expected))}: why"


def test_names():
    ensemble = longrm.load("ensemble:mean-rank:baseline:longest+compress:baseline:overlap+baseline:random")
    assert ensemble.name == "ensemble:mean-rank:baseline:longest+compress:baseline:overlap+baseline:random"
    assert pinned(ensemble.name) == ensemble.name
    assert ensemble.score("Which?", ["a longer one", "short"])[0] >= 0.5
    assert longrm.load("compress:ensemble:votes:baseline:longest+baseline:first").name.startswith(
        "compress:ensemble"
    )
    for name, reason in {
        "ensemble:": "ensemble:mean-rank:MODEL",
        "ensemble:vote:baseline:longest+baseline:first": "did you mean 'votes'",
        "ensemble:votes:baseline:longest": "two models",
        "ensemble:votes:baseline:longest+": "ensemble:votes:baseline:longest",
        "ensemble:votes:baseline:longest+ensemble:votes:baseline:first": "ensemble:votes:baseline:longest",
        "ensembel:votes:baseline:longest": "'ensembel:'.*'ensemble'",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            longrm.load(name)


def test_servers_are_found_whatever_stands_before_them():
    one, other = "http://a/v1#m", "https://b:8000/v1#org/n"
    assert servers_of(f"openai:{one}") == [one]
    assert servers_of(f"compress:tokens:openai:{one}") == [one]
    assert servers_of(f"ensemble:votes:likelihood:openai:{one}+runs/model+tokens:openai:{other}") == [
        one,
        other,
    ]
    assert servers_of("baseline:longest") == servers_of("runs/openai:x") == []
