"""Bradley-Terry training end to end: on generated worlds and on files."""

import json

import pytest
import torch
from safetensors.torch import load_file

from longrm.data import write
from longrm.errors import DataError
from longrm.runs.logs import Log
from longrm.runs.records import ContextRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

TINY = {"layers": 2, "hidden": 16}
WORLD = {"name": "records", "responses": [2, 4], "tokens_per_step": 512, "responses_per_step": 12}


def settings(**changes):
    tree = {
        "objective": "bradley_terry",
        "model": {"new": TINY},
        "data": {"world": WORLD},
        "curriculum": {"lengths": [160, 200], "ramp": 0.5},
        "optimizer": {"steps": 8, "learning_rate": 3e-3},
        "checkpoint": {"every": 3},
    }
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    return TrainingSettings.resolve(None, tree | changed)


@pytest.fixture(scope="module")
def on_a_world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training") / "run"
    return folder, train(settings(), folder)


def weights_of(folder):
    return torch.cat([weight.flatten() for weight in load_file(folder / "model/model.safetensors").values()])


@pytest.mark.parametrize("step", [1, 6])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, on_a_world, stop, results_of, step):
    error, at = stop
    with pytest.raises(error):
        train(settings(), tmp_path / "run", progress=at(step))
    assert train(settings(), tmp_path / "run") == on_a_world[1]
    assert results_of(tmp_path / "run") == results_of(on_a_world[0])


def test_another_seed_trains_another_model(tmp_path, on_a_world):
    train(settings(seed=1, optimizer__steps=1), tmp_path / "run")
    assert not torch.equal(weights_of(tmp_path / "run"), weights_of(on_a_world[0]))


def test_the_log_has_every_step_and_its_contexts(on_a_world, steps_of):
    folder, summary = on_a_world
    steps = steps_of(folder)
    assert [record.step for record in steps] == list(range(1, 9))
    assert summary["tokens"] == sum(record.tokens for record in steps)
    assert {record.length for record in steps} > {steps[0].length}, "the curriculum moved"
    rates = [record.learning_rate for record in steps]
    assert rates[0] == max(rates) == pytest.approx(3e-3)  # one step of warm-up, which learns
    assert rates[-1] < rates[2]
    records = Log(folder / "contexts.jsonl", ContextRecord)
    contexts = [digest for record in records for digest in record.digests]
    assert len(contexts) == len(set(contexts)), "no context is used twice"


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, seed=3), 5, words_tokenizer()))
    return path


def from_file(path, **changes):
    plain = {"data": {"path": str(path), "per_step": 2}, "curriculum": None, "optimizer__steps": None}
    return settings(**plain | {"optimizer__epochs": 1} | changes)


def changed(path, number, **values):
    """Changes one row of a file; returns its id."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[number] = {key: value for key, value in (rows[number] | values).items() if value is not None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows[number]["id"]


def test_an_epoch_over_a_file_reads_every_row_once(tmp_path, pairs):
    train(from_file(pairs, optimizer__epochs=2), tmp_path / "run")
    steps = [record.digests for record in Log(tmp_path / "run/contexts.jsonl", ContextRecord)]
    assert len(steps) == 6
    first, second = ([digest for digests in half for digest in digests] for half in (steps[:3], steps[3:]))
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 5
    assert first != second, "every epoch has an order of its own"


def test_rows_with_ties_only_stop_or_are_skipped(tmp_path, pairs):
    name = changed(pairs, 2, ranks=[1, 1])
    with pytest.raises(DataError, match=f"'{name}'"):
        train(from_file(pairs), tmp_path / "run")
    data = train(from_file(pairs, data__on_bad_row="skip"), tmp_path / "skipped")["data"]
    assert (data["used"], data["tied"]) == (4, 1)


def test_margins_do_not_cause_a_plateau(tmp_path, pairs):
    """With a margin, equal scores have a higher loss than chance: no sign that nothing is learned."""
    for number in range(5):
        changed(pairs, number, metadata={"margin": 5.0})
    done = train(
        from_file(pairs, plateau_steps=2, optimizer__learning_rate=1e-9),
        tmp_path / "run",
    )
    assert done["data"]["margin"] == 5
    assert done["loss"] > 1.0
