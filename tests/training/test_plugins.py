"""A loss and an objective that a plug-in file adds are known to settings, command line, plan, training and card."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import longrm.runs
from longrm.cli.train import command
from longrm.training.losses import LOSSES
from longrm.training.plan.plan import plan_training
from longrm.training.train import train


def check_summary(out: Path, objective: str) -> None:
    summary = json.loads((out / "summary.json").read_text())
    schema = json.loads((Path(longrm.runs.__file__).parent / "summary.schema.json").read_text())
    jsonschema.validate(summary, schema)
    assert (summary["objective"], summary["steps"]) == (objective, 8)


def test_a_loss_is_trained_to_the_end_and_shown(
    tmp_path, example_plugin, recipe, base, steps_of, monkeypatch
):
    settings = recipe("preference", model={"path": str(base)}, loss={"loss_type": "hinge"})
    train(settings, tmp_path / "run")
    check_summary(tmp_path / "run", "preference")
    first, *_, last = steps_of(tmp_path / "run")
    # The model that training starts from is its own reference.
    assert first.loss == pytest.approx(1.0, abs=1e-4)
    assert last.losses["lead"] > 0.01
    card = (tmp_path / "run/model/README.md").read_text()
    assert "- Objective: preference between judgments" in card
    assert "- Loss: Hinge, one minus the lead of the chosen response" in card
    with_reference = plan_training(settings, "cpu").flops.total
    assert with_reference > plan_training(recipe("preference", model={"path": str(base)}), "cpu").flops.total
    monkeypatch.setitem(LOSSES, "simpo", LOSSES["hinge"])
    simpo = recipe("preference", model={"path": str(base)}, loss={"loss_type": "simpo"})
    assert plan_training(simpo, "cpu").flops.total == with_reference


def test_settings_know_the_loss(example_plugin, recipe):
    with pytest.raises(ValueError, match="did you mean 'hinge'"):
        recipe("preference", loss={"loss_type": "hing"})
    with pytest.raises(ValueError, match=r"loss\.gamma"):
        recipe("preference", loss={"loss_type": "hinge", "gamma": 1.0})
    with pytest.raises(ValueError, match=r"data\.path"):
        recipe("preference", loss={"loss_type": "hinge"}, data={"world": {}}, curriculum={"lengths": [64]})


def test_an_objective_is_trained_to_the_end_and_shown(tmp_path, example_plugin, demonstrations, base):
    (tmp_path / "endings.toml").write_text(
        f'objective = "endings"\nmodel.path = "{base}"\ndata = {{path = "{demonstrations}", per_step = 4}}\n'
        "optimizer.max_steps = 8\n"
    )
    out = tmp_path / "run"
    shown = CliRunner().invoke(command, ["--help"]).output
    assert "Imitate how completions end." in shown
    options = ["endings", "--config", str(tmp_path / "endings.toml"), "--out", str(out)]
    done = CliRunner().invoke(command, options, catch_exceptions=False)
    assert done.exit_code == 0
    check_summary(out, "endings")
    card = (out / "model/README.md").read_text()
    assert "- Objective: imitation of the last token of completions\n- Loss: last token, " in card
    assert "writes judgments" in card
