import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.errors import DataError
from longrm.judging import ParsedVerdict, load_format

PAIRWISE = load_format("pairwise")
A, B, TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
VERDICTS = {"A": A, "B": B, "C": TIE}

# Words that cannot come near a marker, a thought, a quotation, or a statement about a response.
PROSE = st.text("abcdefghijklmnopqrstuvwxyz ,.\n", max_size=200)


@given(
    letter=st.sampled_from(sorted(VERDICTS)), analysis=PROSE, space=st.sampled_from(["", " ", "\n", "\n\n"])
)
def test_an_answer_in_the_requested_form_is_parsed(query, letter, analysis, space):
    reading = PAIRWISE.parse(f"{analysis}\n[[{letter}]]{space}", query("Marlow.", "Tamsin."))
    assert reading is not None
    assert reading.values == VERDICTS[letter]
    assert reading.ranking == ()


@given(verdicts=st.lists(st.sampled_from(sorted(VERDICTS)), min_size=1, max_size=6), analysis=PROSE)
def test_the_last_of_many_verdicts_counts(query, verdicts, analysis):
    text = "".join(f"{analysis}\n[[{letter}]]\n" for letter in verdicts)
    reading = PAIRWISE.parse(text, query("Marlow.", "Tamsin."))
    assert reading is not None
    assert reading.values == VERDICTS[verdicts[-1]]


@pytest.mark.parametrize(
    ("marker", "points"),
    [
        ("[[A>>B]]", A),
        ("[[A>B]]", A),
        ("[[A=B]]", TIE),
        ("[[B>A]]", B),
        ("[[B>>A]]", B),
        ("[[ b > a ]]", B),
        ("[[A<B]]", B),
        ("[[B<<A]]", A),
        ("[[Assistant A >> Assistant B]]", A),
        ("[[Response B]]", B),
        ("[[B is slightly better]]", B),
        ("[[Tie]]", TIE),
        ("[[A>>>>B]]", None),
        ("[[A><B]]", None),
        ("[[1]]", None),  # numbers only where a verdict pattern asks for them
    ],
)
def test_relations_are_parsed_without_their_strength(query, marker, points):
    reading = PAIRWISE.parse(f"My final verdict is: {marker}", query("Marlow.", "Tamsin."))
    assert (reading and reading.values) == points


def test_contradiction_is_part_of_the_verdict(query):
    text = "Response A is better. [[{}]]"
    asked = query("Marlow.", "Tamsin.")
    assert PAIRWISE.parse(text.format("A"), asked) == ParsedVerdict(A, (), False)
    assert PAIRWISE.parse(text.format("B"), asked) == ParsedVerdict(B, (), True)
    assert PAIRWISE.parse("<think>Response A is better.</think>[[B]]", asked) == ParsedVerdict(B)


@pytest.mark.parametrize("count", [1, 3])
def test_it_takes_two_responses(query, count):
    with pytest.raises(DataError, match=f"'c1'.*{count}"):
        PAIRWISE.render(query(*["x"] * count))


def test_the_prompt_asks_for_the_form_that_is_parsed(query):
    ((message,),) = PAIRWISE.render(query("Marlow.", "Tamsin."))
    last = message["content"].splitlines()[-1]
    assert all(f"[[{letter}]]" in last and f"[[{letter}]]" in PAIRWISE.reminder for letter in VERDICTS)
    assert PAIRWISE.scale == "verdict"
    # A model that repeats what it was asked has given no verdict.
    assert PAIRWISE.parse(message["content"], query("Marlow.", "Tamsin.")) is None
    assert PAIRWISE.parse(PAIRWISE.reminder, query("Marlow.", "Tamsin.")) is None
