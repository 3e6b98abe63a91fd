import pytest

from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.policy_prompts import plain_content, policy_prompt
from longrm.synthesis.labels.labeling import pair_up
from longrm.synthesis.stats import StepCounts
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
    counts = StepCounts()
    assert pair_up(scores, gap, counts) == found
    assert counts.steps["pairs"] == counted


def test_spans_of_a_question_prompt_point_at_what_they_name():
    prompt = policy_prompt(Document("d", "One. Two. Three.", "Which two?", "2"))
    text = message_text(prompt.messages[0])
    found = [text[span.start : span.end] for span in (*prompt.context, prompt.question)]
    assert found == ["One. Two. Three.", "Which two?"]
    assert text == plain_content("One. Two. Three.", "Which two?")
    assert plain_content("", "Which two?") == "Which two?"
    about = plain_content("One.", "Which?", "It is about one.")
    assert about.index("One.") < about.index("It is about one.") < about.index("Which?")
