"""Rewards for verdicts: every term against its closed form, and the batch against a plain loop over pairs."""

import random
from itertools import combinations, permutations

import pytest
from scipy.stats import kendalltau

import longrm
from longrm.errors import ConfigError, DataError
from longrm.types import Outcome


def pair(gold="A", order=(0, 1), id="one", **more):
    return {"gold": gold, "order": list(order), "id": id, "format": "pairwise", **more}


def lists(gold, order, id="one"):
    return {"gold": gold, "order": list(order), "id": id, "format": "listwise"}


def point(rank, index, id="one"):
    return {"gold": str(rank), "order": [index], "id": id, "format": "pointwise"}


def judged(rows, texts, tokens=None, *, options=None, **weights):
    return longrm.verdict_reward(**weights, **(options or {})).judge(
        rows, texts, tokens or [None] * len(rows)
    )


def term(name, rows, texts, tokens=None, **options):
    """The values of one term; None where it is omitted."""
    scores = judged(rows, texts, tokens, options=options, **{name: 1.0})
    assert all(score.reward == sum(score.terms.values()) for score in scores)
    return [score.terms.get(name) for score in scores]


@pytest.mark.parametrize(
    ("text", "value", "verdict"),
    [
        ("B errs. [[A]]", 1, "A"),
        ("A errs. [[B]]", 0, "B"),
        ("Both are alike. [[C]]", 0, "C"),
        ("<think>[[B]]</think> [[A]]", 1, "A"),
        ("<think>[[A]]", 0, ""),
        ("I cannot say.", 0, ""),
        ("", 0, ""),
    ],
)
def test_a_pairwise_verdict_is_right_or_wrong(text, value, verdict):
    for gold, right in (("A", value), ("B", float(verdict == "B"))):
        (score,) = judged([pair(gold)], [text], correct=2.0)
        assert (score.reward, score.terms, score.verdict) == (2.0 * right, {"correct": right}, verdict)
        assert score.outcome == (Outcome.ANSWERED if verdict else Outcome.UNPARSED)


def test_a_ranking_has_the_share_of_right_pairs():
    gold = ["B", "A", "D", "C"]
    rows, texts, shares = [], [], []
    for ranking in permutations("ABCD"):
        rows.append(lists(" > ".join(gold), range(4)))
        texts.append(f"[[{' > '.join(ranking)}]]")
        tau = kendalltau([gold.index(one) for one in "ABCD"], [ranking.index(one) for one in "ABCD"])
        shares.append((tau.statistic + 1) / 2)  # tau is the share of right pairs minus that of wrong ones
    assert term("correct", rows, texts) == pytest.approx(shares)
    assert {0.0, 1.0} < set(term("correct", rows, texts))


def test_pairs_that_gold_ties_do_not_count_and_ties_of_the_judge_are_wrong():
    texts = ["[[B > A > C]]", "[[B > C > A]]", "[[A > B > C]]", "[[A = B = C]]"]
    assert term("correct", [lists("B > A = C", range(3))] * 4, texts) == [1.0, 1.0, 0.5, 0.0]


def test_a_score_is_right_by_the_other_responses_of_its_comparison():
    rows = [point(1, 0), point(1, 0), point(2, 1), point(2, 1), point(2, 2), point(1, 0, "two")]
    texts = ["[[7]]", "[[3]]", "[[5]]", "none", "[[7]]", "[[9]]"]
    # 7 beats 5, not the unparsed one and not 7; 3 beats nothing. 5 is below 7 only; 7 is below none of both.
    # Equal gold is no pair, and comparison two is alone.
    assert term("correct", rows, texts) == [pytest.approx(1 / 3), 0.0, 0.5, 0.0, 0.0, None]


def test_scores_match_a_loop_over_all_pairs():
    rng = random.Random(0)
    rows = [point(rng.randint(1, 2) + index % 2, index, id) for id in "abc" for index in range(4)] * 3
    ranks = {(row["id"], *row["order"]): row["gold"] for row in rows}
    assert len(set(ranks.values())) == 3
    scores = [rng.choice([0, 2.5, 5, 10]) for _ in rows]
    right = {index: [] for index in range(len(rows))}
    for one, other in combinations(range(len(rows)), 2):
        if rows[one]["id"] == rows[other]["id"] and rows[one]["gold"] != rows[other]["gold"]:
            better, worse = sorted((one, other), key=lambda index: rows[index]["gold"])
            for index in (one, other):
                right[index].append(scores[better] > scores[worse])
    found = term("correct", rows, [f"[[{score}]]" for score in scores])
    assert found == pytest.approx([sum(one) / len(one) for one in right.values()])
    shuffled = term("correct", rows, [f"[[{score}]]" for score in reversed(scores)])
    assert max(abs(one - other) for one, other in zip(found, shuffled, strict=True)) > 0.1


def test_the_form_is_kept_if_the_verdict_in_brackets_ends_the_text():
    texts = [
        "Because. [[A]]",
        "Because.\n\n[[ B ]] \n",
        "[[A]] is my verdict.",
        "Verdict: A",
        "[[D]]",
        "[[A]] [[B]]",
    ]
    assert term("format", [pair()] * 6, texts) == [1, 1, 0, 0, 0, 0]
    assert [score.outcome for score in judged([pair()] * 6, texts, format=1.0)] == [
        *[Outcome.ANSWERED] * 4,
        *[Outcome.UNPARSED] * 2,
    ]
    solving = [pair(answer=["key"])] * 3
    texts = ["<answer>key</answer> [[A]]", "[[A]]", "[[B]]\n<answer>key</answer> [[A]]"]
    assert term("format", solving, texts) == [1, 0, 1]


def test_both_orders_are_consistent_if_they_have_the_same_winner():
    rows = [pair("A"), pair("A"), pair("B", (1, 0)), pair("B", (1, 0)), pair("A", id="alone")]
    texts = ["[[A]]", "[[B]]", "[[B]]", "no verdict", "[[A]]"]
    # Response 0 wins in rows 0 and 2, and response 1 in row 1. Row 3 has no winner.
    assert term("consistent", rows, texts) == [0.5, 0.0, 0.5, 0.0, None]
    always_first = term("consistent", rows[1:3], ["[[A]]", "[[A]]"])
    always_tied = term("consistent", rows[1:3], ["[[C]]", "[[C]]"])
    assert always_first == always_tied == [0.0, 0.0]
    assert term("consistent", [point(1, 0), point(2, 1)], ["[[7]]", "[[5]]"]) == [None, None]


LONGER, SHORTER = "It is in the shed, next to the ladder and the rake.", "In the shed."
JUDGES = {
    # A judge that is shown the responses at A and B, the first one of which may be the longer, and the means of its
    # terms over both orders of two comparisons: the longer response is right in one of them.
    "names both": (lambda longer: "[[A]] [[B]]", (0, 0, 0, 0)),
    "names one after the other": (lambda longer: "[[A]]\n[[B]]", (0.5, 1, 0, 0)),
    "copies the longer": (lambda longer: LONGER, (0, 0, 0, 0)),
    "prefers the longer": (lambda longer: f'"{LONGER}" [[{longer}]]', (0.5, 1, 0.5, 0)),
    "gives the longer as its answer": (
        lambda longer: f"<answer>{LONGER}</answer> [[{longer}]]",
        (0.5, 1, 0.5, 0),
    ),
    "answers in two tokens": (lambda longer: "[[A]]", (0.5, 1, 0, 0)),
    "argues for the other": (lambda longer: "Response B is better. [[A]]", (0.5, 0, 0, 0)),
    "argues for the first and names it": (lambda longer: "Response A is better. [[A]]", (0.5, 1, 0, 0)),
    "says nothing for long": (lambda longer: "so " * 100, (0, 0, 0, -1)),
}


@pytest.mark.parametrize("name", JUDGES)
def test_what_every_term_gives_a_judge_that_does_not_judge(name):
    judge, expected = JUDGES[name]
    rows, texts = [], []
    for best in (0, 1):  # response 0 is the longer
        for order in ((0, 1), (1, 0)):
            rows.append(pair("AB"[order.index(best)], order, id=f"best {best}"))
            texts.append(judge("AB"[order.index(0)]))
    tokens = [len(text.split()) for text in texts]
    weights = {"correct": 1.0, "format": 0.1, "consistent": 0.2, "brief": 0.1}
    scores = judged(rows, texts, tokens, options={"max_tokens": 100, "soft_tokens": 50}, **weights)
    found = [sum(score.terms[name] for score in scores) / 4 for name in weights]
    assert found == pytest.approx(expected)
    # Right verdicts in both orders are worth 1.3, guesses 0.65: both orders are right by chance in a quarter.
    assert sum(score.reward for score in scores) / 4 < 0.71
    if "answer" in name:
        solving = [{**row, "answer": ["the shed"]} for row in rows]
        assert term("solved", solving, texts) == [0.0] * 4


def test_rankings_in_reverse_orders_are_consistent_by_their_first_place():
    rows = [lists("A > B > C", (2, 0, 1)), lists("C > B > A", (1, 0, 2))]
    assert term("consistent", rows, ["[[A > B > C]]", "[[C > A > B]]"]) == [1.0, 1.0]
    assert term("consistent", rows, ["[[A > B > C]]", "[[A > B > C]]"]) == [0.0, 0.0]


def test_pairs_of_a_larger_comparison_are_compared_with_their_own_other_order():
    rows = [pair("A", (0, 1)), pair("B", (1, 0)), pair("A", (0, 2))]
    assert term("consistent", rows, ["[[A]]", "[[B]]", "[[B]]"]) == [1.0, 1.0, None]


def test_long_completions_are_punished_as_in_dapo():
    lengths, longest, cache = [0, 79, 80, 85, 90, 100, 101, 500], 100, 20
    expected = [  # equation 13
        0.0 if n <= longest - cache else ((longest - cache) - n) / cache if n <= longest else -1.0
        for n in lengths
    ]
    rows, texts = [pair()] * len(lengths), ["[[A]]"] * len(lengths)
    assert term("brief", rows, texts, lengths, max_tokens=100, soft_tokens=20) == pytest.approx(expected)
    with pytest.raises(DataError, match="brief"):
        term("brief", rows[:1], texts[:1], max_tokens=100, soft_tokens=20)


@pytest.mark.parametrize(
    ("line", "confidence"),
    [
        ("Confidence: 0.8", 0.8),
        ("**Confidence:** 80%", 0.8),
        ("<confidence>0.8</confidence>", 0.8),
        ("Confidence: 0.1\nConfidence: 80 %", 0.8),
        ("Confidence: 1", 1.0),
        ("My confidence = .25", 0.25),
        ("I have no confidence: 0.8 of them are wrong", None),
        ("Confidence: 80", None),
        ("0.8", None),
        ("<think>\nConfidence: 0.8\n</think>", None),
    ],
)
def test_a_confidence_has_its_brier_score(line, confidence):
    text = f"{line}\n[[A]]"
    for gold, right in (("A", 1), ("B", 0)):
        value = -1.0 if confidence is None else -((confidence - right) ** 2)
        assert term("calibrated", [pair(gold)], [text]) == [pytest.approx(value)]
    assert term("calibrated", [pair()], [f"{line}\nno verdict"]) == [-1.0]


def test_correct_and_calibrated_make_the_reward_of_rlcr():
    """Its expected value is highest where the confidence is the chance to be right (a proper scoring rule)."""
    chance, grid = 0.7, [step / 20 for step in range(21)]
    expected = []
    for confidence in grid:
        right, wrong = (
            judged([pair(gold)], [f"Confidence: {confidence}\n[[A]]"], correct=1.0, calibrated=1.0)[0].reward
            for gold in "AB"
        )
        expected.append(chance * right + (1 - chance) * wrong)
    assert grid[expected.index(max(expected))] == pytest.approx(chance)


def test_an_answer_before_the_verdict_is_rated():
    rows = [pair(answer=["bucket", "one red bucket"])] * 5 + [pair()]
    texts = [
        "<answer>The Bucket.</answer> B is wrong. [[A]]",
        "<answer>turtle</answer> <answer>bucket</answer> [[A]]",
        "[[A]] <answer>bucket</answer>",
        "[[A]]",
        "<think><answer>turtle</answer></think><answer>a red bucket</answer>",
        "<answer>bucket</answer> [[A]]",
    ]
    assert term("solved", rows, texts) == [1.0, 0.0, 0.0, 0.0, 0.0, None]
    partial = term("solved", rows, texts, metric="token_f1")
    assert partial[:5] == pytest.approx([1.0, 0.0, 0.0, 0.0, 0.8])
    assert term("solved", rows[:1], ["<answer>a bucket of it</answer>"], metric="token_f1") == [
        pytest.approx(2 / 4)
    ]


def test_the_reward_is_the_weighted_sum_of_the_terms_that_apply():
    rows = [pair("A"), pair("B", (1, 0)), pair("A", id="alone")]
    scores = judged(rows, ["[[A]]", "So [[A]] it is", "[[A]]"], correct=1.0, format=0.1, consistent=0.5)
    assert [score.terms for score in scores] == [
        {"correct": 1.0, "format": 1.0, "consistent": 0.0},
        {"correct": 0.0, "format": 0.0, "consistent": 0.0},
        {"correct": 1.0, "format": 1.0},
    ]
    assert [score.reward for score in scores] == pytest.approx([1.1, 0.0, 1.1])


@pytest.mark.parametrize("form", ["text", "messages"])
def test_trl_calls_it_and_logs_every_term(form):
    reward = longrm.verdict_reward(correct=1.0, consistent=0.5, brief=0.1, max_tokens=3, soft_tokens=2)
    texts = ["[[A]]", "[[B]]", "none", "[[A]]"]
    rows = [pair("A"), pair("B", (1, 0)), pair("A", id="two"), pair("A", id="three")]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    completions = texts if form == "text" else [[{"role": "assistant", "content": text}] for text in texts]
    logged = {}
    found = reward(
        prompts=["?"] * 4,
        completions=completions,
        completion_ids=[[1], [1, 2], [1] * 9, [1]],
        trainer_state=None,
        log_metric=logged.__setitem__,
        **columns,
    )
    assert found == pytest.approx([1.5, 1.45, -0.1, 1.0])
    assert logged == pytest.approx(
        {
            "verdict/correct": 3 / 4,
            "verdict/omitted_correct": 0,
            "verdict/consistent": 1.0,
            "verdict/omitted_consistent": 2,
            "verdict/brief": -1.5 / 4,
            "verdict/omitted_brief": 0,
            "verdict/unparsed": 1 / 4,
        }
    )


def test_a_completion_to_which_no_term_applies_has_no_reward():
    row = {name: [value] for name, value in point(1, 0).items()}
    assert longrm.verdict_reward(correct=1.0)(["?"], ["[[7]]"], **row) == [None]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "weight"),
        ({"right": 1.0}, "right"),
        ({"correct": float("nan")}, "correct"),
        ({"brief": 1.0}, "max_tokens"),
        ({"brief": 1.0, "max_tokens": 5, "soft_tokens": 6}, "soft_tokens"),
        ({"solved": 1.0, "metric": "bleu"}, "bleu"),
    ],
)
def test_wrong_options_are_refused(options, named):
    with pytest.raises(ConfigError, match=named):
        longrm.verdict_reward(**options)


def test_wrong_rows_are_refused():
    for change in ({"gold": "D"}, {"gold": "A > C"}, {"format": "triple"}):
        with pytest.raises(DataError, match=f"one.*{next(iter(change))}"):
            judged([pair() | change], ["[[A]]"], correct=1.0)
    with pytest.raises(DataError, match="gold"):
        longrm.verdict_reward(correct=1.0)(["?"], ["[[A]]"], id=["one"])
