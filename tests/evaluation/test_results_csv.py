import csv

import numpy as np
import pytest

from longrm.evaluation.results_csv import COLUMNS, write_results
from longrm.evaluation.summary import summarize


@pytest.fixture
def rows(tmp_path):
    def make(records, **options):
        summary = summarize(records, model="m", bench="b", resamples=100, **options)
        write_results(summary, tmp_path / "results.csv")
        with (tmp_path / "results.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            assert tuple(reader.fieldnames) == COLUMNS
            return list(reader)

    return make


def test_a_mixed_run_beside_the_published_rows(judgment, rows):
    rng = np.random.default_rng(0)
    records = [
        judgment(f"pair {k}", scores=(1.0, float(k % 2) * 2), task="Cite" if k < 4 else "Summ", length=4096)
        for k in range(10)
    ]
    records += [
        judgment(
            f"{n} {k}", ranks=tuple(range(1, n + 1)), scores=rng.normal(size=n).tolist(), task="Cite",
            subtype=str(n), length=131072,
        )
        for n in (2, 3, 4)
        for k in range(20)
    ]  # fmt: skip
    records.append(judgment("long", scores=(1.0, 0.0), task="Summ", length=8192))
    found = rows(records, scale="logit", release_rule=True)
    position, exact, released = found[:3]
    assert [row["source"] for row in found[:3]] == [
        "this run, position_match",
        "this run, exact_order",
        "this run, as the release scores it",
    ]
    # Pairs alone: the rankings of Cite, and those of 128k, are in no such column.
    assert (position["Cite"], position["Summ"], position["Code"]) == ("50.0", "57.1", "")
    assert (position["4k"], position["8k"], position["128k"], position["macro"]) == (
        "50.0",
        "100.0",
        "",
        "75.0",
    )
    assert exact["Cite"] == position["Cite"]
    assert float(exact["Rank4"]) < float(position["Rank4"])
    assert position["Rank2"] == exact["Rank2"] == released["Rank2"]
    assert (position["Rank4"], position["avg"]) == (released["Rank4"], released["avg"])  # no ties, one order
    published = {row["model"]: row for row in found[3:]}
    assert (published["Qwen3-8B"]["Rank2"], published["Qwen3-8B"]["avg"]) == ("27.3", "31.3")
    assert published["random"]["Rank4"] == "4.2"
    assert "exact orders" in published["random"]["defects"]


def test_published_figures_agree_with_themselves(judgment, rows):
    found = rows([judgment(scores=(1.0, 0.0))])
    assert (found[0]["source"], found[0]["avg"]) == ("this run, pair_accuracy", "100.0")
    lengths = ("4k", "8k", "16k", "32k", "64k", "128k")
    with_lengths = [row for row in found[1:] if row["macro"]]
    assert len(with_lengths) == 5
    for row in with_lengths:
        assert float(row["macro"]) == pytest.approx(np.mean([float(row[k]) for k in lengths]), abs=0.06)
    assert len({row["model"] for row in found[1:]}) == len(found) - 1 == 21
    assert {row["source"] for row in found[1:]} == {"arXiv 2510.06915v2"}
    assert all(row["defects"] for row in found[1:])
