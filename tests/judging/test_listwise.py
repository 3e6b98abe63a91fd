from string import ascii_uppercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.errors import DataError
from longrm.judging import load_format

LISTWISE = load_format("listwise")
ORDERS = st.integers(2, 26).flatmap(lambda count: st.permutations(range(count)))


@given(order=ORDERS, sign=st.sampled_from([" > ", ">", ", ", " "]), bold=st.booleans())
def test_an_answer_in_the_requested_form_is_parsed(query, order, sign, bold):
    asked = query(*(f"Answer {index}." for index in order))
    ranking = sign.join(ascii_uppercase[index] for index in order)
    marker = f"**[[{ranking}]]**" if bold else f"[[{ranking}]]"
    reading = LISTWISE.parse(f"One is made up, the others are not.\n\n{marker}", asked)
    assert reading is not None
    assert (reading.values, reading.ranking) == ((), tuple(order))


@pytest.mark.parametrize(
    "marker",
    [
        "[[B > A]]",
        "[[B > A > A]]",
        "[[A > B > C > D]]",
        "[[B > A > B > C]]",
        "[[B]]",
        "[[C < B < A]]",
        "[[B > A > Z]]",
    ],
)
def test_a_ranking_holds_every_response_once(query, marker):
    assert LISTWISE.parse(marker, query("x", "y", "z")) is None
    assert (
        LISTWISE.parse(f"[[A > B > C]]\n{marker}", query("x", "y", "z")) is None
    )  # it took the verdict back
    assert LISTWISE.parse(f"{marker}\n[[A > B > C]]", query("x", "y", "z")).ranking == (0, 1, 2)


@pytest.mark.parametrize(
    ("marker", "values"),
    [
        ("[[A = B > C > D]]", (5 / 6, 5 / 6, 1 / 3, 0.0)),
        ("[[D > B=C = A]]", (1 / 3, 1 / 3, 1 / 3, 1.0)),
        ("[[B = D, A = C]]", (1 / 6, 5 / 6, 1 / 6, 5 / 6)),
        ("[[A]] = [[B]] > [[C]] = [[D]]", (5 / 6, 5 / 6, 1 / 6, 1 / 6)),
        ("[[D = C = B = A]]", (0.5,) * 4),
        ("Final ranking: Response C = Response A > Response D > Response B", (5 / 6, 0.0, 5 / 6, 1 / 3)),
    ],
)
def test_equal_signs_tie_whatever_is_written_first(query, marker, values):
    reading = LISTWISE.parse(f"So it is.\n{marker}", query("x", "y", "z", "w"))
    assert reading.values == pytest.approx(values)
    assert reading.ranking == ()


def test_a_tie_of_two_is_that_of_a_pair(query):
    assert LISTWISE.parse("[[B = A]]", query("x", "y")).values == (0.5, 0.5)
    assert LISTWISE.parse("[[A = A > B]]", query("x", "y")) is None


@pytest.mark.parametrize(
    "text", ["So it is.\nFinal ranking: B > C > A", "[[Response B > Response C > Response A]]", "B > C > A"]
)
def test_unambiguous_words_are_a_ranking(query, text):
    assert LISTWISE.parse(text, query("x", "y", "z")).ranking == (1, 2, 0)


@pytest.mark.parametrize(
    "marker",
    [
        "[[B → C -> A]]",
        "[[B &gt; C &gt; A]]",
        "[[**B** > **C** > **A**]]",
        "[[B]] > [[C]] > [[A]]",
        "［［B ＞ C ＞ A］］",
    ],
)
def test_a_ranking_may_be_spelled_in_other_signs(query, marker):
    assert LISTWISE.parse(f"So it is.\n{marker}", query("x", "y", "z")).ranking == (1, 2, 0)


def test_letters_without_a_separator_are_no_ranking(query):
    assert LISTWISE.parse("[[BAC]]", query("x", "y", "z")) is None


def test_contradiction_is_part_of_the_verdict(query):
    text = "Response B is the best. [[{}]]"
    assert LISTWISE.parse(text.format("B > A > C"), query("x", "y", "z")).contradicted is False
    assert LISTWISE.parse(text.format("A > B > C"), query("x", "y", "z")).contradicted is True
    assert LISTWISE.parse("[[A > B > C]]", query("x", "y", "z")).contradicted is None


def test_there_are_26_letters(query):
    ((message,),) = LISTWISE.render(query(*["x"] * 26))
    assert '<response name="Z">' in message["content"]
    with pytest.raises(DataError, match="27"):
        LISTWISE.render(query(*["x"] * 27))


@pytest.mark.parametrize("count", [2, 3])
def test_a_repeated_prompt_is_no_verdict(query, count):
    asked = query(*["x", "y", "z"][:count])
    ((message,),) = LISTWISE.render(asked)
    assert LISTWISE.parse(message["content"], asked) is None
    assert LISTWISE.parse(LISTWISE.reminder, asked) is None
    assert "[[B > A]]" in message["content"]
    assert "[[B > A]]" in LISTWISE.reminder
