"""The tokens and rows that a recipe reads, compared with those of the training itself."""

import json

import pytest

from longrm.data import write
from longrm.errors import ConfigError
from longrm.judging import load_format
from longrm.judging.judge_prompts import judge_prompt_rows
from longrm.modeling.shapes import TreeShape
from longrm.runs.logs import Log
from longrm.runs.progress import no_progress
from longrm.runs.records import RolloutRecord
from longrm.training.plan.workload import workload_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.training.world_judgments import TEMPLATES
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


@pytest.fixture(scope="module")
def judge_prompts(tmp_path_factory):
    """Eight comparisons in both orders: 16 prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    format = load_format("pairwise", template=TEMPLATES["pairwise"])
    rows = [
        row
        for comparison in generate(WorldPlan("records", 200, per_group=1), 8, words_tokenizer())
        for row in judge_prompt_rows(comparison, format, tokenizer=words_tokenizer())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def grpo(data, **changes):
    tree = {
        "objective": "grpo",
        "model": {"new": {**TINY, "tokenizer": "judge_words"}},
        "data": data,
        "loss": {"beta": 0.1},  # groups with equal rewards are computed, too
        "rollouts": {"num_generations": 4, "max_tokens": 5},
    }
    return TrainingSettings.resolve(None, tree | changes)


@pytest.mark.parametrize("iterations", [1, 2])
def test_rollouts_are_those_of_the_training(judge_prompts, tmp_path, iterations):
    recipe = grpo(
        {"path": str(judge_prompts), "per_step": 4},
        **{"optimizer.epochs": 1, "rollouts.num_iterations": iterations},
    )
    planned, done = workload_of(recipe, 4096, no_progress), train(recipe, tmp_path / "run")
    records = list(Log(tmp_path / "run" / "rollouts.jsonl", RolloutRecord))
    assert planned.steps == done["steps"] == 4 * iterations
    assert planned.rows == len(records) == len({record.id for record in records}) == 16
    assert planned.tokens == pytest.approx(done["tokens"], rel=0.02)
    # Both orders of a comparison share their context.
    apart = iterations * sum(record.length + 4 * 5 for record in records)
    assert planned.tokens < 0.9 * apart
    assert all(len(tree.branches) == 8 for tree in planned.trees)
    assert max(tree.tokens for tree in planned.largest.trees) == planned.longest_row.tokens
    assert len(planned.largest.trees) == 2  # of four prompts


def test_rollouts_of_a_world(tmp_path):
    recipe = grpo(
        {"world": {"completions": ["pairwise"], "tokens_per_step": 256, "responses_per_step": 4}},
        **{
            "curriculum.lengths": [64, 128],
            "optimizer.steps": 8,
            "rollouts.num_iterations": 2,
            "rollouts.max_tokens": 8,
        },
    )
    planned, done = workload_of(recipe, 4096, no_progress), train(recipe, tmp_path / "run")
    records = list(Log(tmp_path / "run" / "rollouts.jsonl", RolloutRecord))
    assert planned.rows == len(records)
    assert planned.tokens == pytest.approx(done["tokens"], rel=0.1)


def test_stated_prompts_have_the_judgments_of_the_recipe():
    stated = {"plan": {"rows": [{"rows": 10, "prompt": 1000}]}}
    planned = workload_of(grpo({"path": "nowhere.jsonl", "per_step": 2}, **stated), None, no_progress)
    assert dict(planned.trees) == {TreeShape(1000, (5, 5, 5, 5)): 10}
    assert (planned.steps, planned.rows, planned.response_tokens) == (5, 10, 200)
    with pytest.raises(ConfigError, match="response"):
        grpo({"path": "nowhere.jsonl"}, plan={"rows": [{"rows": 10, "prompt": 1000, "response": 3}]})
    with pytest.raises(ConfigError, match="response"):
        grpo({"path": "nowhere.jsonl"}, objective="sft", loss={}, rollouts=None, **stated)
