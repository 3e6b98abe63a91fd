from functools import cache
from typing import Any

from longrm.benchmarks import closeness
from longrm.data.chunking import words
from longrm.synthesis.answers.scripts import unspaced


def rouge_l(answer: str, gold: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004), the paper's metric for summaries (section 2).

    The reference is Google's `rouge_score` with stemming. That knows Latin letters and digits only: where either
    text holds characters that are written without spaces, its words come from `longrm.data.chunking.words`.
    """
    if unspaced(answer) or unspaced(gold):
        return float(_scorer().score(gold, answer)["rougeL"].fmeasure)
    return closeness.rouge_l(answer, gold)


class _Words:
    def tokenize(self, text: str) -> list[str]:
        return words(text)


@cache
def _scorer() -> Any:
    # Loads nltk, which only summaries need.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())
