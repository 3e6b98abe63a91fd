"""The other scripts of experiments/ with tiny models: each prints its results as JSON."""

import json

import pytest

from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.worlds import words_tokenizer
from tests.perf.scripts import run_script
from tests.reward_models.tiny_models import make_scorer

pytestmark = pytest.mark.full


def run(script, *arguments, flags=("--json",)):
    return run_script("experiments", script, *arguments, *flags)


def test_attribution(tmp_path):
    make_scorer(tmp_path / "tiny")
    given = ["--lengths", "64", "--items", "2", "--controls", "--without-cache"]
    found = run("attribution.py", tmp_path / "tiny", *given)
    assert [line["arm"].rpartition("/")[2] for line in found] == ["tiny", "untrained", "random head", "tiny"]
    with_cache, *_, without = found
    assert with_cache["shown"] == without["shown"]
    assert with_cache["tokens_computed"] < without["tokens_computed"]


def test_group_rewards():
    found = run("group_rewards.py", "--n", "3", "--error", "0", "0.2", "--groups", "30", flags=())
    assert [line["verdicts"] for line in found] == [6, 4] * 4
    assert found[0]["kendall"] == found[0]["best_first"] == [1.0, 0.0]
    assert found[2]["kendall_tau_a"][0] < found[2]["kendall_tau_a_expected"] + 0.3


def test_bandit(put, tmp_path):
    text = " ".join(f"Clerk {number} has key {number * number}." for number in range(60))
    asked = {"instructions": ["What has clerk 31?"], "outputs": ["key 961"], "evaluation": "f1"}
    for task in ("natural_question", "financial_qa", "legal_contract_qa"):
        put(f"data/{task}.jsonl", {"input": f"{task}. {text}", **asked})
        line = {"query": "What has clerk 31?", "gt": "key 961", "m_pred": "none"}
        put(f"predictions/m/{task}.pred.jsonl", line)
    sizes = ["--questions", 3, "--rounds", 3, "--chunks", 1, "--chunk-size", 40]
    found = run("bandit.py", tmp_path, *sizes, "--writer", "simulated:0", flags=())
    plans, by_chance, bandit = found
    assert [line["sampling"] for line in found] == ["plans", "random chunks", "bandit"]
    assert max(by_chance["prompt_tokens_per_request"], bandit["prompt_tokens_per_request"]) < 100
    assert plans["prompt_tokens_per_request"] > 200
    assert plans["best"][0] == bandit["best"][0] == 1 > by_chance["best"][0]


def test_rationales(tmp_path):
    flags = ["--n", 60, "--errors", 0, 0.5, "--false-claims", 0]
    found = run("rationales.py", *flags, flags=())
    assert [(line["labels"], line["errors"]) for line in found] == [
        (labels, errors) for labels in ("given", "model") for errors in (0, 0.5)
    ]
    assert [line["kept_expected"] for line in found] == [0.8, 0.25, 1, 0.125]
    assert all(abs(line["kept"] - line["kept_expected"]) < 0.25 for line in found)
    assert found[0]["precision_kept"] == found[2]["kept"] == found[2]["precision_kept"] == 1
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Question {n}?", "chosen": f"Yes, {n}.", "rejected": f"No, {n}."} for n in range(20)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_file = run("rationales.py", "--bench", f"file:{pairs}", "--errors", 0, "--noise", 0, flags=())
    assert [(line["pairs"], line["precision_kept"]) for line in of_file] == [(20, 1), (20, 1)]


def test_trl_judge(tmp_path):
    judge = tmp_path / "judge"
    save(
        new_language_model(ModelShape(hidden=32, init_std=0.3), words_tokenizer(verdicts=True), seed=1), judge
    )
    sizes = ["--length", "64", "--steps", "2", "--seeds", "0", "--held-out", "2"]
    gold, shuffled, *means = run("trl_judge.py", "--out", tmp_path / "out", "--judge", judge, *sizes)
    assert (gold["arm"], shuffled["arm"]) == ("gold", "shuffled")
    assert gold["right_before"] == shuffled["right_before"]
    assert [len(one["reward_curve"]) for one in (gold, shuffled)] == [2, 2]
    assert [one["mean_gain"] for one in means] == [gold["gain"], shuffled["gain"]]
