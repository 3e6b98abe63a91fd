"""Agreement beyond chance, against scikit-learn, the package `krippendorff` and counts by hand."""

import json
from collections import Counter
from pathlib import Path

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from longrm.evaluation.agreement import gold_agreement, judge_agreement, repeat_agreement, shown_first
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.table import JudgmentTable
from longrm.types import Outcome

OPTIONS = {"seed": 0, "resamples": 300}
AB, BA = (0, 1), (1, 0)
RANKS, SCORES = [(1, 2), (2, 1), (1, 1)], [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), ()]
PANDALM = Path(__file__).parents[3] / "shared/data/judgelrm/results_judgelrm3b.json"


@pytest.fixture
def table(judgment):
    """The table of judged labels against gold labels: 0 the first, 1 the second, 2 a tie, 3 no verdict."""

    def of(gold, judged, **fields):
        def record(number, right, found):
            outcome = Outcome.ANSWERED if SCORES[found] else Outcome.UNPARSED
            group = f"g{number // 4}"
            return judgment(
                f"{number}", group, ranks=RANKS[right], scores=SCORES[found], outcome=outcome, **fields
            )

        return JudgmentTable.of(map(record, range(len(gold)), gold, judged))

    return of


def test_kappa_is_that_of_scikit_learn_with_ties_and_missing_verdicts(table):
    rng = np.random.default_rng(1)
    gold = rng.choice(3, 400, p=[0.6, 0.3, 0.1])
    judged = np.where(rng.random(400) < 0.6, gold, rng.choice(4, 400, p=[0.5, 0.3, 0.1, 0.1]))
    found = gold_agreement(table(gold, judged, length=64), **OPTIONS)
    kappa = cohen_kappa_score(gold, judged)
    assert found.raw.value == pytest.approx(np.mean(gold == judged))
    assert found.kappa.value == pytest.approx(kappa) != pytest.approx(found.raw.value, abs=0.1)
    assert (found.kappa.n, found.kappa.groups) == (400, 100)
    assert found.by_length.keys() == {"64"}
    assert found.by_length["64"].kappa.value == found.kappa.value
    # The interval is that of resampled groups, each put together anew.
    cells = [np.arange(400).reshape(100, 4)[rng.integers(0, 100, 100)].ravel() for _ in range(400)]
    low, high = np.quantile([cohen_kappa_score(gold[cell], judged[cell]) for cell in cells], [0.025, 0.975])
    assert found.kappa.low == pytest.approx(low, abs=0.03)
    assert found.kappa.high == pytest.approx(high, abs=0.03)


def test_a_judge_of_one_place_has_the_share_of_that_place_and_no_kappa_beyond_chance(table):
    gold = np.repeat([0, 1], [60, 40])
    found = gold_agreement(table(gold, np.zeros(100, int)), **OPTIONS)
    assert (found.raw.value, found.kappa.value) == (0.6, 0.0)


def test_gold_that_is_always_first_does_not_make_kappa_0(table):
    rng = np.random.default_rng(2)
    judged = (rng.random(600) < 0.2).astype(int)
    chosen_first = table(np.zeros(600, int), judged)
    found = gold_agreement(chosen_first, **OPTIONS)
    assert cohen_kappa_score(np.zeros(600), judged) == 0.0  # negative control: as the rows are
    place = shown_first(chosen_first)
    assert 0.4 < place.mean() < 0.6
    assert found.kappa.value == pytest.approx(cohen_kappa_score(place, (place + judged) % 2))
    assert found.kappa.value == pytest.approx(2 * found.raw.value - 1, abs=0.02)


def test_what_kappa_leaves_out(table, judgment):
    assert gold_agreement(table([0, 1], [3, 3]), **OPTIONS) is None
    records = [
        judgment("three", ranks=(1, 2, 3), scores=(3.0, 2.0, 1.0)),
        judgment("no gold", ranks=None, scores=(1.0, 0.0)),
        judgment("error", ranks=(1, 2), outcome=Outcome.ERROR),
    ]
    assert gold_agreement(JudgmentTable.of(records), **OPTIONS) is None
    pairs = [judgment("a", ranks=(1, 2), scores=(1.0, 0.0)), judgment("b", ranks=(2, 1), scores=(0.0, 1.0))]
    found = gold_agreement(JudgmentTable.of(records + pairs), **OPTIONS)
    assert (found.raw.n, found.kappa.value) == (2, 1.0)


def test_two_judges_are_compared_where_both_answered(table):
    rng = np.random.default_rng(3)
    gold, one, other = rng.integers(0, 2, 300), rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    found = judge_agreement(table(gold, one), table(gold, other), **OPTIONS)
    both = (one < 3) & (other < 3)
    assert found.kappa.n == both.sum()
    assert found.kappa.value == pytest.approx(cohen_kappa_score(one[both], other[both]))
    assert judge_agreement(table([0], [3]), table([0], [0]), **OPTIONS) is None


def test_alpha_of_repeats_is_that_of_krippendorff(asked):
    rng = np.random.default_rng(4)
    labels = rng.choice(4, (60, 2, 3), p=[0.5, 0.25, 0.15, 0.1])
    labels[rng.random((60, 2)) < 0.4] = 0  # some orders agree with themselves
    # As shown: label 0 is the first of the presented order
    records = [
        asked(
            str(number),
            *(
                (order, SCORES[label][:: 1 if order == AB else -1])
                for order, votes in zip((AB, BA), orders, strict=True)
                for label in votes
            ),
            ranks=(1, 2),
        )
        for number, orders in enumerate(labels)
    ]
    found = repeat_agreement(JudgmentTable.of(records), **OPTIONS)
    units = np.where(labels == 3, np.nan, labels.astype(float)).reshape(120, 3)
    expected = krippendorff.alpha(reliability_data=units.T, level_of_measurement="nominal")
    assert found.alpha.value == pytest.approx(expected)
    pairs = [(a, b) for a, b, c in units for a, b in ((a, b), (a, c), (b, c)) if not np.isnan(a + b)]
    assert found.raw.value == pytest.approx(np.mean([a == b for a, b in pairs]))
    assert found.raw.n == len(pairs)
    assert found.alpha.low < expected < found.alpha.high < found.raw.value


def test_repeats_that_never_differ_and_trials_in_other_orders(asked):
    same = JudgmentTable.of([asked("a", (AB, (1.0, 0.0)), (AB, (1.0, 0.0)))])
    found = repeat_agreement(same, **OPTIONS)
    assert (found.raw.value, found.alpha.value) == (1.0, None)
    orders = JudgmentTable.of([asked("a", (AB, (1.0, 0.0)), (BA, (1.0, 0.0)))])
    assert repeat_agreement(orders, **OPTIONS) is None


@pytest.mark.skipif(not PANDALM.is_file(), reason="JudgeLRM's results are not in ../shared/data")
def test_kappa_of_a_published_judge_with_the_majority_of_annotators(tmp_path):
    settings = {"recorded": str(PANDALM), "bench": f"judgelrm:{PANDALM}"}
    summary = run_evaluation(Evaluation.resolve(overrides=settings), tmp_path / "run")
    gold, judged = [], []
    for row in json.loads(PANDALM.read_text()):
        votes = Counter(str(row[f"annotator{number}"]) for number in (1, 2, 3))
        ((label, count),) = votes.most_common(1)
        gold.append(label if count > 1 else "0")
        judged.append(str(row["result"]))
    # The authors count a missing verdict as a tie, and longrm as none, which moves kappa in the fourth digit.
    assert summary.gold_agreement.kappa.value == pytest.approx(cohen_kappa_score(gold, judged), abs=1e-3)
    assert summary.gold_agreement.raw.value == pytest.approx(0.7768, abs=1e-4)
    assert summary.gold_agreement.kappa.n == len(gold) == 999
