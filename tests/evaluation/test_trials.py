"""The queries of a comparison: orders, votes, the context check; and the baselines."""

from dataclasses import replace

import pytest

from longrm.errors import ConfigError
from longrm.evaluation.trials import PADDING, JudgingSettings, TrialJudge, context_check
from longrm.reward_models import RewardModel
from longrm.types import Comparison, Judgment, Outcome, Span, Trial, message_text, text_of


class Scripted(RewardModel):
    """Judges by a function of the query, and keeps the queries."""

    name = "scripted"
    sees_order = True
    samples = True
    scale = "verdict"

    def __init__(self, rule):
        self.asked = []
        self._rule = rule

    def judge(self, queries):
        self.asked += queries
        return [Judgment(Outcome.ANSWERED, scores=tuple(map(float, self._rule(query)))) for query in queries]


def first_wins(query):
    return range(len(query.responses), 0, -1)


def longest_wins(query):
    return [len(text_of(response)) for response in query.responses]


def says_what_the_context_says(query):
    text = message_text(query.prompt[0])
    return [text_of(response) in text for response in query.responses]


def comparison(name, *responses, context="", question="Which?", group=None, metadata=None):
    text = f"{context} {question}"
    return Comparison(
        name,
        group or name,
        ({"role": "user", "content": text},),
        tuple(({"role": "assistant", "content": text},) for text in responses),
        tuple(range(1, len(responses) + 1)),
        metadata=metadata or {},
        context=(Span(0, 0, len(context)),) if context else (),
        question=Span(0, len(context) + 1, len(text)),
    )


PAIR = comparison("p", "blue", "green", context="The door is blue.")
FOUR = comparison("f", "a", "bb", "ccc", "dddd")


def records(model, *comparisons, **judging):
    return TrialJudge(model, JudgingSettings(**judging)).records(comparisons)


def test_pairs_are_judged_in_both_orders_by_default_and_more_responses_in_one():
    model = Scripted(first_wins)
    pair, four = records(model, PAIR, FOUR)
    assert [len(record.trials) for record in (pair, four)] == [2, 1]
    assert pair.trials[0].order == pair.trials[1].order[::-1]
    assert pair.scores[0] == pair.scores[1], "a judge that follows the place says nothing"
    assert len(set(four.scores)) == 4, "and is believed where it is asked once"
    (four,) = records(model, FOUR, orders="both")
    assert len(four.trials) == 4
    assert len(set(four.scores)) == 1
    (pair,) = records(model, PAIR, orders="one")
    assert len(pair.trials) == 1


def test_a_model_that_does_not_see_the_order_is_asked_once():
    model = Scripted(longest_wins)
    model.sees_order = False
    assert [len(record.trials) for record in records(model, PAIR, FOUR, orders="both")] == [1, 1]


def test_the_order_cancelled_verdict_is_the_judge_s_where_it_does_not_follow_the_place():
    pair, four = records(Scripted(longest_wins), PAIR, FOUR, orders="both")
    assert pair.scores == (4.0, 5.0)
    assert four.scores == (1.0, 2.0, 3.0, 4.0)


def test_votes_of_a_model_that_always_says_the_same_are_refused():
    model = Scripted(first_wins)
    model.samples = False
    with pytest.raises(ConfigError, match="temperature"):
        TrialJudge(model, JudgingSettings(votes=2))


@pytest.mark.parametrize(("rule", "found"), [(says_what_the_context_says, "changed"), (longest_wins, "same")])
@pytest.mark.parametrize("check", ["removed", "swapped"])
def test_a_judge_that_ignores_the_context_keeps_its_verdict_without_it(rule, found, check):
    other = comparison("q", "red", "pink", context="The roof is red and long.", group="other")
    checked = records(Scripted(rule), PAIR, other, context_check=check)
    assert [record.context_check for record in checked] == [found, found]


def test_padding_moves_a_judge_of_length_and_no_other():
    pair = comparison("p", "The door is certainly blue.", "green", context="The door is blue.")
    asked = Scripted(longest_wins)
    (long,) = records(asked, pair, padding_check=True)
    padded = [text_of(response) for response in asked.asked[-1].responses]
    plain = [text_of(response) for response in asked.asked[0].responses]
    assert len(asked.asked) == 3
    assert sorted(padded, key=len)[0] == "The door is certainly blue."
    added = max(padded, key=len).removeprefix("green\n\n")
    assert set(added.split(". ")) == {PADDING.strip(". "), PADDING.strip()}
    assert len(max(padded, key=len)) >= 2 * len(max(plain, key=len))
    assert long.padding_check == "gained"
    assert long.trials[0].scores == (27.0, 5.0), "the verdict of the comparison is without padding"
    no = Scripted(lambda query: ["green" not in text_of(response) for response in query.responses])
    first = Scripted(first_wins)
    short = Scripted(lambda query: [-len(text_of(response)) for response in query.responses])
    assert [records(judge, pair, padding_check=True)[0].padding_check for judge in (no, first, short)] == [
        "same",
        "same",
        "lost",
    ]
    tied = replace(pair, ranks=(1, 1))
    parts = replace(
        pair, responses=(pair.responses[0], ({"role": "assistant", "content": [{"type": "image"}]},))
    )
    both = records(Scripted(first_wins), tied, parts, padding_check=True)
    assert [record.padding_check for record in both] == ["impossible", "impossible"]


def test_the_padding_check_and_the_context_check_are_separate_trials():
    other = comparison("q", "red", "pink", context="The roof is red and long.", group="other")
    checks = {"context_check": "swapped", "padding_check": True}
    found = records(Scripted(says_what_the_context_says), PAIR, other, **checks)
    assert [(record.context_check, record.padding_check) for record in found] == [("changed", "same")] * 2
    found = records(Scripted(longest_wins), PAIR, comparison("r", "long", "a"), **checks)
    assert [(record.context_check, record.padding_check) for record in found] == [
        ("impossible", "same"),  # the chosen response is shorter: the judge preferred the other one before
        ("impossible", "gained"),
    ]


def test_an_error_in_the_context_check_is_one_of_the_comparison():
    class Broken(Scripted):
        def judge(self, queries):
            judged = super().judge(queries)
            failed = Judgment(Outcome.ERROR, detail="connection lost")
            return [
                failed if "not shown" in message_text(query.prompt[0]) else judgment
                for query, judgment in zip(queries, judged, strict=True)
            ]

    (record,) = records(Broken(longest_wins), PAIR, context_check="removed")
    assert (record.outcome, record.detail) == (Outcome.ERROR, "connection lost")
    assert [trial.outcome for trial in record.trials] == [Outcome.ANSWERED] * 2


def test_the_check_takes_nothing_but_the_context_away():
    model = Scripted(longest_wins)
    other = comparison("q", "red", "pink", context="The roof is red.", group="other")
    records(model, PAIR, other, context_check="swapped", orders="one")
    plain, check = model.asked[0], model.asked[1]
    assert message_text(check.prompt[0]) == "The roof is red. Which?"
    assert check.responses == plain.responses
    start, end = check.question.start, check.question.end
    assert message_text(check.prompt[0])[start:end] == "Which?"


def test_a_swapped_context_never_comes_from_the_same_group_and_does_not_depend_on_resuming():
    batches = [
        [replace(PAIR, id=f"{group}{k}", group=group) for k in range(2)] for group in ("one", "two", "three")
    ]
    batches = [
        [replace(c, prompt=({"role": "user", "content": f"The door is {c.group}. Which?"},)) for c in batch]
        for batch in batches
    ]
    batches = [
        [replace(c, context=(Span(0, 0, 13 + len(c.group)),), question=None) for c in b] for b in batches
    ]
    fresh, resumed = Scripted(longest_wins), Scripted(longest_wins)
    asker, again = (TrialJudge(model, JudgingSettings(context_check="swapped")) for model in (fresh, resumed))
    for batch in batches:
        asker.records(batch)
    for batch in batches[:2]:
        again.skip(batch)
    again.records(batches[2])
    assert resumed.asked == fresh.asked[-len(resumed.asked) :]
    for query in fresh.asked:
        if query.trial == 2:
            assert query.id[:-1] not in message_text(query.prompt[0])


def test_the_context_check_compares_the_best():
    def answered(*scores):
        return Trial(order=(0, 1), outcome=Outcome.ANSWERED, scores=tuple(map(float, scores)))

    with_context = answered(3, 1)
    assert context_check(with_context, answered(9, 8)) == "same"
    assert context_check(with_context, answered(1, 3)) == "changed"
    assert context_check(with_context, answered(2, 2)) == "changed"
    assert context_check(with_context, Trial(order=(0, 1), outcome=Outcome.UNPARSED)) == "unanswered"
