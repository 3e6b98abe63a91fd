from collections import Counter

from longrm.benchmarks import closeness
from longrm.data.chunking import words
from longrm.synthesis.answers.scripts import unspaced


def token_f1(answer: str, gold: str) -> float:
    """F1 of the words that both texts share, as the evaluation script of SQuAD counts them (arXiv 1606.05250).

    Case, ASCII punctuation and English articles do not count. Where either text holds characters that are written
    without spaces, each of these is a word, as in the scripts of CMRC 2018 (arXiv 1810.07366). A text without
    any word earns 0.
    """
    if unspaced(answer) or unspaced(gold):
        ours, theirs = words(answer), words(gold)
        shared = sum((Counter(ours) & Counter(theirs)).values())
        return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0
    return closeness.token_f1(answer, gold)
