"""experiments/real_experiment.py with a tiny model, short contexts and a training of two steps."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from longrm.benchmarks import Probe, ProbeCell
from longrm.modeling.folders import has_mlp_head
from longrm.runs.logs import GOLD, JUDGMENTS, Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Comparison, Outcome

pytestmark = pytest.mark.full

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RECIPE = """
objective = "preference"
data.world = {name = ["single-fact"], texts = ["mail"], tokens_per_step = 300, responses_per_step = 4}
curriculum.lengths = [300]
loss.loss_type = "simpo"
optimizer.max_steps = 2
plateau_steps = 0
"""
PREFERENCES = """
objective = "bradley_terry"
data.per_step = 2
optimizer.max_steps = 1
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        found = importlib.import_module("real_experiment")
        (tmp_path / "recipes").mkdir()
        for arm in filter(None, (arm.recipe for arm in found.ARMS.values())):
            recipe = PREFERENCES if arm.startswith("preferences") else RECIPE
            (tmp_path / "recipes" / f"{arm}.toml").write_text(recipe)
        patch.setattr(found, "RECIPES", tmp_path / "recipes")
        cell = ProbeCell(worlds=("single-fact",), lengths=(300, 600), groups=2, per_group=2)
        patch.setattr(
            found, "probes", lambda contexts, seed: {"trained": Probe(seed=9 + seed, cells=(cell,))}
        )
        yield found
    for name in ("real_experiment", "real_preferences", "real_contrasts", "real_shortcut", "recording"):
        sys.modules.pop(name, None)


def test_an_arm_is_trained_from_the_one_before_and_judged(script, model, tmp_path, call, capsys):
    out, results = tmp_path / "out", tmp_path / "results.jsonl"

    def run(arm, *more):
        flags = ["--model", model, "--out", out, "--results", results, "--threads", "1", *more]
        call(script.main, arm, *flags)

    with pytest.raises(SystemExit, match="likelihood-short"):
        run("likelihood-long")
    for arm in ("likelihood", "likelihood-short", "likelihood-long"):
        run(arm)
    written = [json.loads(line) for line in results.read_text().splitlines()]
    trainings, lines = (
        [one for one in written if (one["probe"] == "training") is of] for of in (True, False)
    )
    assert [line["arm"] for line in trainings] == ["likelihood-short", "likelihood-long"]
    assert all(line["steps"] == 2 and line["evaluations"] is None for line in trainings)
    assert [line["arm"] for line in lines] == ["likelihood", "likelihood-short", "likelihood-long"]
    for line in lines:
        assert line["outcomes"]["answered"] == 8
        assert {length: found["n"] for length, found in line["by_length"].items()} == {"300": 4, "600": 4}
        assert line["boundary"]["status"]
    start = (out / "likelihood-long-0/training/config.toml").read_text()
    assert "likelihood-short-0/training/model" in start
    weights = out / "likelihood-long-0/training/model/model.safetensors"
    changed = weights.stat().st_mtime_ns
    capsys.readouterr()
    run("likelihood-long")  # nothing is trained twice
    assert weights.stat().st_mtime_ns == changed

    def ordered(lines):
        return sorted(lines, key=lambda line: (line["arm"], line["probe"]))

    again = [json.loads(line) for line in results.read_text().splitlines()]
    assert ordered(again) == ordered(written)
    with pytest.raises(SystemExit, match="likelihood-long-1/training/model"):
        run("likelihood-long-more", "--seed", "1")


def test_preferences_are_split_by_conversation_and_embedded(script, model, tmp_path, call, monkeypatch):
    monkeypatch.setattr(script, "LONG", (200, 300))
    monkeypatch.setattr(script, "SHORT", (200,))
    rows = [
        {
            "pair_uid": str(number),
            "conversation_input": [{"role": "user", "content": f"Name the code of room {number // 2}."}],
            "chosen": {"answer": f"The code is {number}."},
            "reject": {"answer": "No."},
            "category_path": "Pairwise_set/Helpfulness/Chat/Room",
        }
        for number in range(200)
    ]
    rmb, out = tmp_path / "rmb" / "Pairwise_set", tmp_path / "out"
    rmb.mkdir(parents=True)
    (rmb / "Room.json").write_text(json.dumps(rows))
    for arm in (
        "preferences",
        "preferences-mlp",
        "preferences-3e-5",
        "preferences-long",
        "preferences-control",
    ):
        flags = ["--model", model, "--out", out, "--rmb", rmb.parent, "--threads", "1", "--contexts", "1"]
        call(script.main, arm, *flags)
    results = tmp_path / "results.jsonl"
    flags = ["--bench", f"rmb:{rmb}", "--limit", 4, "--model", model, "--out", out, "--results", results]
    call(script.main, "likelihood-mean", *flags)
    (line,) = map(json.loads, results.read_text().splitlines())
    assert line["probe"] == "rmb"
    assert line["outcomes"]["answered"] == line["by_task"]["Chat"]["n"] == 4
    assert {"longest", "shortest"} <= line["over_baselines"].keys()
    assert line["over_baselines"]["longest"]["value"] == line["pair_accuracy"]["value"] - 1
    parts = [
        {json.loads(line)["group"] for line in (out / "data" / f"{part}.jsonl").read_text().splitlines()}
        for part in ("train", "held-out")
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100
    own, other = (
        {row["id"]: row for row in map(json.loads, (out / "data" / f"{part}.jsonl").read_text().splitlines())}
        for part in ("held-out", "other-prompt")
    )
    assert own.keys() == other.keys()
    for name, row in own.items():
        assert other[name]["responses"] == row["responses"]
        assert other[name]["prompt"] != row["prompt"]
    (inboxes,) = (out / "data").glob("preference-held-out-*/rows")
    files = [*inboxes.iterdir()], [out / "data/other-inbox.jsonl"]
    own, other = (
        {row["id"]: row for file in part for row in map(json.loads, file.read_text().splitlines())}
        for part in files
    )
    assert own.keys() == other.keys()
    for name, row in own.items():
        same = ("group", "responses", "ranks", "metadata")
        assert [other[name][key] for key in same] == [row[key] for key in same]
        assert other[name]["prompt"] != row["prompt"]
    assert list((out / "preferences-0/training/evaluations").iterdir()), "judged in training, too"
    assert has_mlp_head(out / "preferences-mlp-0/training/model")
    assert not has_mlp_head(out / "preferences-0/training/model")
    for arm, probe, task in (
        ("preferences-long", "inbox", "preference"),
        ("preferences-long", "other-inbox", "preference"),
        ("preferences", "relevance", "relevance"),
    ):
        judged = json.loads((out / f"{arm}-0/{probe}/summary.json").read_text())
        assert set(judged["metrics"]["by_length"]) == {"200", "300"}
        assert set(judged["metrics"]["by_task"]) == {task}


def test_contrasts_put_seeds_together_and_pair_what_was_judged(script, tmp_path, call, capsys):
    contrasts = importlib.import_module("real_contrasts")
    out, results = tmp_path / "out", tmp_path / "results.jsonl"
    with pytest.raises(SystemExit):
        call(contrasts.main, "--out", out, "--results", results)
    # (seed, context, length): whether each of two arms is right about its four questions
    right = {
        (0, "a", 300): ((1, 1, 1, 0), (1, 0, 0, 0)),
        (0, "b", 300): ((1, 1, 1, 1), (1, 1, 0, 0)),
        (1, "a", 300): ((0, 1, 1, 1), (1, 1, 1, 0)),
        (1, "b", 600): ((1, 1, 0, 0), (1, 1, 0, 0)),
    }
    for seed in (0, 1):
        for side, arm in enumerate(("likelihood-long", "likelihood-control")):
            run = out / f"{arm}-{seed}" / "trained"
            run.mkdir(parents=True)
            (run / "summary.json").touch()
            with Log(run / JUDGMENTS, JudgmentRecord) as log, Log(run / GOLD, GoldRecord) as gold:
                for (of, context, tokens), sides in right.items():
                    if (arm, of, context) == ("likelihood-control", 0, "b"):
                        continue  # was not asked about this context
                    for at, point in enumerate(sides[side]) if of == seed else ():
                        name = f"{context}{at}"
                        scores = (1.0, 0.0) if point else (0.0, 1.0)
                        log.append(
                            JudgmentRecord(
                                id=name,
                                group=context,
                                outcome=Outcome.ANSWERED,
                                order=(0, 1),
                                scores=scores,
                                length=tokens,
                                task="t",
                            )
                        )
                        gold.append(GoldRecord(name, (1, 2)))
    earlier = [
        {"probe": "trained", "arm": "likelihood-long", "by": "length", "seeds": seeds, "accuracy": {}}
        for seeds in ([0], [0, 5])
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in earlier))
    contrasts.main()
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line for line in lines if line in earlier] == earlier[1:], "of the same seeds is replaced"
    assert lines.pop(0) == earlier[1]
    found = {(line["arm"], line.get("minus"), line["by"]): line for line in lines}
    long = found["likelihood-long", None, "length"]
    assert (long["seeds"], long["judged"], long["answered"]) == ([0, 1], 16, 16)
    assert (long["accuracy"]["300"]["value"], long["accuracy"]["300"]["n"]) == (10 / 12, 12)
    assert long["accuracy"]["300"]["groups"] == 3, "the context a of two seeds is two contexts"
    gain = found["likelihood-long", "likelihood-control", "length"]["difference"]
    assert gain["300"]["value"] == pytest.approx((6 - 4) / 8)
    assert (gain["300"]["n"], gain["300"]["groups"]) == (8, 2)
    assert gain["300"]["low"] < gain["300"]["value"] < gain["300"]["high"]
    assert gain["600"]["value"] == 0
    assert set(found["likelihood-long", None, "task and length"]["accuracy"]) == {"t 300", "t 600"}
    assert "likelihood-long - likelihood-control, seeds [0, 1]" in capsys.readouterr().out

    def contexts(arm, probe):
        return {
            record.group for records in contrasts.read_arm(out, arm, probe).values() for record in records
        }

    for seed in (0, 1):
        shutil.copytree(out / f"likelihood-long-{seed}/trained", out / f"preferences-long-{seed}/inbox")
    assert contexts("likelihood-long", "trained") == {"0 a", "0 b", "1 a", "1 b"}
    assert contexts("preferences-long", "inbox") == {"a", "b"}, "all seeds judge the same inboxes"


def test_the_city_named_last(script, model, tmp_path, call, monkeypatch):
    shortcut = importlib.import_module("real_shortcut")
    prompt = ({"role": "user", "content": "Ana is in Rome. Bo is in Pisa. Ana left for Oslo. Where is Ana?"},)
    responses = tuple(({"role": "assistant", "content": f"In {city}."},) for city in ("Oslo", "Rome"))
    item = Comparison(id="a", group="a", prompt=prompt, responses=responses, ranks=(1, 2))
    first, second = shortcut.last_named(item)
    assert first > second > 0
    cell = ProbeCell(worlds=("latest-update",), lengths=(300,), groups=4, per_group=2)
    probe = Probe(seed=1, texts=("mail",), cells=(cell,))
    monkeypatch.setattr(shortcut, "probes", lambda contexts, seed: {"trained": probe})
    monkeypatch.setattr(script, "probes", shortcut.probes)
    flags = ["--model", str(model), "--out", str(tmp_path)]
    call(script.main, "likelihood", *flags, "--probes", "trained")
    results = tmp_path / "results.jsonl"
    call(shortcut.main, *flags, "--results", results)
    (line,) = map(json.loads, results.read_text().splitlines())
    judged = json.loads((tmp_path / "likelihood-0/trained/summary.json").read_text())
    accuracy = judged["metrics"]["overall"]["pair_accuracy"]["value"]
    assert line["rule"]["300"]["n"] == 8
    assert line["rule"]["300"]["value"] + line["difference"]["300"]["value"] == pytest.approx(accuracy)
