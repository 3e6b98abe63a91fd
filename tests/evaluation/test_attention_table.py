"""The attention table of a run: means of means, shares that sum to one, and their chance levels."""

import csv

import numpy as np
import pytest

from longrm.evaluation.attention_table import ATTENTION_MEASURES, attention_table, write_attention_table
from longrm.modeling.attended_regions import AttendedComparison, RegionAttention, ResponseAttention

LAYERS = 2


def response(number: int, draw: np.random.Generator, names: str) -> ResponseAttention:
    def layers() -> tuple[float, ...]:
        return tuple(draw.random(LAYERS).tolist())

    regions = {
        name: RegionAttention(4 + place, layers(), layers(), layers()) for place, name in enumerate(names)
    }
    return ResponseAttention(0.0, 40 + number, 8 / (40 + number), regions)


def comparisons(count: int, names: str = "ab") -> list[AttendedComparison]:
    draw = np.random.default_rng(5)
    return [
        AttendedComparison(
            f"c{at}",
            f"g{at // 2}",
            at % 3 > 0,
            (response(0, draw, names), response(1, draw, names)),
            dict(zip(names, draw.random(len(names)).tolist(), strict=True)),
        )
        for at in range(count)
    ]


def test_values_are_means_over_responses_and_comparisons():
    measured = comparisons(12)
    rows = {
        (row.measure, row.layer, row.region, row.right): row
        for row in attention_table(measured, resamples=200)
    }
    assert {key[0] for key in rows} == ATTENTION_MEASURES.keys()
    for right in (True, False):
        judged = [one for one in measured if one.right == right]
        answers = [answer for one in judged for answer in one.responses]
        fr, mass, ig, gradient = (
            rows[key]
            for key in (
                ("fr", 1, "a", right),
                ("attention_mass", 1, "b", right),
                ("ig", 0, "a", right),
                ("embedding_gradient", None, "b", right),
            )
        )
        assert fr.value.value == pytest.approx(np.mean([one.regions["a"].fr[1] for one in answers]))
        assert fr.chance == pytest.approx((8 / 40 + 8 / 41) / 2)
        assert (fr.value.n, fr.value.groups) == (len(judged), len({one.group for one in judged}))
        assert mass.value.value == pytest.approx(np.mean([one.regions["b"].mass[1] for one in answers]))
        assert mass.chance == pytest.approx((5 / 40 + 5 / 41) / 2)
        shares = [
            one.regions["a"].ig[0] / sum(region.ig[0] for region in one.regions.values()) for one in answers
        ]
        assert ig.value.value == pytest.approx(np.mean(shares))
        norms = [one.embedding_gradient["b"] / sum(one.embedding_gradient.values()) for one in judged]
        assert gradient.value.value == pytest.approx(np.mean(norms))
        assert ig.chance == gradient.chance == 0.5
        for layer in range(LAYERS):
            assert sum(rows["ig", layer, name, right].value.value for name in "ab") == pytest.approx(1)
        assert fr.value.low < fr.value.value < fr.value.high
    assert rows["fr", 1, "a", True].value.value != pytest.approx(
        rows["fr", 1, "a", False].value.value, abs=1e-3
    )


def test_the_file_reads_back(tmp_path):
    rows = attention_table(comparisons(6), resamples=50)
    write_attention_table(rows, tmp_path / "attention.csv")
    with (tmp_path / "attention.csv").open() as stream:
        read = list(csv.DictReader(stream))
    assert len(read) == len(rows)
    for line, row in zip(read, rows, strict=True):
        assert (line["measure"], line["region"]) == (row.measure, row.region)
        assert line["layer"] == ("" if row.layer is None else str(row.layer))
        assert line["judged"] == ("right" if row.right else "wrong")
        assert (float(line["value"]), float(line["chance"])) == (row.value.value, row.chance)
