import numpy as np
import pytest

from longrm.evaluation.rules import rm_bench
from longrm.types import Outcome

RANKS = (1, 1, 1, 2, 2, 2)


def test_difficulties_by_hand(judgment):
    records = [
        # Right 1, 5, 9 against wrong 4, 6, 8: the richest right response beats all, the middle one the poorest.
        judgment("a", ranks=RANKS, scores=(1.0, 5.0, 9.0, 4.0, 6.0, 8.0), task="chat"),
        judgment("b", ranks=RANKS, scores=(3.0, 3.0, 3.0, 3.0, 2.0, 1.0), task="math"),  # ties are wrong
        judgment("c", ranks=RANKS, outcome=Outcome.UNPARSED, task="math"),
        judgment("d", ranks=RANKS, outcome=Outcome.ERROR, task="math"),
    ]
    found = rm_bench(records, "logit")
    # chat: easy 3 of 3 (9>4, 9>6, 5>4), normal 1 of 3 (9>8), hard 0 of 3; math: halved by the silent item.
    assert found["by_difficulty_percent"] == pytest.approx(
        {
            "easy": 100 * (1 + (1 / 3) / 2) / 2,
            "normal": 100 * (1 / 3 + (2 / 3) / 2) / 2,
            "hard": 100 * (0 + 0.5) / 2,
        }
    )
    assert found["by_domain_percent"] == pytest.approx(
        {"chat": 100 * (1 + 1 / 3) / 3, "math": 100 * (1 / 6 + 1 / 3 + 1 / 2) / 3}
    )
    assert found["overall_percent"] == pytest.approx(np.mean([*found["by_domain_percent"].values()]))
    assert found["overall_percent"] == pytest.approx(np.mean([*found["by_difficulty_percent"].values()]))
    assert found["left_out"] == 1
    assert rm_bench([], "logit") == {
        "overall_percent": None,
        "by_difficulty_percent": {},
        "by_domain_percent": {},
        "left_out": 0,
    }


def test_the_matrix_by_loops(judgment):
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 5, (40, 6)).astype(float)
    records = [judgment(str(n), ranks=RANKS, scores=tuple(row), task="chat") for n, row in enumerate(scores)]
    wins = {(i, j): sum(row[i] > row[3 + j] for row in scores) / 40 for i in range(3) for j in range(3)}
    expected = {
        "easy": np.mean([wins[i, j] for i, j in wins if i > j]),
        "normal": np.mean([wins[i, j] for i, j in wins if i == j]),
        "hard": np.mean([wins[i, j] for i, j in wins if i < j]),
    }
    found = rm_bench(records, "points")["by_difficulty_percent"]
    assert found == pytest.approx({name: 100 * value for name, value in expected.items()})
