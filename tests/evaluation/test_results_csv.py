import csv

import numpy as np
import pytest

from longrm.evaluation.results_csv import COLUMNS, write_results
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_summary


@pytest.fixture
def rows(tmp_path):
    def make(records, bench="long-rewardbench:LongReward", columns=COLUMNS, **options):
        summary = summarize(records, model="m", bench=bench, resamples=100, **options).to_dict()
        write_results(parse_summary(summary), tmp_path / "results.csv")
        with (tmp_path / "results.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            assert tuple(reader.fieldnames) == columns
            return list(reader)

    return make


def test_a_run_of_pairs_and_rankings_above_the_published_rows(judgment, rows):
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
    found = rows(records, scale="logit")
    position, exact = found[:2]
    assert [row["source"] for row in found[:2]] == ["this run, position_match", "this run, exact_order"]
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
    assert position["Rank2"] == exact["Rank2"]
    published = {row["model"]: row for row in found[2:]}
    assert (published["Qwen3-8B"]["Rank2"], published["Qwen3-8B"]["avg"]) == ("27.3", "31.3")
    assert published["random"]["Rank4"] == "4.2"
    assert "exact orders" in published["random"]["defects"]


PRINTED = {  # Rank2, Rank3, Rank4, average, and on short contexts; then by length, and their mean
    "random": ((50.0, 16.7, 4.2, 37.5, None), (None,) * 7),
    "Con-J-Qwen2-7B": ((20.7, 16.1, 9.7, 27.5, 84.4), (65.4, 55.0, 27.4, 16.8, 19.0, 0.8, 30.7)),
    "Llama-3.1-8B-Instruct + SFT": ((11.0, 10.1, 6.3, 35.7, None), (None,) * 7),
    "Qwen3-8B + SFT + alignment": (
        (38.3, 20.1, 17.6, 43.9, 78.1),
        (60.3, 51.8, 55.5, 53.3, 64.7, 87.0, 62.1),
    ),
    "Gemini 2.5 Pro": ((None, None, None, 40.9, None), (57.9, 49.0, 57.5, 56.5, 64.7, 80.9, 61.1)),
    "GRM-Llama3-8B + alignment": ((64.0, 35.9, 23.7, 50.5, None), (None,) * 7),
}


def test_published_numbers_are_those_of_the_paper(judgment, rows):
    found = {row["model"]: row for row in rows([judgment(scores=(1.0, 0.0))])[1:]}
    columns = (
        ("Rank2", "Rank3", "Rank4", "avg", "RewardBench"),
        ("4k", "8k", "16k", "32k", "64k", "128k", "macro"),
    )
    for name, printed in PRINTED.items():
        numbers = tuple(
            tuple(float(found[name][key]) if found[name][key] else None for key in keys) for keys in columns
        )
        assert numbers == printed, name
    assert len(found) == 21
    scalar = {name for name, row in found.items() if "half precision" in row["defects"]}
    assert scalar == {name for name in found if name.startswith(("GRM", "Skywork"))}


def test_another_benchmark_has_its_own_columns(judgment, rows):
    records = [
        judgment("a", scores=(1.0, 0.0), task="Chat", length=512),
        judgment("b", ranks=(1, 2, 3), scores=(0.0, 1.0, 2.0), task="avg", length=1024),
        judgment("c", scores=(1.0, 0.0), task="Cite", length=1024),
        judgment("d", scores=(1.0, 0.0), task="Cite", length=1024),
    ]
    tasks = ("task Chat", "task Cite", "task avg")
    columns = ("bench", "model", "source", *tasks, "avg", "length 512", "length 1024", "macro")
    (row,) = rows(records, bench="rewardbench:data", columns=columns)
    assert tuple(row.values()) == (
        *("rewardbench:data", "m", "this run, top1", "100.0", "100.0", "0.0", "75.0", "100.0", "66.7", "83.3"),
    )  # fmt: skip
