"""The agreement of SQuALITY's annotators, against counts by hand and the package `krippendorff`."""

import importlib.util
from pathlib import Path

import pytest

from tests.benchmarks.conftest import REAL

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[2] / "experiments" / "squality_agreement.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("squality_agreement", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("votes", "share"),
    [
        ((3, 0), 1),
        ((0, 3), 1),
        # Of three, those in the majority are left with a tie, and the third is against two.
        ((2, 1), (0.5 + 0.5 + 0) / 3),
        ((1, 2), (0.5 + 0.5 + 0) / 3),
        # Of five: three are left with 2 to 2, and the two others are against 3 to 1.
        ((3, 2), 3 * 0.5 / 5),
        ((4, 1), 4 / 5),
        ((2, 0), 1),
    ],
)
def test_an_annotator_against_the_majority_of_the_others(votes, share, script):
    assert script.with_others(votes) == pytest.approx(share)


def test_agreement_of_a_few_pairs(script):
    krippendorff = pytest.importorskip("krippendorff")
    votes = [(3, 0), (2, 1), (0, 3), (1, 2), (3, 0), (2, 1)]
    found = script.agreement([(str(n // 2), pair) for n, pair in enumerate(votes)])
    assert found["unanimous"].value == pytest.approx(3 / 6)
    assert found["others"].value == pytest.approx((3 + 3 / 3) / 6)
    assert found["majority"].value == pytest.approx((3 * 3 + 3 * 2) / 18)
    assert found["others"].groups == 3
    table = [[float(n < one) for one, _ in votes] for n in range(3)]
    expected = krippendorff.alpha(reliability_data=table, level_of_measurement="nominal")
    assert found["alpha"].value == pytest.approx(expected)
    # Negative control: preferences that are all of one side have another alpha.
    assert found["alpha"].value != pytest.approx(
        script.agreement([("0", (max(v), min(v))) for v in votes])["alpha"].value
    )


def test_the_published_rows(script, capsys, call):
    if not (REAL / "squality").is_dir():
        pytest.skip("SQuALITY is not in ../shared/data")
    call(script.main, REAL / "squality")
    models, people = capsys.readouterr().out.splitlines()[2:]
    # 34 of 65 pairs of models are unanimous, and 124 of 130 with a person's summary; the others are 2 to 1.
    assert models.startswith("| model-model | 65 | 52.3 ")
    assert f"| {100 * (34 + 31 / 3) / 65:.1f} [" in models
    assert f"| {100 * (124 + 6 / 3) / 130:.1f} [" in people
