"""Answer metrics: how good an answer is compared with a gold answer, from 0 to 1, each with its reference.

Packages that only some metrics need (rouge-score's nltk, math-verify, rapidfuzz, sacrebleu) are imported in the metric.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

from longrm.data.chunking import unspaced, words_of
from longrm.errors import ConfigError, nearest
from longrm.judging.answers import answer_of

AnswerMetric = Callable[[str, str], float]
"""Rates an answer (first) by a gold answer (second), from 0 to 1; the gold answer itself has 1."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CHINESE = "。，、；：？！「」『』（）《》“”‘’【】"
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_MARKS = str.maketrans("", "", string.punctuation + _CHINESE)
# "B", "(B)", "ABD", "A, B and D": letters alone; "(B) Because ...": a letter that opens a line.
_LETTERS = re.compile(r"\(?[A-H]\)?(?:(?:\s|[,;&]|\band\b)*\(?[A-H]\)?)*\.?")
_OPENING = re.compile(r"\(?([A-H])[).:](?:\s|$)")
# "[3]", "[1, 2]", "[2-4]", and the same in Chinese brackets.
_CITED = re.compile(r"[\[【]\s*(\d{1,4}(?:\s*[-–—,，;；、]\s*\d{1,4})*)\s*[\]】]")
_PART = re.compile(r"(\d+)(?:\s*[-–—]\s*(\d+))?")


def rouge_l(answer: str, gold: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004), the paper's metric for summaries (section 2).

    The reference is Google's `rouge_score` without stemming. It knows Latin letters and digits only: if either text has
    characters that are written without spaces, the words come from `longrm.data.chunking.words_of`.
    """
    if unspaced(answer) or unspaced(gold):
        return float(_rouge(latin=False).score(gold, answer)["rougeL"].fmeasure)
    return latin_rouge_l(answer, gold)


@lru_cache(maxsize=10_000)  # it is slow, and L-Eval compares each answer with several others
def latin_rouge_l(answer: str, gold: str) -> float:
    """ROUGE-L by `rouge_score` alone, as L-Eval computes it: only words of Latin letters and digits count."""
    return float(_rouge(latin=True).score(gold, answer)["rougeL"].fmeasure)


@cache
def _rouge(*, latin: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    # use_stemmer=False: Evaluation/auto_eval.py line 61, github.com/OpenLMLab/LEval at cd34b05.
    tokenizer = None if latin else SimpleNamespace(tokenize=words_of)
    return RougeScorer(["rougeL"], use_stemmer=False, tokenizer=tokenizer)


def token_f1(answer: str, gold: str) -> float:
    """F1 of the words that both texts share, as in the evaluation script of SQuAD (arXiv 1606.05250).

    Case, ASCII punctuation and English articles are ignored. If either text has characters that are written without
    spaces, each of these is a word, as in the scripts of CMRC 2018 (arXiv 1810.07366). A text without words has 0.
    """
    return word_overlap(answer, gold) if unspaced(answer) or unspaced(gold) else squad_f1(answer, gold)


def squad_f1(answer: str, gold: str) -> float:
    """Token F1 by the rules of SQuAD alone, as L-Eval computes it: words are separated by spaces in every language."""
    return _f1(_squad_words(answer), _squad_words(gold))


def contains(answer: str, gold: str) -> float:
    """1 if the answer contains the gold answer word for word, else 0, as RULER rates answers (arXiv 2404.06654).

    The words are those of `token_f1`, so case, punctuation and articles are ignored. A gold answer without words has 0.
    """
    words = words_of if unspaced(answer) or unspaced(gold) else _squad_words
    return float(_is_part(words(gold), words(answer)))


def squad_contains(answer: str, gold: str) -> bool:
    """Whether an answer contains the gold answer word for word, by the words of `squad_f1`; False without any."""
    return _is_part(_squad_words(gold), _squad_words(answer))


def _is_part(part: Sequence[str], words: Sequence[str]) -> bool:
    return bool(part) and f" {' '.join(part)} " in f" {' '.join(words)} "


def word_overlap(one: str, other: str) -> float:
    """F1 of the words of `longrm.data.chunking` that two texts share: articles count, Chinese by character."""
    return _f1(words_of(one), words_of(other))


def _squad_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """F1 of two bags of words; a word is shared as often as both bags have it."""
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def exact_match(answer: str, gold: str) -> float:
    """1 if both texts are the same words, else 0, as in the evaluation script of SQuAD (arXiv 1606.05250).

    Case, punctuation (also Chinese), English articles and white space are ignored.
    """
    answer, gold = (_ARTICLES.sub(" ", text.lower().translate(_NO_MARKS)) for text in (answer, gold))
    return float(answer.split() == gold.split())


def right_choices(answer: str, gold: str) -> float:
    """1 if exactly the right choices of a multiple-choice question are named plainly, else 0.

    L-Eval (arXiv 2307.11088) itself gives a quarter point for an incomplete choice.
    """
    right = choices(gold)
    return float(bool(right) and choices(answer) == right)


def choices(answer: str) -> frozenset[str]:
    """The choices of a plain answer to a multiple-choice question (only letters, or a letter per line), or none."""
    text = answer.strip()
    if _LETTERS.fullmatch(text):
        return frozenset(re.findall(r"[A-H]", text))
    opened = [_OPENING.match(line.strip()) for line in text.splitlines() if line.strip()]
    return frozenset(match[1] for match in opened if match) if all(opened) else frozenset()


def cited(text: str) -> frozenset[int]:
    """The numbers of the passages that a text cites in brackets: `[3]`, `[1][2]`, `[1, 2]`, `[2-4]`, `【3】`."""
    found: set[int] = set()
    for brackets in _CITED.finditer(text):
        for first, last in _PART.findall(brackets[1]):
            start, end = int(first), int(last or first)
            # A range that runs backwards is two numbers.
            found |= {*range(start, end + 1)} if start <= end else {start, end}
    return frozenset(found)


def citation_precision(answer: str, gold: str) -> float:
    """The share of the cited passages that the gold answer cites, too; 0 if nothing is cited.

    The reference is scikit-learn's `precision_score` on the sets of passages. ALCE (arXiv 2305.14627) and L-CiteEval
    (arXiv 2410.02115) ask an entailment model instead; here the right passages are known.
    """
    ours, theirs = cited(answer), cited(gold)
    return len(ours & theirs) / len(ours) if ours else 0.0


def citation_recall(answer: str, gold: str) -> float:
    """The share of the gold answer's passages that are cited; 0 if it cites none. Reference: `recall_score`."""
    ours, theirs = cited(answer), cited(gold)
    return len(ours & theirs) / len(theirs) if theirs else 0.0


def citation_f1(answer: str, gold: str) -> float:
    """The harmonic mean of citation precision and recall. The reference is scikit-learn's `f1_score`."""
    ours, theirs = cited(answer), cited(gold)
    return 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 0.0


def edit_similarity(answer: str, gold: str) -> float:
    """1 minus the insertions and deletions between both texts over their joint length in characters.

    LongBench and RepoBench rate code like this (arXiv 2308.14508, 2306.03091), with `rapidfuzz.fuzz.ratio`.
    """
    from rapidfuzz import fuzz

    return fuzz.ratio(answer.strip(), gold.strip()) / 100


def math_equality(answer: str, gold: str) -> float:
    r"""1 if the last result of a text equals the gold one as a number, set or expression, else 0.

    `math_verify` (Hugging Face) reads LaTeX and plain expressions and compares them with sympy: `1/2`, `0.5` and
    `\frac{2}{4}` are equal. Call it in the main thread: a signal ends a comparison after 5 s.
    """
    from math_verify import parse, verify

    right = parse(gold)
    return float(bool(right) and verify(right, parse(answer)))


def chrf(answer: str, gold: str) -> float:
    """chrF2 (Popovic 2015): F-score of shared character n-grams up to six, recall weighted twice.

    The reference is sacreBLEU's `CHRF` with its defaults (arXiv 1804.08771), over 100. It needs no words, so it suits
    languages that are written without spaces, and checks word-based metrics.
    """
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().sentence_score(answer, [gold]).score) / 100


ANSWER_METRICS: dict[str, AnswerMetric] = {
    "rouge_l": rouge_l,
    "token_f1": token_f1,
    "exact_match": exact_match,
    "contains": contains,
    "right_choices": right_choices,
    "citation_precision": citation_precision,
    "citation_recall": citation_recall,
    "citation_f1": citation_f1,
    "edit_similarity": edit_similarity,
    "math_equality": math_equality,
    "chrf": chrf,
}
"""The registry of answer metrics: a new one is a function here and an entry."""


def answer_metric(name: str) -> AnswerMetric:
    """The metric with this name; `ConfigError` if there is none."""
    if name in ANSWER_METRICS:
        return ANSWER_METRICS[name]
    raise ConfigError(f"no answer metric '{name}'; {nearest(name, ANSWER_METRICS)}")


def share_of_gold(metric: str, gold: str) -> Callable[[str], float] | None:
    """Scores answers by a metric, in shares of what the gold answer earns; None if that is nothing.

    The gold answer earns less than 1 where a metric is stricter than its range.
    """
    score = answer_metric(metric)
    best = score(gold, gold) if gold.strip() else 0.0
    return (lambda answer: score(answer, gold) / best) if best else None


SOLVED = 0.5
"""From which value of a metric an answer counts as right; most are 0 or 1 for answers that can be checked."""


def is_solved(answer: str, golds: Sequence[str], metric: str) -> bool | None:
    """Whether an answer, without its thinking, is right by a metric and some gold answer; None without gold answers."""
    if not golds:
        return None
    return any(ANSWER_METRICS[metric](answer_of(answer), gold) >= SOLVED for gold in golds)
