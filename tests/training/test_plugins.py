"""A loss and an objective that a plug-in file adds are known to settings, command line, plan, training and card."""

import json
import sys
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import longrm.runs
from longrm.cli.train import _command, command
from longrm.training.losses import LOSSES
from longrm.training.objectives import OBJECTIVES
from longrm.training.plan.plan import plan_training
from longrm.training.train import train

PLUGIN = """
from longrm.training.losses import Loss
from longrm.training.objectives import Objective


def hinge(logprobs, counts, *, beta, reference):
    import torch

    ratios = torch.stack([own.sum() for own in logprobs]) - torch.tensor(reference)
    leads = [own[0] - own[1:].mean() for own in ratios.split(counts)]
    loss = (1.0 - beta * torch.stack(leads)).clamp(min=0.0).mean()
    return loss, {"lead": torch.stack(leads).mean().item()}


HINGE = Loss(
    "preference",
    hinge,
    "Hinge",
    "one minus the lead of the chosen response",
    {"beta": 0.7},
    mean_over="comparisons",
    needs_reference=True,
)


def last_token(logprobs):
    return -logprobs.mean(), {"last": logprobs.mean().item()}


LAST = Loss("endings", last_token, "last token", "the likelihood of the last token", {}, "comparisons")


class Endings(Objective):
    trains = "language_model"
    reads = "demonstration"
    help = "Imitate how completions end."
    description = "imitation of the last token of completions"

    def loss(self, model, micro):
        import torch

        return self.settings.loss.function(torch.stack([own[-1] for own in micro.response_logprobs(model)]))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugin_of_a_test", raising=False)
    module = import_module("plugin_of_a_test")
    monkeypatch.setitem(LOSSES, "hinge", module.HINGE)
    monkeypatch.setitem(LOSSES, "last_token", module.LAST)
    monkeypatch.setitem(OBJECTIVES, "endings", module.Endings)
    # Subcommands are made when the command line is imported, which another test may have done.
    monkeypatch.setitem(command.commands, "endings", _command("endings"))
    return module


def check_summary(out: Path, objective: str) -> None:
    summary = json.loads((out / "summary.json").read_text())
    schema = json.loads((Path(longrm.runs.__file__).parent / "summary.schema.json").read_text())
    jsonschema.validate(summary, schema)
    assert (summary["objective"], summary["steps"]) == (objective, 8)


def test_a_loss_is_trained_to_the_end_and_shown(tmp_path, plugin, recipe, base, steps_of, monkeypatch):
    settings = recipe("preference", model={"path": str(base)}, loss={"kind": "hinge"})
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
    monkeypatch.setitem(LOSSES, "simpo", plugin.HINGE)
    simpo = recipe("preference", model={"path": str(base)}, loss={"kind": "simpo"})
    assert plan_training(simpo, "cpu").flops.total == with_reference


def test_settings_know_the_loss(plugin, recipe):
    with pytest.raises(ValueError, match="did you mean 'hinge'"):
        recipe("preference", loss={"kind": "hing"})
    with pytest.raises(ValueError, match=r"loss\.gamma"):
        recipe("preference", loss={"kind": "hinge", "gamma": 1.0})
    with pytest.raises(ValueError, match=r"data\.path"):
        recipe("preference", loss={"kind": "hinge"}, data={"world": {}}, curriculum={"lengths": [64]})


def test_an_objective_is_trained_to_the_end_and_shown(tmp_path, plugin, demonstrations, base):
    (tmp_path / "endings.toml").write_text(
        f'objective = "endings"\nmodel.path = "{base}"\ndata = {{path = "{demonstrations}", per_step = 4}}\n'
        "optimizer.steps = 8\n"
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
