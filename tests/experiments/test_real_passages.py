"""experiments/real_passages.py with synthetic questions: its statistics, its prompts, and a tiny training."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

import longrm
from longrm.benchmarks import BenchmarkSource, Probe, load

pytestmark = pytest.mark.full

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def item(number):
    answers = {f"prediction {at}": f"It is {at}. No. {number}." for at in range(1, 5)}
    return {
        "question": f"Where is number {number}?",
        "passages": [[f"Number {number}", f"Number {number}\n\nIt is {number % 4 + 1}.", "It was sold."]],
        "preference": [[1, 1, 1, 0, 2, 2], [2, 1, 2, 1, 0, 2]][number % 2],
        "feedback": {"errors": [{"error type": "Irrelevant", "start": 0, "end": 7}] if number % 3 else []},
        **answers,
    }


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS)
    yield importlib.import_module("real_passages")
    for name in ("real_passages", "recording"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "dev_feedback.json"
    file.write_text(json.dumps([item(number) for number in range(80)]))
    return file


def test_prompts_and_pairs_are_those_of_the_benchmark(script, data):
    loaded = load(f"qa-feedback:{data}", source=BenchmarkSource(), probe=Probe()).comparisons
    items = [*script.questions(data)[0], *script.questions(data)[1]]
    assert len(items) == 80
    prompts = {script.prompt(one, script.passages(one)): one for one in items}
    for pair in loaded:
        one = prompts[pair.prompt[0]["content"]]
        first, second = pair.metadata["answers"]
        at = script.PAIRS.index((first - 1, second - 1))
        assert one["preference"][at] == 1 + (pair.ranks == (2, 1))
        ranks = script.ranks(one)
        assert (ranks[first - 1] < ranks[second - 1]) == (pair.ranks == (1, 2))


def test_statistics(script):
    rng = np.random.default_rng(1)
    labels = [rng.random(4) < 0.4 for _ in range(40)]
    effects = [rng.normal(size=4) + 0.8 * own for own in labels]
    value, low, high = script.auc([own.tolist() for own in labels], [own.tolist() for own in effects], 200)
    truth, found = np.concatenate(labels), np.concatenate(effects)
    pairs = truth.sum() * (~truth).sum()
    assert value == pytest.approx(mannwhitneyu(found[truth], found[~truth]).statistic / pairs)
    assert 0.5 < low < value < high
    flipped, *_ = script.auc([own.tolist() for own in labels], [(-own).tolist() for own in effects], 2)
    assert flipped == pytest.approx(1 - value)
    # The preferred answer first, then last; ties count half.
    one = item(0)
    assert script.right([[4.0, 2.0, 1.0, 3.0]], [one]) == [[1, 1, 1, 1, 1]]
    assert script.right([[1.0, 2.0, 3.0, 2.0]], [one]) == [[0, 0, 0, 0.5, 0]]
    assert script.estimate([[1.0, 0.0], [1.0]], 10)[0] == pytest.approx(2 / 3)


def test_a_difference_of_arms_is_printed_by_seed(script, data, tmp_path, call, capsys):
    _, held_out = script.questions(data)
    good = [[-float(rank) for rank in script.ranks(one)] for one in held_out]
    bad = [[-score for score in own] for own in good]
    results = tmp_path / "results.jsonl"
    arms = [("my-long", 0, good), ("my-control", 0, bad), ("my-long", 1, good), ("my-control", 1, good)]
    results.write_text(
        "".join(
            json.dumps({"arm": arm, "seed": seed, "condition": "4096", "part": "held-out", "scores": scores})
            + "\n"
            for arm, seed, scores in arms
        )
    )
    call(script.main, "--data", data, "--results", results, "table")
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    name = "my-long - control: 4096, seeds"
    assert [line for line in shown if line.startswith(name)] == [
        f"{name} [0, 1] 50.0 [50.0, 50.0]",
        f"{name} [0] 100.0 [100.0, 100.0]",
        f"{name} [1] 0.0 [0.0, 0.0]",
    ]


def test_an_arm_is_trained_and_scored(script, data, model, tmp_path, call, capsys):
    out, results = tmp_path / "out", tmp_path / "results.jsonl"
    given = ["--data", data, "--results", results]
    script.LONG = (200, 240)
    flags = ["--model", model, "--out", out, "--per-step", 4, "--frozen", 0, "--no-compile"]
    for arm in ("head", "control", "long"):
        call(script.main, *given, "train", arm, *flags, "--questions", 4)
    rows = {
        arm: [json.loads(line) for line in (out / f"{arm}-0.jsonl").read_text().splitlines()]
        for arm in ("control", "long")
    }
    for own, embedded in zip(rows["control"], rows["long"], strict=True):
        assert own["responses"] == embedded["responses"]
        assert len(own["prompt"]) < len(embedded["prompt"])
        assert own["prompt"].rpartition("\n\n")[2] == embedded["prompt"].rpartition("\n\n")[2]
        # Every passage of the question is still there.
        passage = (
            own["prompt"].removeprefix("Here are passages from Wikipedia.\n\n").partition("\n\nAnswer")[0]
        )
        assert passage in embedded["prompt"]
    for name, judged in (("head", out / "head-0" / "model"), ("likelihood", f"likelihood:{model}")):
        more = ["--dtype", "float32", "--conditions", "own", "other", "none", "240"]
        call(script.main, *given, "score", name, "--model", judged, *more)
        call(script.main, *given, "marks", name, "--model", judged, "--dtype", "float32")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    _, held_out = script.questions(data)
    prompt = script.prompt(held_out[0], script.passages(held_out[0]))
    expected = longrm.load(f"likelihood:{model}", model_args={"likelihood": "mean"}).score(
        prompt, script.answers(held_out[0])
    )
    (line,) = [line for line in lines if (line["arm"], line["condition"]) == ("likelihood", "own")]
    assert script.judged(line)["likelihood"][0] == pytest.approx(expected, abs=1e-3)
    capsys.readouterr()
    call(script.main, *given, "table")
    shown = capsys.readouterr().out
    for name in (
        "likelihood: own - other",
        "head: own - overlap",
        "later sentences",
        "likelihood, own over other",
    ):
        assert name in shown
