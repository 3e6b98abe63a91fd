"""The tokens and rows that a recipe reads, compared with those of the training itself."""

import pytest

from longrm.data import write
from longrm.runs.progress import no_progress
from longrm.training.plan.workload import workload_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

TINY = {"layers": 1, "hidden": 16}


@pytest.mark.parametrize("weights", [(0.5, 2.0), (1.0, 1.0)])
def test_sources_count_as_often_as_they_are_read(tmp_path, weights):
    files = []
    for number, (length, weight) in enumerate(zip((400, 64), weights, strict=True)):
        path = tmp_path / f"{length}.jsonl"
        write(path, generate(WorldPlan("records", length, seed=number), 8, words_tokenizer()))
        files.append({"path": str(path), "weight": weight})
    recipe = TrainingSettings.model_validate(
        {"objective": "bradley_terry"}
        | {
            "model": {"new": TINY},
            "data": {"sources": files, "per_step": 2},
            "optimizer": {"epochs": 1},
        }
    )
    planned = workload_of(recipe, 4096, no_progress)
    done = train(recipe, tmp_path / "run")
    assert planned.steps == done["steps"]
    assert planned.rows == pytest.approx(8 * sum(weights))
    read = sum(count * shape.tokens for shape, count in planned.trees.items())
    assert read == pytest.approx(done["tokens"], rel=0.02)
