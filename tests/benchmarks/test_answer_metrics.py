import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.benchmarks.answer_metrics import (
    ANSWER_METRICS,
    choices,
    cited,
    is_solved,
    latin_rouge_l,
    squad_contains,
    squad_f1,
    word_overlap,
)

WORDS = st.lists(st.sampled_from(["the", "a", "cat", "cats", "sat,", "Mat!", "7", "an"]), max_size=9).map(
    " ".join
)
MORE = "Quill wrote the amber code on Monday. Noreth read it later, and kept [2] of the copies."
TEXTS = [MORE, MORE[:40], MORE[30:], "copied codes", "Quill", "", "wrote Quill the code amber"]


def lcs(one, other):
    row = [0] * (len(other) + 1)
    for item in one:
        last = 0
        for at, against in enumerate(other, start=1):
            last, row[at] = row[at], last + 1 if item == against else max(row[at], row[at - 1])
    return row[-1]


def squad_words(text):
    """As SQuAD's script normalizes, spelled another way: letter by letter."""
    kept = "".join(letter for letter in text.casefold() if letter.isalnum() or letter == " ")
    return [word for word in kept.split(" ") if word not in ("", "a", "an", "the")]


@given(WORDS, WORDS)
def test_words_are_counted_as_squad_counts_them(answer, gold):
    ours, theirs = squad_words(answer), squad_words(gold)
    assert ANSWER_METRICS["exact_match"](answer, gold) == (ours == theirs)
    left, shared = list(theirs), 0
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    precision, recall = shared / max(1, len(ours)), shared / max(1, len(theirs))
    f1 = 2 * precision * recall / (precision + recall) if shared else 0
    assert ANSWER_METRICS["token_f1"](answer, gold) == squad_f1(answer, gold) == pytest.approx(f1)


@pytest.mark.parametrize("gold", TEXTS[:4])
def test_rouge_l_is_that_of_rouge_score(gold):
    from rouge_score.rouge_scorer import RougeScorer

    # L-Eval's own call: Evaluation/auto_eval.py, line 61, github.com/OpenLMLab/LEval at cd34b05.
    reference = RougeScorer(["rougeL"], use_stemmer=False)
    for answer in TEXTS:
        expected = reference.score(gold, answer)["rougeL"].fmeasure
        assert ANSWER_METRICS["rouge_l"](answer, gold) == latin_rouge_l(answer, gold) == expected


def test_chinese_is_counted_by_characters():
    answer, gold = "猫坐在垫子上。", "小猫坐垫子"
    common = lcs("猫坐在垫子上", gold)
    assert ANSWER_METRICS["rouge_l"](answer, gold) == pytest.approx(2 * common / (6 + 5))
    shared = sum((Counter("猫坐在垫子上") & Counter(gold)).values())
    assert ANSWER_METRICS["token_f1"](answer, gold) == pytest.approx(2 * shared / (6 + 5))
    assert ANSWER_METRICS["exact_match"]("猫坐。", "猫坐") == 1
    # The reference for Latin letters would see nothing in either text.
    from rouge_score.rouge_scorer import RougeScorer

    assert RougeScorer(["rougeL"]).score(gold, answer)["rougeL"].fmeasure == 0


@given(WORDS, WORDS)
def test_an_answer_contains_a_run_of_words(answer, gold):
    ours, theirs = squad_words(answer), squad_words(gold)
    runs = [ours[at : at + len(theirs)] for at in range(len(ours)) if theirs]  # no words are in no answer
    assert ANSWER_METRICS["contains"](answer, gold) == (theirs in runs)
    assert squad_contains(answer, gold) == (theirs in runs)


def test_chinese_answers_contain_characters():
    assert ANSWER_METRICS["contains"]("答案是北京。", "北京") == 1
    assert ANSWER_METRICS["contains"]("答案是北方的京城。", "北京") == 0
    assert not squad_contains("答案是北京。", "北京")


def test_any_gold_answer_solves_and_thinking_does_not():
    assert is_solved("It bought 2.", ("two", "2"), "contains")
    assert is_solved("<think>amber?</think>It is two.", ("two", "2"), "contains")
    assert is_solved("<think>two?</think>amber", ("two", "2"), "contains") is False
    assert is_solved("<think>two", ("two", "2"), "contains") is False
    assert is_solved("two", (), "contains") is None
    assert is_solved("amber code", ("the amber code on Monday",), "token_f1")  # 2 x 2 / (2 + 4)
    assert not is_solved("code", ("the amber code on Monday",), "token_f1")  # 2 x 1 / (1 + 4)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("so [1] and [2][4].", {1, 2, 4}),
        ("so [1, 3] and [2-4]", {1, 2, 3, 4}),
        ("【3】，【5、6】", {3, 5, 6}),
        ("[9-7]", {9, 7}),
        ("no [a] (3) 4 [12345]", set()),
    ],
)
def test_citations_are_read(text, numbers):
    assert cited(text) == numbers


@given(st.sets(st.integers(1, 8), min_size=1), st.sets(st.integers(1, 8), min_size=1))
def test_citations_are_rated_as_scikit_learn_does(ours, theirs):
    from sklearn.metrics import precision_recall_fscore_support

    truth, said = ([int(n in numbers) for n in range(1, 9)] for numbers in (theirs, ours))
    precision, recall, f1, _ = precision_recall_fscore_support(truth, said, average="binary", zero_division=0)
    answer, gold = ("".join(f"[{n}]" for n in numbers) for numbers in (ours, theirs))
    assert ANSWER_METRICS["citation_precision"](answer, gold) == pytest.approx(precision)
    assert ANSWER_METRICS["citation_recall"](answer, gold) == pytest.approx(recall)
    assert ANSWER_METRICS["citation_f1"](answer, gold) == pytest.approx(f1)


@given(st.text("ab c", max_size=12), st.text("ab c", max_size=12))
def test_edit_similarity_is_the_common_subsequence_by_the_lengths(answer, gold):
    one, other = answer.strip(), gold.strip()
    whole = len(one) + len(other)
    expected = 2 * lcs(one, other) / whole if whole else 1
    assert ANSWER_METRICS["edit_similarity"](answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(("answer", "gold"), [("abcdefg", "abcdxyz"), ("the mat", "the cat sat"), ("x", "y")])
def test_chrf_is_the_mean_over_orders_of_f2(answer, gold):
    one, other = answer.replace(" ", ""), gold.replace(" ", "")
    precisions, recalls = [], []
    for size in range(1, 7):
        ours, theirs = (
            Counter(text[at : at + size] for at in range(len(text) - size + 1)) for text in (one, other)
        )
        if ours and theirs:
            shared = (ours & theirs).total()
            precisions.append(shared / ours.total())
            recalls.append(shared / theirs.total())
    precision, recall = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    expected = 5 * precision * recall / (4 * precision + recall) if precision + recall else 0
    assert ANSWER_METRICS["chrf"](answer, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("9 eggs at $2 each. The answer is 18", "18", 1),
        ("9 eggs at $2 each. The answer is 19", "18", 0),
        ("So he made $70,000.\nThe answer is 70,000", "70000", 1),
        (r"so \boxed{\frac{2}{4}}", "0.5", 1),
        (r"so \boxed{\frac{2}{5}}", "0.5", 0),
        ("It is $3x + 2$", "$2 + 3x$", 1),
        ("It is $3x + 2$", "$2 + 2x$", 0),
        ("It is $(x+1)^2$", "$x^2 + 2x + 1$", 1),
        (r"the roots are $\{1, 2\}$", r"$\{2, 1\}$", 1),
        ("I do not know", "18", 0),
        ("18", "no number here", 0),
    ],
)
def test_results_are_compared_as_mathematics(answer, gold, right):
    assert ANSWER_METRICS["math_equality"](answer, gold) == right


def test_an_answer_is_never_run_as_code(tmp_path):
    created = tmp_path / "created"
    for form in ("{}", "${}$", r"\boxed{{{}}}", "The answer is {}"):
        ANSWER_METRICS["math_equality"](form.format(f"__import__('os').mkdir('{created}')"), "18")
    assert not os.path.lexists(created)


def test_choices_must_be_exactly_right():
    rate = ANSWER_METRICS["right_choices"]
    rates = [rate(answer, "AC") for answer in ("A, C", "AC", "A", "ABC", "I think so", "")]
    assert rates == [1, 1, 0, 0, 0, 0]
    assert rate("The sea", "The sea") == 0


@pytest.mark.parametrize("name", ANSWER_METRICS)
def test_the_gold_answer_earns_1_and_another_less(name):
    golds = {"right_choices": "B", "math_equality": "18", "rouge_l": MORE}
    gold = golds.get(name, MORE)
    assert ANSWER_METRICS[name](gold, gold) == pytest.approx(1)
    assert ANSWER_METRICS[name]("[3] A", gold) < 0.6
    assert ANSWER_METRICS[name]("", gold) == 0


def test_word_overlap_counts_every_word_and_chinese_by_character():
    assert word_overlap("A red fox", "a fox, red") == 1
    assert word_overlap("a b c d", "a b x y") == 0.5
    assert word_overlap("红狐狸", "红狗") == pytest.approx(2 / 5)
    assert word_overlap("", "") == 0


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("ABD", "ABD"),
        ("A, B and D", "ABD"),
        ("D.", "D"),
        ("(B) Because it was late.", "B"),
        ("C) No, he did not.", "C"),
        ("A. One thing\nB. Another", "AB"),
        ("A frog.", ""),
        ("I think it is A.", ""),
        ("A. One thing\nbut perhaps B", ""),
        ("", ""),
    ],
)
def test_choices_are_read_where_they_are_plain(answer, named):
    assert choices(answer) == frozenset(named)
