import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.judging import load_format

POINTWISE = load_format("pointwise")


@given(tenths=st.integers(0, 100), suffix=st.sampled_from(["", "/10", " / 10", " out of 10"]))
def test_an_answer_in_the_requested_form_is_parsed(query, tenths, suffix):
    reading = POINTWISE.parse(f"All of it is supported.\n\n[[{tenths / 10}{suffix}]]", query("x", "y"))
    assert reading is not None
    assert (reading.values, reading.ranking) == ((tenths / 10,), ())


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[[7]]", 7.0),
        ("[[3]]\nOn reflection:\n[[8]]", 8.0),
        ("**[[10/10]]**", 10.0),
        ("Well done.\n\n**Final score: 7/10**", 7.0),
        ("Well done.\n\nRating: 6.5.", 6.5),
        ("8", 8.0),
        ("[[11]]", None),
        ("[[11/10]]", None),
        ("[[-1]]", None),
        ("-1", None),
        ("Score: -1", None),
        ("[[7/5]]", None),
        ("[[7,5]]", 7.5),
        ("[[٧]]", None),
        ("It deserves [[3]].", 3.0),
        ("Score: [[7]] out of 10", 7.0),
        ('So it is.\n{"score": 7.5}', 7.5),
        ("[[7]] or [[8]]", None),
        ("[[7]]\n[[11]]", None),
        ("[[seven]]", None),
        ("There are 7 claims in it.", None),
        ("So x is\n\\boxed{7}", None),  # may be the answer to the question itself
        ("Score: 7\nThough it is long.", 7.0),
    ],
)
def test_scores_go_from_0_to_10(query, text, score):
    reading = POINTWISE.parse(text, query("x", "y"))
    assert (reading and reading.values) == (None if score is None else (score,))


def test_contradiction_is_part_of_the_verdict(query):
    text = "I would give this response 3/10.\n[[{}]]"
    assert POINTWISE.parse(text.format(3), query("x")).contradicted is False
    assert POINTWISE.parse(text.format(8), query("x")).contradicted is True
    assert POINTWISE.parse("[[8]]", query("x")).contradicted is None


def test_every_response_is_judged_alone(query):
    prompts = POINTWISE.render(query("Marlow.", "Tamsin.", "Quill."))
    assert len(prompts) == 3
    for (message,), shown in zip(prompts, ["Marlow.", "Tamsin.", "Quill."], strict=True):
        after = message["content"].split("Who has the key?")[1]
        assert [name for name in ("Marlow.", "Tamsin.", "Quill.") if name in after] == [shown]


def test_a_repeated_prompt_is_no_verdict(query):
    ((message,),) = POINTWISE.render(query("x"))
    assert "[[5]]" in message["content"]
    assert POINTWISE.parse(message["content"], query("x")) is None
    assert POINTWISE.parse(POINTWISE.reminder, query("x")) is None
