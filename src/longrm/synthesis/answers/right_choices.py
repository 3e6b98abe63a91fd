from longrm.benchmarks.closeness import choices


def right_choices(answer: str, gold: str) -> float:
    """1 where exactly the right choices of a multiple-choice question are named, else 0.

    So L-Eval's exams are rated here (arXiv 2307.11088); L-Eval itself gives a quarter point for an incomplete
    choice. An answer that does not say plainly what it chooses earns 0.
    """
    right = choices(gold)
    return float(bool(right) and choices(answer) == right)
