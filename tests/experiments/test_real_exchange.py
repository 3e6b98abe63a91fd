"""experiments/real_exchange.py on evaluations by a tiny model, against the items that longrm wrote."""

import csv
import importlib
import json
import sys
from pathlib import Path

import pytest

import longrm
from longrm.benchmarks import Probe, ProbeCell

pytestmark = pytest.mark.full

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS)
    yield importlib.import_module("real_exchange")
    for name in ("real_exchange", "real_contrasts", "real_experiment", "real_preferences", "recording"):
        sys.modules.pop(name, None)


def test_accuracies_and_differences_from_recorded_judgments(script, model, tmp_path, call, capsys):
    cell = ProbeCell(worlds=("exchange",), lengths=(500, 700), groups=3, per_group=4)
    right = {}
    for name, likelihood in (
        ("long-0", "sum"),
        ("control-0", "mean"),
        ("long-0-more", "sum"),
        ("long-1", "sum"),
    ):
        probe = Probe(seed=len(name), texts=("mail",), cells=(cell,), tokenizer=str(model))
        out = tmp_path / f"runs/judged-{name}"
        longrm.evaluate(
            f"likelihood:{model}",
            "probe",
            out,
            settings={"probe": probe, "model_args": {"likelihood": likelihood}},
        )
        with open(out / "items.csv", newline="") as file:
            right[name] = [(int(row["length"]), float(row["correct"])) for row in csv.DictReader(file)]
    results = tmp_path / "results.jsonl"
    training = {"arm": "short", "seed": 0, "loss": [1.0]}
    earlier = {"arm": "long", "seed": 0, "length": 500, "right": [[1]]}
    results.write_text(f"{json.dumps(training)}\n{json.dumps(earlier)}\n")
    for runs in (["--runs", tmp_path / "runs"], []):
        capsys.readouterr()
        call(script.main, "--results", results, *runs)
        shown = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
        table = {
            (name.strip(), seeds.strip()): [float(cell.split()[0]) for cell in cells]
            for name, seeds, *cells in shown
        }
        for arm, seeds, names in (
            ("long", [0, 1], ("long-0", "long-0-more", "long-1")),
            ("control", [0], ("control-0",)),
        ):
            for length, value in zip((500, 700), table[f"`{arm}`", str(seeds)], strict=True):
                own = [correct for name in names for tokens, correct in right[name] if tokens == length]
                assert value == pytest.approx(100 * sum(own) / len(own), abs=0.05)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert lines[0] == training
    assert earlier not in lines
    assert [len(line["right"]) for line in lines[1:]] == [3, 3, 6, 6, 3, 3]


def test_a_difference_pairs_the_same_contexts(script):
    lines = [
        {"arm": arm, "seed": seed, "length": 256, "right": right}
        for arm, seed, right in (
            ("long", 0, [[1, 1, 0], [1, 1, 1], [0, 1, 1]]),
            ("control", 0, [[0, 1, 0], [0, 0, 1], [1, 1, 1]]),
            ("long", 1, [[0, 0, 0], [1, 1, 1]]),
        )
    ]
    long, control = (script.records(lines, arm) for arm in ("long", "control"))
    assert {seed: len(found) for seed, found in long.items()} == {0: 9, 1: 6}
    difference = script.difference({0: long[0]}, control, script.length)["256"]
    assert difference.value == pytest.approx(2 / 9)
    assert (difference.n, difference.groups) == (9, 3)
    assert difference.low < difference.value < difference.high
