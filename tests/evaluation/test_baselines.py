import dataclasses

import numpy as np
import pytest

from longrm.evaluation.baselines import against_baselines
from longrm.evaluation.metrics import metrics_for, paired_difference
from longrm.types import Outcome

OPTIONS = {"seed": 5, "resamples": 500}


@pytest.fixture
def records(judgment):
    rng = np.random.default_rng(0)

    def scores(accuracy):
        return (1.0, 0.0) if rng.random() < accuracy else (0.0, 1.0)

    return [
        judgment(
            str(k),
            f"g{k // 2}",
            scores=scores(0.8),
            baselines={
                "random": scores(0.5),
                "strong": scores(0.8),
                **({"half": (0.0, 0.0)} if k < 50 else {}),
            },
        )
        for k in range(300)
    ]


def test_it_is_the_paired_difference_of_two_runs(records, scored):
    found = against_baselines(*scored(records), **OPTIONS)
    others = [dataclasses.replace(record, scores=record.baselines["random"]) for record in records]
    assert found["random"]["value"] == dataclasses.asdict(metrics_for(others, **OPTIONS)["pair_accuracy"])
    difference = dataclasses.asdict(paired_difference(records, others, **OPTIONS))
    assert found["random"]["difference"] == pytest.approx(difference)


def test_only_what_is_clearly_worse_is_beaten(records, scored):
    found = against_baselines(*scored(records), **OPTIONS)
    assert {name: row["beaten"] for name, row in found.items()} == {
        "half": True,
        "random": True,
        "strong": False,
    }
    assert (found["half"]["value"]["value"], found["half"]["value"]["n"]) == (0.5, 50)
    assert against_baselines(*scored([]), **OPTIONS) == {}


def test_both_sides_earn_nothing_without_an_answer(judgment, scored):
    silent = judgment("a", outcome=Outcome.UNPARSED, baselines={"b": ()})
    found = against_baselines(*scored([silent]), **OPTIONS)["b"]
    assert (found["value"]["value"], found["difference"]["value"], found["beaten"]) == (0.0, 0.0, False)
