import pytest

from longrm.judging.answers import argues_otherwise, names_another_score

A, B, TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "A is better.",
        "Assistant A is significantly better.",
        "Response A is more accurate overall.",
        "I prefer A.",
        "I would choose response A over response B because it cites the text.",
        "Therefore, my final verdict is that Assistant A's answer is slightly better: [[A>B]]",
        "**Response A** is the better response.",
        "- Response A is superior to Response B, since it keeps to the text.",
        "Response B is long. Response A wins.",
        "A: 7/10, B: 4/10",
        "Response A: 8/10\nResponse B: 8/10\nResponse A is better.",
        "Response B is better.\nHowever, on the facts this is wrong.\nSo I conclude that response A is better.",
    ],
)
def test_statements_for_a_are_found(text):
    assert argues_otherwise(text, A) is False
    assert argues_otherwise(text, B) is True
    assert argues_otherwise(text, TIE) is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Response A is good. Response B names the key.",
        "Response A is not better.",
        "I don't think that response A is better.",
        "If it had named the key, I would say that response A is better.",
        "Response A is more accurate.",  # one aspect
        "Response A is better in style.",
        "Response A is better, but response B names the key.",
        "Although response A is better, it is long.",
        "Response A claims that A is better.",
        "The user may say so: response A is better.",
        "Option A is better.",  # an option of the question
        "In style, response A is better.",
        "I prefer A responses.",
        "A 7/10 answer.",
        "Facts: A: 7/10, B: 4/10. Style: A: 2/10, B: 9/10.",
        "Response C is better.",
    ],
)
def test_anything_less_says_nothing(text):
    assert argues_otherwise(text, A) is None
    assert argues_otherwise(text, B) is None


@pytest.mark.parametrize(
    ("text", "contradicted"),
    [
        ("Response C is the best.", True),
        ("Response A is better than response C.", False),
        ("Response C is better than response A.", True),
        ("Response C is better.", None),  # than which?
        ("Response C is the best. Response B is better than response C. Response A is better than C.", False),
        ("A: 5/10, B: 2/10, C: 9/10", True),
        ("Response D is the best.", None),
    ],
)
def test_rankings_are_compared_by_pairs(text, contradicted):
    assert argues_otherwise(text, (-1.0, 0.0, -2.0)) is contradicted  # B > A > C


@pytest.mark.parametrize(
    ("text", "contradicted"),
    [
        ("Overall score: 3/10", True),
        ("The final rating is 8.", False),
        ("I would give this response a 3.", True),
        ("I rate the response with a score of 7.5 out of 10", False),
        ("It deserves a 2.", True),
        ("Facts: 3/10. Style: 4/10.", None),
        ("I would not give this response a 3.", None),
        ("Overall score: 30/100", None),
        ("Final score: [[3]]", None),  # the verdict itself
    ],
)
def test_scores_are_compared_with_the_verdict(text, contradicted):
    assert names_another_score(text, 8.0) is contradicted
