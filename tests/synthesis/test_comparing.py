import pytest

from longrm.data.native import from_row, to_row
from longrm.synthesis.comparing import apart, comparison, plain_prompt
from longrm.synthesis.fates import Fates
from longrm.types import message_text


@pytest.mark.parametrize(
    ("scores", "gap", "found", "counted"),
    [
        ([2, 9], 1, [(1, 0)], {"kept": 1}),
        ([9, 2], 1, [(0, 1)], {"kept": 1}),
        ([9, 2], 7.5, [], {"too_close": 1}),
        ([9, 2], 7, [(0, 1)], {"kept": 1}),
        ([9, 9], 1, [], {"tie": 1}),
        ([0.3, 0.1 + 0.2], 1, [], {"too_close": 1}),
        ([1, 5, 9], 5, [(2, 0)], {"too_close": 2, "kept": 1}),
    ],
)
def test_pairs_follow_the_scores(scores, gap, found, counted):
    fates = Fates()
    assert apart(scores, gap, fates) == found
    assert fates.steps["pairs"] == counted


def test_spans_point_at_what_they_name():
    prompt = plain_prompt("One. Two. Three.", "Which two?", "It is about two.")
    text = message_text(prompt[0])
    start = text.index("One.")
    made = comparison(
        "a", "g", prompt, ["two", "one"], [9, 2], {"tag": None},
        context=(start, start + 16), question="Which two?", evidence=[(start + 5, start + 9)],
    )  # fmt: skip
    assert from_row(to_row(made), 1) == made
    assert [text[s.start : s.end] for s in (*made.context, made.question, *made.evidence)] == [
        "One. Two. Three.",
        "Which two?",
        "Two.",
    ]
    assert (made.ranks, made.metadata) == ((1, 2), {"judge_scores": [9, 2], "points_apart": 7})
    assert "It is about two." in text[made.context[0].end : made.question.start]


def test_without_a_context_the_question_is_all():
    assert plain_prompt("", "Why?", "It is about nothing.") == ({"role": "user", "content": "Why?"},)
