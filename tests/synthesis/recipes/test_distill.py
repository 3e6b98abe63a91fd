import json
from pathlib import Path

import pytest

from longrm.data import read_demonstrations, write
from longrm.errors import DataError
from longrm.synthesis.recipes.distill import RECIPE, read_policy_prompts, synthesize
from longrm.types import text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

from ...clients.conftest import said, server  # noqa: F401  # the server is a fixture


@pytest.fixture
def recipe(put):
    rows = [
        {
            "id": f"d{number}",
            "context": f"The code of room {number} is {number}7{number}1. " + "Walls stand here. " * 80,
            "question": f"What is the code of room {number}?",
            "answer": f"The code of room {number} is {number}7{number}1",
        }
        for number in range(12)
    ]
    return {
        "documents.path": str(put("documents.jsonl", *rows)),
        "documents.license": "mit",
        "policy.model": "simulated:0.5",
        "policy.name": "pupil",
        "reward_model": "baseline:overlap",
        "rollouts": 6,
    }


def golds(path):
    rows = map(json.loads, Path(path).read_text().splitlines())
    return {row["id"]: row["answer"] for row in rows}


def of(recipe, **more):
    return RECIPE.resolve(None, recipe | more)


def test_the_answers_that_stand_in_the_text_become_demonstrations(tmp_path, recipe):
    manifest = synthesize(of(recipe), tmp_path / "out")
    rows = [row.demonstration for row in read_demonstrations(tmp_path / "out" / "rows")]
    assert len(rows) == manifest["counts"]["rows"] >= 6
    right = golds(recipe["documents.path"])
    assert all(text_of(row.completion) == right[row.id] for row in rows)  # overlap sees which answer is there
    assert all(text_of(row.prompt).endswith(row.metadata["question"]) for row in rows)
    assert rows[0].metadata["reward_model"] == "baseline:overlap"
    assert manifest["models"] == {"policy": "pupil", "reward model": "baseline:overlap"}
    steps = manifest["counts"]["steps"]
    assert steps["rollouts"]["in"] == 12 * 6
    assert steps["best"]["in"] == 12


def test_prompts_of_every_kind_are_read(tmp_path, put):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 3, words_tokenizer()))
    pairs = list(read_policy_prompts(tmp_path / "pairs.jsonl"))
    assert len(pairs) == 3
    assert all(task.context and task.question for task in pairs)
    golden = put("golden.jsonl", {"prompt": "Say it.", "completion": "It.", "task": "chat"})
    (task,) = read_policy_prompts(golden)
    assert (text_of(task.messages), task.metadata) == ("Say it.", {"task": "chat"})
    alone = put(
        "alone.jsonl", {"prompt": "One?"}, {"id": "b", "prompt": [{"role": "user", "content": "Two?"}]}
    )
    assert [(task.id, text_of(task.messages)) for task in read_policy_prompts(alone)] == [
        ("row-1", "One?"),
        ("b", "Two?"),
    ]
    with pytest.raises(DataError, match=r"wrong.jsonl, line 1, field 'prompt"):
        list(read_policy_prompts(put("wrong.jsonl", {"query": "One?"})))


def test_a_reward_model_behind_http_is_named_and_its_answers_are_counted(tmp_path, recipe, server):  # noqa: F811
    server.script = lambda seen, number: said(f"Fine.\n\n[[{len(seen.text) % 10}]]", usage=(100, 7))
    name = f"openai:{server.url}#tiny"
    for _ in range(2):  # the second finds everything in the cache, and the account as it was
        manifest = synthesize(of(recipe, reward_model=name), tmp_path / "out")
        asked = {"answers": len(server.seen), "prompt_tokens": 100 * len(server.seen)}
        assert manifest["spending"][name].items() >= asked.items()
        assert manifest["models"] == {"policy": "pupil", "reward model": name}
        assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert len(server.seen) > 12
    lines = (tmp_path / "out" / "spending.jsonl").read_text().splitlines()
    assert [json.loads(line)["model"] for line in lines] == [name] * len(server.seen)
