import json
from importlib import resources

import jsonschema
import pytest

from longrm.benchmarks import Cell, Probe
from longrm.demo import DemoSettings, street
from longrm.report import build
from longrm.runs.folder import RunFolder
from longrm.runs.progress import silent


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """The demo's own parts, with a few steps and short exams, in this process."""
    out = tmp_path_factory.mktemp("demo") / "out"
    recipes = tmp_path_factory.mktemp("recipes")
    for name in ("short", "long", "control_short"):
        text = (street.RECIPES / f"{name}.toml").read_text()
        for line in text.splitlines():
            if line.startswith("steps ="):
                text = text.replace(line, "steps = 3")
            if line.startswith("responses_per_step ="):
                text = text.replace(line, "responses_per_step = 8")
            if line.startswith("lengths ="):
                text = text.replace(line, "lengths = [140]")
        (recipes / f"{name}.toml").write_text(text)
    cell = Cell(lengths=(160, 200), groups=4, per_group=2)
    probes = {"pairs": Probe(seed=1, cells=(cell,)), "best_of_4": Probe(seed=1, responses=4, cells=(cell,))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(street, "RECIPES", recipes)
        patch.setattr(street, "_probes", lambda seed: probes)
        settings = DemoSettings(controls=True)
        with RunFolder(out, "demo", settings) as folder:
            for arm in (*street.ARMS, *street.CONTROL_ARMS):
                street.train_arm(arm, settings, out, progress=silent)
            stages = (*street.STAGES, *street.CONTROL_STAGES)
            for stage in stages:
                for exam in probes:
                    street.take_exam(stage, exam, settings, out, progress=silent)
            street.evaluate_unrelated(settings, out, progress=silent)
            street.assert_unseen(settings, out, progress=silent)
            summary = street._summary(settings, out, stages, {"train short": 1.0})
            folder.write_summary(summary)
        yield settings, out, summary
    street._drawn.cache_clear()


def test_the_summary_fits_its_schema(small_demo):
    schema = json.loads(resources.files("longrm.runs").joinpath("summary.schema.json").read_text())
    _, out, summary = small_demo
    jsonschema.Draft202012Validator(schema).validate(summary)
    for training in (out / "training").iterdir():
        jsonschema.Draft202012Validator(schema).validate(json.loads((training / "summary.json").read_text()))
    assert set(summary["stages"]) == {*street.STAGES, *street.CONTROL_STAGES}
    assert list(summary["contrasts"]["long_vs_control_short"]["by_length"]) == ["160", "200"]


def test_all_stages_answer_the_same_questions(small_demo):
    _, out, _ = small_demo
    ids = {
        tuple(
            json.loads(line)["id"]
            for line in (out / "stages" / stage / "pairs/judgments.jsonl").read_text().splitlines()
        )
        for stage in (*street.STAGES, *street.CONTROL_STAGES)
    }
    assert len(ids) == 1


def test_the_arms_start_from_one_checkpoint_and_differ_from_it(small_demo):
    _, out, _ = small_demo
    for arm in ("long", "control_short"):
        config = (out / "training" / arm / "config.toml").read_text()
        assert f'path = "{(out / "training/short/model").resolve()}"' in config
    weights = {
        (out / "training" / arm / "model/model.safetensors").read_bytes()
        for arm in ("short", "long", "control_short")
    }
    assert len(weights) == 3


def test_every_part_waits_for_what_it_needs(small_demo):
    settings, out, summary = small_demo
    arms = (*street.ARMS, *street.CONTROL_ARMS)
    parts = street._parts(arms, tuple(summary["stages"]), settings, out)
    names = [part.name for part in parts]
    assert len(names) == len(set(names))
    needs = {part.name: part.after for part in parts}
    assert needs["train long"] == ("train short",)
    assert needs["evaluate rescale_only pairs"] == ("train short",)
    assert needs["evaluate long best_of_4"] == ("train long",)
    assert all(set(after) <= set(names) for after in needs.values())


def test_a_context_that_was_trained_on_is_found(small_demo, monkeypatch):
    settings, out, _ = small_demo
    monkeypatch.setattr(street, "context_digest", lambda comparison: next(iter(seen(out))))
    with pytest.raises(AssertionError, match="was trained on"):
        street.assert_unseen(settings, out, progress=silent)


def seen(out):
    for line in (out / "training/short/contexts.jsonl").read_text().splitlines():
        yield from json.loads(line)["digests"]


def test_the_report_is_built_from_it(small_demo, tmp_path):
    _, out, _ = small_demo
    build([out], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "positional extrapolation" in page
    assert "heads that look back" in page


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_demo_moves_the_boundary(tmp_path):
    summary = street.run(DemoSettings(seed=3), tmp_path / "demo")
    stages = {name: stage["metrics"]["by_length"] for name, stage in summary["stages"].items()}
    assert stages["short"]["128"]["pair_accuracy"]["value"] >= 0.97
    assert all(
        stages["long"][n]["pair_accuracy"]["value"] >= 0.97 for n in ("128", "256", "512", "1024", "2048")
    )
    assert summary["contrasts"]["long_vs_control_short"]["by_length"]["4096"]["low"] > 0.10
    assert street.run(DemoSettings(seed=3), tmp_path / "demo")["stages"] == summary["stages"]
