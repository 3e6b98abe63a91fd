"""How close an answer is to a gold answer, as L-Eval measures it (arXiv 2307.11088)."""

import re
import string
from collections import Counter
from functools import cache, lru_cache
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# "B", "(B)", "ABD", "A, B and D": letters alone; "(B) Because ...": a letter that opens a line.
_LETTERS = re.compile(r"\(?[A-H]\)?(?:(?:\s|[,;&]|\band\b)*\(?[A-H]\)?)*\.?")
_OPENING = re.compile(r"\(?([A-H])[).:](?:\s|$)")


def token_f1(answer: str, gold: str) -> float:
    """F1 of the words that both share, as SQuAD counts them (arXiv 1606.05250).

    Case, punctuation and the English articles do not count; words do as often as they occur.
    """
    ours, theirs = _words(answer), _words(gold)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


@lru_cache(maxsize=10_000)
def rouge_l(answer: str, gold: str) -> float:
    """ROUGE-L F1 over stemmed words, by Google's `rouge_score`, which is slow: the same pair is scored once."""
    return float(_scorer().score(gold, answer)["rougeL"].fmeasure)


def choices(answer: str) -> frozenset[str]:
    """The choices that an answer to a multiple-choice question names; empty where that is not plain.

    It is plain where there are letters only, or where every line opens with one.
    """
    text = answer.strip()
    if _LETTERS.fullmatch(text):
        return frozenset(re.findall(r"[A-H]", text))
    opened = [_OPENING.match(line.strip()) for line in text.splitlines() if line.strip()]
    return frozenset(match[1] for match in opened if match) if all(opened) else frozenset()


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


@cache
def _scorer() -> Any:
    # Loads nltk, which only summaries need.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)
