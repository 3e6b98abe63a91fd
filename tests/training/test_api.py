"""`longrm.train`: objects in memory, flat names, callbacks; the same numbers as from files."""

import json
from pathlib import Path

import datasets
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.cli.commands import cli
from longrm.errors import ConfigError, RunError
from longrm.training.checkpoints import saved_steps
from longrm.training.train import train as train_into

SMALL = {"max_steps": 4, "learning_rate": 3e-3, "per_step": 4, "save_steps": 2}
NEW = {"layers": 2, "hidden": 16}


class Interrupt(Exception):
    """Raised by a callback."""


@pytest.fixture(scope="module")
def rows(comparisons):
    return [json.loads(line) for line in comparisons.read_text().splitlines()]


@pytest.fixture(scope="module")
def by_file(comparisons, tmp_path_factory):
    out = tmp_path_factory.mktemp("by_file") / "run"
    return longrm.train("bradley-terry", new=NEW, data=comparisons, out=out, **SMALL)


@pytest.mark.parametrize("kind", ["list", "dataset", "frame", "files", "renamed"])
def test_rows_in_memory_train_as_rows_in_a_file_do(kind, rows, comparisons, by_file, results_of, tmp_path):
    others = [{"texts": row["responses"], **row} for row in rows]
    for row in others:
        del row["responses"]
    data = {
        "list": rows,
        "dataset": datasets.Dataset.from_list(rows),
        "frame": pd.DataFrame(rows),
        "files": [comparisons],
        "renamed": others,
    }[kind]
    columns = {"responses": "texts"} if kind == "renamed" else None
    run = longrm.train("bradley-terry", new=NEW, data=data, columns=columns, out=tmp_path / "run", **SMALL)
    assert (
        results_of(run.path).items()
        >= {
            name: content for name, content in results_of(by_file.path).items() if name != "contexts.jsonl"
        }.items()
    )
    assert run.steps.equals(by_file.steps)
    again = longrm.train("bradley-terry", new=NEW, data=data, columns=columns, out=tmp_path / "run", **SMALL)
    assert again.summary == run.summary
    different = rows[1:] if kind != "files" else tmp_path / "run"
    with pytest.raises(RunError, match=r"data\."):
        longrm.train("bradley-terry", new=NEW, data=different, out=tmp_path / "run", **SMALL)


def test_the_command_trains_the_same_model(comparisons, by_file, results_of, tmp_path):
    settings = [f"--set={name}={value}" for name, value in SMALL.items()]
    words = [
        "--data",
        comparisons,
        "--set=new={layers = 2, hidden = 16}",
        *settings,
        "--out",
        tmp_path / "run",
    ]
    command = ["train", "bradley-terry", *map(str, words)]
    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0
    assert results_of(tmp_path / "run") == results_of(by_file.path)
    assert (tmp_path / "run/config.toml").read_text() == (by_file.path / "config.toml").read_text()


@pytest.mark.parametrize("objective", ["bradley-terry", "preference"])
def test_a_model_in_memory_trains_as_its_folder_does(objective, base, rows, results_of, tmp_path):
    kind = AutoModelForSequenceClassification if objective == "bradley-terry" else AutoModelForCausalLM
    model = kind.from_pretrained(base, **({"num_labels": 1} if objective == "bradley-terry" else {}))
    tokenizer = AutoTokenizer.from_pretrained(base)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    folder = longrm.train(objective, model=tmp_path / "base", data=rows, out=tmp_path / "folder", **SMALL)

    def interrupt(step, metrics):
        if step == 3:
            raise Interrupt

    given = {"model": model, "tokenizer": tokenizer, "data": rows, "out": tmp_path / "memory", **SMALL}
    with pytest.raises(Interrupt):
        longrm.train(objective, **given, callbacks=[interrupt])
    assert saved_steps(tmp_path / "memory") == [2]
    memory = longrm.train(objective, **given)  # continues after step 2
    assert results_of(memory.path) == results_of(folder.path)
    assert all((weight == before[name]).all() for name, weight in model.named_parameters())
    assert len([*(tmp_path / "memory/initial_model").iterdir()]) == 1
    model.get_input_embeddings().weight.data[0] += 1.0
    with pytest.raises(RunError, match=r"model\.path"):
        longrm.train(objective, **given)
    if objective == "bradley-terry":
        scores = longrm.load(memory.model).score(rows[0]["prompt"], rows[0]["responses"])
        assert len(scores) == len(rows[0]["responses"])


def test_adapters_of_a_model_in_memory_are_on_its_copy(base, rows, tmp_path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    given = {"model": model, "tokenizer": tokenizer, "data": rows, "out": tmp_path / "run", **SMALL}
    run = longrm.train("preference", lora={"r": 2}, target_modules=["v_proj"], **given)
    config = json.loads((run.path / "model/adapter_config.json").read_text())
    assert config["target_modules"] == ["v_proj"]
    assert Path(config["base_model_name_or_path"]).parent == tmp_path / "run/initial_model"
    with pytest.raises(ConfigError, match=r"target_modules.*q_proj"):
        longrm.train(
            "preference", model=base, data=rows, r=2, target_modules=["q_prj"], out=tmp_path / "typo", **SMALL
        )


def test_what_cannot_be_trained_is_named(base, rows, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base)
    with pytest.raises(ConfigError, match="tokenizer"):
        longrm.train("sft", model=model, data=rows, out=tmp_path)
    with pytest.raises(ConfigError, match="tokenizer"):
        longrm.train(
            "sft", model=base, tokenizer=AutoTokenizer.from_pretrained(base), data=rows, out=tmp_path
        )
    for name, hint in {
        "learning_rat": "learning_rate",
        "lr": "optimizer.learning_rate",
        "per_device_train_batch_size": "data.per_step",
        "path": "model.path",
        "lora_dropout": "one mask",
    }.items():
        with pytest.raises(ConfigError, match=hint):
            longrm.train("sft", model=base, data=rows, out=tmp_path, **{name: 1})
    assert not any(tmp_path.iterdir())


def test_groups_and_flat_names_are_merged_in_any_order(rows, by_file, tmp_path):
    optimizer = {"learning_rate": 1.0, "max_steps": 4}
    given = {
        "learning_rate": 3e-3,
        "optimizer": optimizer,
        "data.per_step": 4,
        "checkpoint": {"save_steps": 2},
    }
    run = longrm.train("bradley_terry", new=NEW, data=rows, out=tmp_path / "run", **given)
    assert run.settings["optimizer"] == by_file.settings["optimizer"]
    assert optimizer == {"learning_rate": 1.0, "max_steps": 4}
    assert run.steps.equals(by_file.steps)


def test_callbacks_see_steps_and_evaluations_and_can_end_the_training(rows, tmp_path):
    seen = []

    def stop(step, metrics):
        seen.append((step, sorted(metrics)))
        return metrics.get("eval_pair_accuracy", -1.0) >= 0.0 and step == 2

    given = {
        "new": NEW,
        "data": "records",
        "lengths": [64],
        "eval_data": rows,
        "eval_steps": 2,
        "max_steps": 6,
    }
    run = longrm.train(
        "bradley-terry", **given, tokens_per_step=128, out=tmp_path / "run", callbacks=[stop, lambda *_: None]
    )
    assert [step for step, _ in seen] == [1, 2, 2]
    assert "loss" in seen[0][1]
    assert seen[-1][1] == ["eval_pair_accuracy"]
    assert (run.summary.steps, run.summary.evaluations.values.keys()) == (2, {"2"})
    assert (
        longrm.train("bradley-terry", **given, tokens_per_step=128, out=tmp_path / "run").summary
        == run.summary
    )


@pytest.mark.parametrize("limit", [1e9, 1e-3])
def test_gradients_are_clipped_to_a_norm(recipe, steps_of, tmp_path, limit):
    train_into(
        recipe("bradley_terry", optimizer__max_steps=1, optimizer__max_grad_norm=limit), tmp_path / "run"
    )
    (step,) = steps_of(tmp_path / "run")
    assert step.grad_norm > 0.1  # as it was before
    dcp_to_torch_save(tmp_path / "run/checkpoints/1", tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    # After one step of AdamW the first moment is a tenth of the gradient.
    moments = [moment.flatten() for name, moment in state.items() if name.startswith("exp_avg.")]
    assert torch.cat(moments).norm().item() == pytest.approx(0.1 * min(step.grad_norm, limit), rel=1e-5)


def test_so_many_checkpoints_are_kept(recipe, tmp_path):
    for limit in (1, 3):
        settings = recipe("bradley_terry", checkpoint={"save_steps": 2, "save_total_limit": limit})
        train_into(settings, tmp_path / str(limit))
        assert saved_steps(tmp_path / str(limit)) == [2, 4, 6, 8][-limit:]


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_dataset": []},
        {"processing_class": None},
        {"callbacks": [object()]},
        {"callbacks": [dict]},  # a class, such as TrainerCallback
        {"callbacks": print},
        {"objective": "dpo"},
    ],
)
def test_arguments_of_trainers_are_refused_with_a_hint(wrong, rows, tmp_path):
    hints = {
        "train_dataset": "data",
        "processing_class": "tokenizer",
        "callbacks": "functions",
        "objective": "preference",
    }
    arguments = {"objective": "bradley-terry", "model": "none", "data": rows, "out": tmp_path / "run"} | wrong
    with pytest.raises(ConfigError, match=hints[next(iter(wrong))]):
        longrm.train(arguments.pop("objective"), **arguments)
    assert not (tmp_path / "run").exists()
