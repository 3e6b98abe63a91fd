import numpy as np
import pytest

from longrm.evaluation.breakdown import breakdown
from longrm.evaluation.estimates import metrics_for
from longrm.evaluation.table import ScoreTable

OPTIONS = {"seed": 3, "resamples": 200}


def divided(records):
    return breakdown(records, ScoreTable.of(records), **OPTIONS)


@pytest.fixture
def mixed(judgment):
    """Pairs and rankings of two tasks, of which Summ is the larger and the harder."""
    rng = np.random.default_rng(0)
    records = []
    for k in range(240):
        task, length = ("Summ" if k % 4 else "Cite"), 4096 << k % 3
        n = (2, 2, 3, 4)[k % 5 % 4]
        subtype = str(n) if k % 5 > 1 or k % 7 == 0 else "same"
        scores = rng.normal(size=n) - np.arange(n) * (2.0 if task == "Cite" else 0.3)
        ranks = tuple(range(1, n + 1))
        extra = {"task": task, "subtype": subtype, "length": length}
        records.append(judgment(str(k), f"g{k // 3}", ranks=ranks, scores=scores.tolist(), **extra))
    return records


def test_buckets_are_the_metrics_of_their_records(mixed):
    found = divided(mixed)

    def expected(keep):
        return metrics_for([record for record in mixed if keep(record)], **OPTIONS)

    assert found.overall == expected(lambda r: True)
    assert found.by_task["Cite"] == expected(lambda r: r.task == "Cite")
    assert found.by_subtype["3"] == expected(lambda r: r.subtype == "3")
    assert found.by_task_and_length["Summ"]["8192"] == expected(
        lambda r: r.task == "Summ" and r.length == 8192
    )
    assert list(found.by_subtype) == ["2", "3", "4", "same"]
    pairs = found.pairs
    assert pairs.overall == expected(lambda r: r.subtype == "same")
    assert pairs.by_task["Summ"] == expected(lambda r: r.subtype == "same" and r.task == "Summ")
    assert pairs.by_length["4096"] == expected(lambda r: r.subtype == "same" and r.length == 4096)
    assert pairs.overall["pair_accuracy"] != found.overall["pair_accuracy"]


def test_macro_weighs_tasks_alike_and_micro_comparisons(judgment):
    records = [
        judgment(f"{task}{k}", scores=(1.0, 0.0) if k < right else (0.0, 1.0), task=task, length=length)
        for task, n, right, length in (("A", 10, 10, 128), ("B", 30, 15, 256), ("", 10, 0, 128))
        for k in range(n)
    ]
    found = divided(records)
    assert found.overall["pair_accuracy"].value == 25 / 50
    by_task, by_length = found.macro.by_task, found.macro.by_length
    assert (by_task.value, by_task.n) == ((1 + 0.5) / 2, 40)  # what has no task is in no task
    assert (by_length.value, by_length.n) == ((10 / 20 + 15 / 30) / 2, 50)
    assert list(found.by_task) == ["A", "B"]
    assert found.pairs is None


def test_the_macro_interval_covers_the_mean_of_rates(judgment):
    rates, covered, runs = {"A": 0.9, "B": 0.6, "C": 0.7}, 0, 200
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        records = [
            # A group holds one comparison of every task: they are resampled together.
            judgment(f"{task}{k}", f"g{k}", scores=(1.0, 0.0) if rng.random() < p else (0.0, 1.0), task=task)
            for task, p in rates.items()
            for k in range(60)
        ]
        macro = breakdown(records, ScoreTable.of(records), seed=0, resamples=400).macro.by_task
        covered += macro.low <= sum(rates.values()) / 3 <= macro.high
    assert 0.91 <= covered / runs <= 0.99


def test_without_tasks_or_lengths_macro_is_undefined(judgment):
    found = divided([judgment(scores=(1.0, 0.0))])
    assert found.macro.by_task.value is None
    assert found.macro.by_length.value is None
    assert found.by_task == found.by_subtype == found.by_task_and_length == {}
