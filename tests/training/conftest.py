import gc
import itertools
import json
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp

from longrm.data import write
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.logs import Log
from longrm.runs.records import StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

TINY = {"layers": 2, "hidden": 16}


class Stop(Exception):
    pass


@pytest.fixture(scope="session")
def stored():
    """Reads the tensors of a checkpoint, by name."""

    def read(checkpoint):
        metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        found = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in metadata.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch notes that one process reads
            dcp.load(found, checkpoint_id=checkpoint)
        return found

    return read


@pytest.fixture(scope="session")
def stored_weights(stored):
    """Reads the weights of a checkpoint, by name."""

    def read(checkpoint):
        tensors = stored(checkpoint)
        return {name.removeprefix("weight."): tensors[name] for name in tensors if name.startswith("weight.")}

    return read


@pytest.fixture(scope="session", autouse=True)
def _quick_collections():
    """Every training collects garbage when it starts; without this, torch's modules cost half a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def comparisons(tmp_path_factory):
    """Twelve comparisons of three responses each."""
    path = tmp_path_factory.mktemp("comparisons") / "comparisons.jsonl"
    write(path, generate(WorldPlan("records", 64, responses=3, seed=3), 12, words_tokenizer()))
    return path


@pytest.fixture(scope="session")
def demonstrations(comparisons, tmp_path_factory):
    """The best response of each comparison, to be imitated."""
    path = tmp_path_factory.mktemp("demonstrations") / "demonstrations.jsonl"
    rows = [json.loads(line) for line in comparisons.read_text().splitlines()]
    imitated = [
        {"id": row["id"], "prompt": row["prompt"], "completion": row["responses"][row["ranks"].index(1)]}
        for row in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in imitated))
    return path


@pytest.fixture(scope="session")
def trajectories(comparisons, tmp_path_factory):
    """The responses of each comparison as the steps of a trajectory, in TRL's format; the best one is right."""
    path = tmp_path_factory.mktemp("trajectories") / "trajectories.jsonl"
    rows = [json.loads(line) for line in comparisons.read_text().splitlines()]
    steps = [
        {
            "id": row["id"],
            "prompt": row["prompt"],
            "completions": row["responses"],
            "labels": [rank == 1 for rank in row["ranks"]],
        }
        for row in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in steps))
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a small language model."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shape = ModelShape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.1)
    save(new_language_model(shape, words_tokenizer(), seed=5), folder)
    return folder


@pytest.fixture(scope="session")
def recipe(comparisons, demonstrations, trajectories, base):
    """Makes a small recipe; `a__b=value` changes one setting. Adapters are trained on the small language model."""

    def make(objective, **changes):
        path = {"sft": demonstrations, "prm": trajectories}.get(objective, comparisons)
        tree = {
            "objective": objective,
            "model": {"new": dict(TINY)},
            "data": {"path": str(path), "per_step": 4},
            "optimizer": {"max_steps": 8, "learning_rate": 3e-3},
            "checkpoint": {"save_steps": 3},
        }
        changed = {name.replace("__", "."): value for name, value in changes.items()}
        if any(key.startswith("model.lora") for key in changed):
            tree["model"] = {"path": str(base)}
        return TrainingSettings.resolve(None, tree | changed)

    return make


@pytest.fixture(scope="session")
def finished(recipe, tmp_path_factory):
    """The run folder of the plain Bradley-Terry recipe, and its summary; to be read, or copied."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train(recipe("bradley_terry"), folder)


@pytest.fixture
def stop():
    """The error that interrupts a run, and the progress that raises it after a step."""

    def at(step):
        def progress(label, done, total, note=""):
            if label == "training" and done == step:
                raise Stop

        return progress

    return Stop, at


@pytest.fixture
def ticking():
    """Makes clocks that advance by so many seconds per call."""
    return lambda seconds: itertools.count(0.0, seconds).__next__


@pytest.fixture
def steps_of():
    """The steps that a run folder logs."""
    return lambda folder: list(Log(folder / "steps.jsonl", StepRecord))


@pytest.fixture
def results_of():
    """All bytes of a run folder that do not depend on clocks or on the path of the folder."""

    def read(folder):
        logs = ("steps.jsonl", "contexts.jsonl", "summary.json", "evaluations.jsonl", "reference.jsonl")
        paths = [folder / name for name in logs] + sorted((folder / "model").rglob("*.safetensors"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.exists()}

    return read
