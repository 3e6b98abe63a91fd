"""The loop: what a stopped run resumes to, when checkpoints are written, and how a training fails."""

import math
import shutil
import signal
import time
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from transformers.integrations import integration_utils

from longrm.errors import ConfigError, RunError, TrainingError
from longrm.runs.folder import read_manifest
from longrm.training import checkpoints
from longrm.training import train as running
from longrm.training.checkpoints import saved_steps
from longrm.training.distributed import DistributedContext
from longrm.training.objectives import BradleyTerry
from longrm.training.plan.plan import plan_training
from longrm.training.settings import MemorySettings
from longrm.training.train import check_plateau, learning_rates, make_optimizer, train

LORA = {"r": 2, "lora_alpha": 4.0}
RECIPES = {
    "accumulated": ("bradley_terry", {"memory__max_tokens_per_microbatch": 1}),
    "bfloat16": ("sft", {"model__bf16": True}),
    "lora": ("bradley_terry", {"model__lora": LORA}),
    "lora, bfloat16, accumulated": (
        "preference",
        {"model__lora": LORA, "model__bf16": True, "memory__max_tokens_per_microbatch": 1},
    ),
    "frozen layers, bfloat16": ("sft", {"model__frozen_layers": 1, "model__bf16": True}),
    "dpo, checkpointing": ("preference", {"loss__loss_type": "dpo", "memory__gradient_checkpointing": True}),
}


@pytest.fixture
def stopped(tmp_path, recipe, stop):
    """The plain run, stopped after step 5: its latest checkpoint is that of step 3."""
    error, at = stop
    with pytest.raises(error):
        train(recipe("bradley_terry"), tmp_path / "run", progress=at(5))
    assert saved_steps(tmp_path / "run") == [3]
    return tmp_path / "run"


@pytest.mark.parametrize("name", RECIPES)
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, recipe, stop, results_of, name):
    objective, changes = RECIPES[name]
    settings, (error, at) = recipe(objective, **changes), stop
    whole = train(settings, tmp_path / "whole")
    with pytest.raises(error):
        train(settings, tmp_path / "cut", progress=at(5))
    assert train(settings, tmp_path / "cut") == whole
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")
    assert len(results_of(tmp_path / "cut")) >= 4


def with_another_bit(checkpoint, stored):
    tensors = stored(checkpoint)
    tensors["weight.score.weight"][0, 0] *= 1 + 2**-20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch notes that one process writes
        dcp.save(tensors, checkpoint_id=checkpoint)


def test_a_checkpoint_with_one_changed_bit_ends_in_other_bytes(stopped, recipe, finished, results_of, stored):
    """Negative control: the comparison above sees what one weight of a checkpoint does."""
    with_another_bit(stopped / "checkpoints/3", stored)
    train(recipe("bradley_terry"), stopped)
    assert results_of(stopped) != results_of(finished[0])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("__0_0.distcp", lambda path: path.write_bytes(path.read_bytes()[:100])),
        (".metadata", lambda path: path.write_bytes(b"")),
        (".metadata", lambda path: path.write_bytes(path.read_bytes()[:100])),
        (".metadata", lambda path: path.unlink()),
        ("steps.jsonl", lambda path: path.unlink()),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_named(stopped, recipe, name, damage):
    damage(stopped / "checkpoints/3" / name)
    with pytest.raises(RunError, match=r"checkpoints/3: .*; remove that folder"):
        train(recipe("bradley_terry"), stopped)


def test_sigterm_ends_a_training_after_the_checkpoint_of_its_step(tmp_path, recipe, results_of):
    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended

    def sends(label, done, total, note=""):
        if label == "training" and done == 5:
            signal.raise_signal(signal.SIGTERM)

    settings = recipe("bradley_terry", checkpoint__save_steps=100)
    whole = train(settings, tmp_path / "whole")
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended):
            train(settings, tmp_path / "cut", progress=sends)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    assert saved_steps(tmp_path / "cut") == [5]
    assert train(settings, tmp_path / "cut") == whole
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


@pytest.mark.parametrize(
    ("step", "next_step"), [(2, "starts again at step 1"), (5, "continues after step 3")]
)
def test_ctrl_c_reports_the_step_that_the_same_command_continues_from(tmp_path, recipe, step, next_step):
    def interrupt(label, done, total, note=""):
        if (label, done) == ("training", step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=f"the same command {next_step}"):
        train(recipe("bradley_terry"), tmp_path / "run", progress=interrupt)


def test_checkpoints_by_the_clock_change_nothing_else(
    tmp_path, recipe, stop, results_of, ticking, monkeypatch
):
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 60.0)
    error, at = stop
    settings = recipe("bradley_terry", checkpoint__save_steps=100)
    whole = train(settings, tmp_path / "whole", clock=ticking(0.0))
    assert saved_steps(tmp_path / "whole") == [8], "the last step only"
    with pytest.raises(error):
        train(settings, tmp_path / "cut", progress=at(6), clock=ticking(10.0))
    saved = saved_steps(tmp_path / "cut")
    assert saved
    assert all(0 < step < 6 for step in saved)
    assert max(saved) - min(saved) > 1, "not after every step"
    assert train(settings, tmp_path / "cut", clock=ticking(0.0)) == whole
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path, recipe, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("longrm.training.checkpoints.save", full)
        with pytest.raises(RunError, match=r"checkpoint.*No space left on device"):
            train(recipe("bradley_terry"), tmp_path / "run")
    assert train(recipe("bradley_terry"), tmp_path / "run")["steps"] == 8


def test_a_checkpoint_of_another_model_is_named(tmp_path, recipe, stop):
    error, at = stop
    with pytest.raises(error):
        train(recipe("bradley_terry", model__lora=LORA), tmp_path / "adapters", progress=at(5))
    with pytest.raises(error):
        train(recipe("bradley_terry"), tmp_path / "run", progress=at(5))
    for name in (".metadata", "__0_0.distcp"):
        shutil.copyfile(tmp_path / "adapters/checkpoints/3" / name, tmp_path / "run/checkpoints/3" / name)
    with pytest.raises(RunError, match=r"checkpoints/3: it has the weights of another model.*; remove that"):
        train(recipe("bradley_terry"), tmp_path / "run")


def test_a_checkpoint_that_is_written_while_training_goes_on_is_the_same(
    tmp_path, recipe, finished, results_of, stored, monkeypatch
):
    """As on a GPU: a copy is written in a thread, here so slowly that the next step changes all weights before."""

    def slowly(*args, **kwargs):
        time.sleep(0.5)
        return save(*args, **kwargs)

    save = checkpoints.save
    monkeypatch.setattr(checkpoints, "save", slowly)
    monkeypatch.setattr(checkpoints, "_copies", lambda model: True)
    train(recipe("bradley_terry"), tmp_path / "run")
    assert results_of(tmp_path / "run") == results_of(finished[0])
    for step in saved_steps(finished[0]):
        found, truth = (stored(run / f"checkpoints/{step}") for run in (tmp_path / "run", finished[0]))
        assert found.keys() == truth.keys()
        assert all(torch.equal(found[name], truth[name]) for name in truth)


def test_memory_and_checkpoints_may_change_when_a_run_resumes(stopped, recipe):
    other = {"memory__max_tokens_per_microbatch": 100, "checkpoint__save_steps": 2}
    with pytest.raises(RunError, match=r"optimizer\.learning_rate"):
        train(recipe("bradley_terry", optimizer__learning_rate=0.1, **other), stopped)
    assert train(recipe("bradley_terry", **other), stopped)["steps"] == 8
    assert saved_steps(stopped) == [6, 8]


def test_a_plateau_is_detected_across_a_stop(tmp_path, recipe, stop):
    settings = recipe("bradley_terry", plateau_steps=7, optimizer__learning_rate=1e-12)
    error, at = stop
    with pytest.raises(error):
        train(settings, tmp_path / "run", progress=at(5))
    with pytest.raises(TrainingError, match="loss plateau at chance"):
        train(settings, tmp_path / "run")
    assert train(settings.model_copy(update={"plateau_steps": 0}), tmp_path / "run")["steps"] == 8


@pytest.mark.parametrize("start", [0.7, 13.0])
def test_a_loss_that_falls_from_above_chance_is_no_plateau(start):
    """A reward model with a wide range of scores starts far above the loss at chance."""
    falling, same = [start * 0.95**step for step in range(100)], [start] * 10
    for steps in range(101):
        check_plateau(falling[:steps], 10, math.log(2.0))
    check_plateau(same[:9], 10, math.log(2.0))
    check_plateau(same, 10, None)
    with pytest.raises(TrainingError, match="loss plateau at chance"):
        check_plateau(same, 10, math.log(2.0))


def test_a_run_resumes_with_the_data_that_it_started_with_only(tmp_path, recipe, stop, comparisons):
    error, at = stop
    path = tmp_path / "rows.jsonl"
    text = comparisons.read_text()
    path.write_text(text)
    settings = recipe("bradley_terry", data__path=str(path))
    with pytest.raises(error):
        train(settings, tmp_path / "run", progress=at(5))
    path.write_text("".join(text.splitlines(keepends=True)[::-1]))
    with pytest.raises(RunError, match="other data"):
        train(settings, tmp_path / "run")
    path.write_text(text)
    assert train(settings, tmp_path / "run")["steps"] == 8


def test_the_optimizer_is_that_of_transformers(recipe):
    """Groups with and without weight decay, and fused AdamW, as transformers' Trainer makes them."""
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                 num_attention_heads=2, attention_bias=True)
    )  # fmt: skip
    settings = recipe("sft", optimizer__weight_decay=0.1).optimizer
    arguments = transformers.TrainingArguments(
        "x", weight_decay=0.1, learning_rate=settings.learning_rate, adam_beta2=0.95, use_cpu=True
    )
    theirs = transformers.Trainer(model, arguments).create_optimizer()
    ours = make_optimizer(model, settings)
    assert type(ours) is type(theirs)
    for own, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert [id(weight) for weight in own.pop("params")] == [id(weight) for weight in other.pop("params")]
        assert own == other
    for weight in model.parameters():
        weight.requires_grad = weight is model.lm_head.weight
    (group,) = make_optimizer(model, settings).param_groups
    assert group["weight_decay"] == 0.1


def test_a_cosine_ends_at_the_minimal_learning_rate(recipe):
    settings = recipe(
        "sft",
        optimizer__lr_scheduler_type="cosine_with_min_lr",
        optimizer__lr_scheduler_kwargs={"min_lr_rate": 0.1},
        optimizer__warmup_steps=0.25,
    ).optimizer
    rates = [*map(learning_rates(settings, 8), range(8))]
    cosine = [0.5 * (1 + math.cos(math.pi * done / 6)) for done in range(6)]
    assert rates == pytest.approx([1.5e-3, 3e-3, *(3e-3 * (0.1 + 0.9 * share) for share in cosine)])


@pytest.mark.parametrize("rate", [1e6, 1e30])
def test_divergence_stops_with_advice(tmp_path, recipe, rate):
    changes = {"optimizer__learning_rate": rate, "optimizer__warmup_steps": 0.0}
    with pytest.raises(TrainingError, match=r"step \d is (nan|inf), from 'records-64-.*learning_rate"):
        train(recipe("bradley_terry", **changes), tmp_path / "run")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory_names_the_longest_example_and_what_to_change(tmp_path, recipe, monkeypatch, error):
    def greedy(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(BradleyTerry, "loss", greedy)
        with pytest.raises(
            TrainingError, match=r"step 1; .*'records-.*memory\.max_tokens_per_microbatch.*longrm plan"
        ):
            train(recipe("bradley_terry"), tmp_path / "run")
    monkeypatch.setattr(running, "make_optimizer", greedy)
    with pytest.raises(TrainingError, match="before the first step"):
        train(recipe("bradley_terry"), tmp_path / "run")


class Tracker(transformers.TrainerCallback):
    logged: list = []  # noqa: RUF012 (transformers makes the object; the test reads the class)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logged.append((state.global_step, dict(logs)))


def test_trackers_receive_every_step(tmp_path, recipe, steps_of, ticking, monkeypatch, capsys):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "stub", Tracker)
    monkeypatch.setattr(running, "get_available_reporting_integrations", lambda: ["stub"])
    Tracker.logged.clear()
    train(recipe("bradley_terry", report_to=["stub"]), tmp_path / "run", clock=ticking(0.5))
    assert [step for step, _ in Tracker.logged] == list(range(1, 9))
    for record, (_, metrics) in zip(steps_of(tmp_path / "run"), Tracker.logged, strict=True):
        names = ("loss", "accuracy", "learning_rate", "grad_norm", "tokens")
        expected = {name: getattr(record, name) for name in names} | {"tokens_per_second": 2 * record.tokens}
        assert metrics.items() >= expected.items()
    assert capsys.readouterr().out == ""


def test_unknown_and_missing_trackers_are_named_before_any_work(tmp_path, recipe, monkeypatch):
    with pytest.raises(ConfigError, match="'wandbb'; did you mean 'wandb'?"):
        train(recipe("sft", report_to=["wandbb"]), tmp_path / "run")
    monkeypatch.setattr(running, "get_available_reporting_integrations", list)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        train(recipe("sft", report_to=["tensorboard"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_process_continues_before_a_checkpoint_is_there(tmp_path, recipe, monkeypatch):
    """Processes wait for each other between the checkpoint of a step and the next step."""
    seen = []
    monkeypatch.setattr(
        DistributedContext, "wait", lambda context: seen.append(("wait", *saved_steps(tmp_path / "run")))
    )
    train(
        recipe("bradley_terry", optimizer__max_steps=4, checkpoint__save_steps=2),
        tmp_path / "run",
        progress=lambda label, done, total, note="": seen.append((label, done)),
    )
    assert ("wait", 2) in seen[seen.index(("training", 2)) : seen.index(("training", 3))]
    assert seen.index(("wait", 2, 4)) < len(seen) - 1, "and once more at the end"


def test_a_finished_run_is_not_trained_again(finished, recipe, stop, results_of):
    folder, summary = finished
    before = results_of(folder)
    assert train(recipe("bradley_terry"), folder, progress=stop[1](1)) == summary
    assert results_of(folder) == before
    with pytest.raises(RunError, match="other settings"):
        train(recipe("bradley_terry", seed=2), folder)


def test_a_log_that_a_kill_cut_within_its_last_line_ends_equal(tmp_path, finished, recipe, stop, results_of):
    error, at = stop
    with pytest.raises(error):
        train(recipe("bradley_terry"), tmp_path / "run", progress=at(8))
    for name in ("steps.jsonl", "contexts.jsonl"):
        log = tmp_path / "run" / name
        whole = log.read_bytes()
        log.write_bytes(whole[: -len(whole.splitlines()[-1]) // 2])
    assert train(recipe("bradley_terry"), tmp_path / "run") == finished[1]
    assert results_of(tmp_path / "run") == results_of(finished[0])


CONSTANT = {"optimizer__lr_scheduler_type": "constant_with_warmup"}


def test_a_finished_training_with_a_constant_rate_continues_with_more_steps(tmp_path, recipe, results_of):
    once = train(recipe("bradley_terry", optimizer__max_steps=8, **CONSTANT), tmp_path / "once")
    assert train(recipe("bradley_terry", optimizer__max_steps=6, **CONSTANT), tmp_path / "run")["steps"] == 6
    assert train(recipe("bradley_terry", optimizer__max_steps=8, **CONSTANT), tmp_path / "run") == once
    assert results_of(tmp_path / "run") == results_of(tmp_path / "once")
    (extended,) = read_manifest(tmp_path / "run")["extended"]
    assert (extended["step"], extended["settings"]["optimizer"]["max_steps"]) == (6, 6)
    assert (tmp_path / "run/config.toml").read_text() == (tmp_path / "once/config.toml").read_text()
    with pytest.raises(RunError, match="optimizer.max_steps: 8 -> 6"):
        train(recipe("bradley_terry", optimizer__max_steps=6, **CONSTANT), tmp_path / "run")


def test_a_schedule_that_has_ended_is_continued_by_another_one_only(tmp_path, recipe, steps_of, results_of):
    run = tmp_path / "run"
    train(recipe("bradley_terry", optimizer__max_steps=6), run)
    before = results_of(run)
    for change, named in (
        ({}, 'optimizer.lr_scheduler_type = "cosine" has ended with max_steps = 6'),
        ({**CONSTANT, "optimizer__warmup_steps": 0.8}, r"optimizer\.warmup_steps covers 7 of 8 steps"),
        ({**CONSTANT, "seed": 2}, "seed: 0 -> 2"),
        ({**CONSTANT, "optimizer__weight_decay": 0.1}, "optimizer.weight_decay"),
    ):
        with pytest.raises(RunError, match=named):
            train(recipe("bradley_terry", **change), run)
        assert results_of(run) == before
    assert train(recipe("bradley_terry", optimizer__learning_rate=1e-3, **CONSTANT), run)["steps"] == 8
    rates = [record.learning_rate for record in steps_of(run)]
    assert rates[-3:] == [pytest.approx(3e-3 * (1 + math.cos(math.pi * 4 / 5)) / 2), 1e-3, 1e-3]


def test_more_epochs_continue_a_training_and_a_curriculum_does_not_start_again(tmp_path, recipe):
    epochs = {"optimizer__max_steps": None, **CONSTANT}
    assert (
        train(recipe("bradley_terry", optimizer__num_train_epochs=1, **epochs), tmp_path / "file")["steps"]
        == 3
    )
    assert (
        train(recipe("bradley_terry", optimizer__num_train_epochs=2, **epochs), tmp_path / "file")["steps"]
        == 6
    )
    world = {"data": {"world": {"tokens_per_step": 64}}, "curriculum": {"lengths": [32, 64]}, **CONSTANT}
    train(recipe("bradley_terry", optimizer__max_steps=2, **world), tmp_path / "world")
    with pytest.raises(RunError, match=r"curriculum\.ramp covers 4 of 8 steps, more than the 2"):
        train(recipe("bradley_terry", **world), tmp_path / "world")
    world["curriculum"]["ramp"] = 0.25
    assert train(recipe("bradley_terry", **world), tmp_path / "world")["steps"] == 8


def test_a_step_that_needs_more_memory_than_there_is_stops_before_the_first_one(
    tmp_path, recipe, monkeypatch
):
    settings = recipe("bradley_terry", memory__gradient_checkpointing=False)
    planned = plan_training(settings, "cpu").memory
    needed = planned.total - planned.process  # the process runs already
    monkeypatch.setattr(running, "available_memory", lambda: int(needed / 1.2))
    with pytest.raises(
        TrainingError,
        match=r"--set memory\.max_tokens_per_microbatch=\d+ .*reduces it to .*memory\.check=false",
    ):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_step_that_may_need_more_memory_than_there_is_warns(tmp_path, recipe, monkeypatch, caplog):
    settings = recipe("bradley_terry", memory__gradient_checkpointing=False)
    planned = plan_training(settings, "cpu").memory
    needed = planned.total - planned.process  # the process runs already
    monkeypatch.setattr(running, "available_memory", lambda: int(1.05 * needed))
    assert train(settings, tmp_path / "run")["steps"] == 8
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "memory, and" in warning


def test_gradient_checkpointing_that_is_on_by_default_changes_nothing_else(
    tmp_path, recipe, finished, results_of, monkeypatch, caplog
):
    settings = recipe("bradley_terry")
    caplog.set_level("INFO", "longrm")
    monkeypatch.setattr(running, "available_memory", lambda: 1)
    with pytest.raises(TrainingError):
        train(settings, tmp_path / "run")
    assert "gradient checkpointing is on: a step needs" in caplog.text
    train(settings.model_copy(update={"memory": MemorySettings(check=False)}), tmp_path / "run")
    assert results_of(tmp_path / "run") == results_of(finished[0])
    card = (tmp_path / "run/model/README.md").read_text()
    assert "gradient_checkpointing = true" in card
