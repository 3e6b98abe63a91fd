"""The built-in formats: an answer in the requested form is parsed, and what only resembles one is not."""

from string import ascii_uppercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.errors import DataError
from longrm.judging import JUDGING_FORMATS, load_format

PAIRWISE, LISTWISE, POINTWISE = map(load_format, ("pairwise", "listwise", "pointwise"))
A, B, TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
VERDICTS = {"A": A, "B": B, "C": TIE}

# Words that cannot be taken for a marker, a thought, a quotation, or a statement about a response.
PROSE = st.text("abcdefghijklmnopqrstuvwxyz ,.\n", max_size=200)
ORDERS = st.integers(2, 26).flatmap(lambda count: st.permutations(range(count)))


@pytest.mark.parametrize("name", JUDGING_FORMATS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_repeated_prompt_is_not_a_verdict(query, name, count):
    judging = load_format(name)
    if count not in judging.n_responses:
        return
    asked = query(*["x", "y", "z"][:count])
    for (message,) in judging.render(asked):
        assert judging.form in message["content"].splitlines()[-1]
        assert judging.parse(message["content"], asked) is None
    assert judging.form in judging.reminder
    assert judging.parse(judging.reminder, asked) is None


@pytest.mark.parametrize(
    ("judging", "count", "other"),
    [(PAIRWISE, 1, "pointwise"), (PAIRWISE, 3, "listwise"), (LISTWISE, 27, "pointwise")],
)
def test_a_wrong_number_of_responses_is_an_error(query, judging, count, other):
    with pytest.raises(DataError, match=f"'c1'.*{count}.*{other}"):
        judging.render(query(*["x"] * count))


@pytest.mark.parametrize(
    ("judging", "text", "agreeing", "opposing"),
    [
        (PAIRWISE, "Response A is better. [[{}]]", "A", "B"),
        (LISTWISE, "Response B is the best. [[{}]]", "B > A", "A > B"),
        (POINTWISE, "I would give this response 3/10.\n[[{}]]", "3", "8"),
    ],
)
def test_contradiction_is_part_of_the_verdict(query, judging, text, agreeing, opposing):
    asked = query("x", "y")
    assert judging.parse(text.format(agreeing), asked).contradicted is False
    assert judging.parse(text.format(opposing), asked).contradicted is True
    assert judging.parse(f"[[{opposing}]]", asked).contradicted is None
    assert judging.parse(f"<think>Response A is better.</think>[[{opposing}]]", asked).contradicted is None


@given(verdicts=st.lists(st.sampled_from(sorted(VERDICTS)), min_size=1, max_size=6), analysis=PROSE)
def test_the_last_of_several_pairwise_verdicts_counts(query, verdicts, analysis):
    text = "".join(f"{analysis}\n[[{letter}]]\n" for letter in verdicts)
    verdict = PAIRWISE.parse(text, query("Marlow.", "Tamsin."))
    assert verdict is not None
    assert (verdict.values, verdict.ranking) == (VERDICTS[verdicts[-1]], ())


@pytest.mark.parametrize(
    ("marker", "points"),
    [
        ("[[A>>B]]", A),
        ("[[A=B]]", TIE),
        ("[[ b > a ]]", B),
        ("[[A<B]]", B),
        ("[[Assistant A >> Assistant B]]", A),
        ("[[Response B]]", B),
        ("[[Tie]]", TIE),
        ("[[A>>>>B]]", None),
        ("[[A > > B]]", None),
        ("[[A >= B]]", None),
        ("[[1]]", None),  # numbers only if a verdict pattern asks for them
    ],
)
def test_relations_are_parsed_without_their_strength(query, marker, points):
    verdict = PAIRWISE.parse(f"My final verdict is: {marker}", query("Marlow.", "Tamsin."))
    assert (verdict and verdict.values) == points


@given(order=ORDERS, sign=st.sampled_from([" > ", ">", ", ", " "]), bold=st.booleans())
def test_a_ranking_is_parsed(query, order, sign, bold):
    ranking = sign.join(ascii_uppercase[index] for index in order)
    marker = f"**[[{ranking}]]**" if bold else f"[[{ranking}]]"
    verdict = LISTWISE.parse(
        f"One is wrong, the others are not.\n\n{marker}", query(*(f"Answer {index}." for index in order))
    )
    assert verdict is not None
    assert (verdict.values, verdict.ranking) == ((), tuple(order))


@pytest.mark.parametrize(
    "marker",
    [
        "[[B > A]]",
        "[[B > A > A]]",
        "[[A > B > C > D]]",
        "[[C < B < A]]",
        "[[B > A > Z]]",
        "[[BAC]]",
        "[[A = A > B]]",
        "[[B > > A > C]]",
        "[[B >= A > C]]",
        "[[B, > A, C]]",
        "[[B ,, A, C]]",
        "[[> B > A > C]]",
        "[[B > A > C >]]",
    ],
)
def test_a_ranking_holds_every_response_once(query, marker):
    asked = query("x", "y", "z")
    assert LISTWISE.parse(marker, asked) is None
    assert LISTWISE.parse(f"{marker}\n[[A > B > C]]", asked).ranking == (0, 1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "Final ranking: B > C > A",
        "B > C > A",
        "[[B → C -> A]]",
        "[[B &gt; C &gt; A]]",
        "[[**B** > **C** > **A**]]",
        "[[B]] > [[C]] > [[A]]",
        "［［B ＞ C ＞ A］］",
    ],
)
def test_a_ranking_may_be_spelled_differently(query, text):
    assert LISTWISE.parse(f"So it is.\n{text}", query("x", "y", "z")).ranking == (1, 2, 0)


@pytest.mark.parametrize(
    ("marker", "values"),
    [
        ("[[A = B > C > D]]", (5 / 6, 5 / 6, 1 / 3, 0.0)),
        ("[[B = D, A = C]]", (1 / 6, 5 / 6, 1 / 6, 5 / 6)),
        ("[[A]] = [[B]] > [[C]] = [[D]]", (5 / 6, 5 / 6, 1 / 6, 1 / 6)),
        ("[[D = C = B = A]]", (0.5,) * 4),
        ("Final ranking: Response C = Response A > Response D > Response B", (5 / 6, 0.0, 5 / 6, 1 / 3)),
    ],
)
def test_equal_signs_tie(query, marker, values):
    verdict = LISTWISE.parse(f"So it is.\n{marker}", query("x", "y", "z", "w"))
    assert verdict.values == pytest.approx(values)
    assert verdict.ranking == ()


@given(tenths=st.integers(0, 100), suffix=st.sampled_from(["", "/10", " / 10", " out of 10"]))
def test_a_score_is_parsed(query, tenths, suffix):
    verdict = POINTWISE.parse(f"All of it is supported.\n\n[[{tenths / 10}{suffix}]]", query("x", "y"))
    assert verdict is not None
    assert (verdict.values, verdict.ranking) == ((tenths / 10,), ())


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[[3]]\nOn reflection:\n[[8]]", 8.0),
        ("Well done.\n\n**Final score: 7/10**", 7.0),
        ("8", 8.0),
        ("[8]", 8.0),
        ("8]", None),
        ("> 8", None),
        ("[[- 8]]", None),
        ("[[11/10]]", None),
        ("[[-1]]", None),
        ("[[7/5]]", None),
        ("[[7,5]]", 7.5),
        ("[[٧]]", None),
        ("It deserves [[3]].", 3.0),
        ("Score: [[7]] out of 10", 7.0),
        ('So it is.\n{"score": 7.5}', 7.5),
        ("[[7]] or [[8]]", None),
        ("[[7]]\n[[11]]", None),
        ("There are 7 claims in it.", None),
        ("So x is\n\\boxed{7}", None),  # may be the answer to the question itself
        ("Score: 7\nThough it is long.", 7.0),
    ],
)
def test_scores_go_from_0_to_10(query, text, score):
    verdict = POINTWISE.parse(text, query("x", "y"))
    assert (verdict and verdict.values) == (None if score is None else (score,))


@pytest.mark.parametrize(
    "text",
    [
        "[2] > [3] > [1]",  # RankGPT
        "Final ranking: [2] > [3] > [1]",
        "[B] > [C] > [A]",
        '["B", "C", "A"]',
        '```json\n[\n  "B",\n  "C",\n  "A"\n]\n```',
        'Ranking: ["Response B", "Response C", "Response A"]',
        "【【B > C > A】】",
        '{"reason": "It is so.", "ranking": ["B", "C", "A"]',
        '{\n  "reason": "It is so.",\n  "ranking": ["B", "C", "A"],\n  "confidence": "hi',
    ],
)
def test_rankings_in_other_forms_are_parsed(query, text):
    asked = query("x", "y", "z")
    assert LISTWISE.parse(f"So it is.\n{text}", asked).ranking == (1, 2, 0)
    assert LISTWISE.parse(f"{text}\n[[A > B > C]]", asked).ranking == (0, 1, 2), (
        "the asked-for form comes first"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[2] > [1]",
        "[2] > [1] > [1]",
        "[2] > [1] > [4]",
        "[2] > [1] > [3",
        "The output format is [2] > [1] > [3], so I follow it",
        "Write `[2] > [1] > [3]`, or the like.",
        '["B", "A"]',
        '["B", "A", "C", "D"]',
        '["B", "A", "C"',
        '["B", "A", 3]',
        '[["B", "A", "C"]]',
        'The responses are named ["B", "A", "C"]',
        'Reply with a list such as ["B", "A", "C"].',
        '> ["B", "A", "C"]',
        '{"reason": "...", "ranking": ["B", "A"',
        '{"reason": "The ranking is [\\"B\\", \\"A\\", \\"C\\"]',
    ],
)
def test_what_only_resembles_a_ranking_is_none(query, text):
    assert LISTWISE.parse(f"So it is.\n{text}", query("x", "y", "z")) is None
