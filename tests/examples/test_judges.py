"""The examples that train judges, called as their trainers call them.

TRL's own trainer runs. verl and OpenRLHF are not installed here: hand-written stand-ins call the examples as verl 0.9.1
and OpenRLHF 0.11.2 do, and where the packages can be imported, the functions of theirs that call a reward run, too.
"""

import asyncio
import importlib.util
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch

import longrm
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.synthesis.recipes.judge_prompts import RECIPE, synthesize
from longrm.types import message_text
from longrm.worlds.words_tokenizer import words_tokenizer
from tests.examples.test_trl import SETTINGS

from .conftest import TRAINERS

pytestmark = pytest.mark.full

TEXTS = [
    "B is wrong. [[A]]",
    "[[B]]",
    "So [[A]] it is",
    "I cannot say.",
    "<think>[[B]]</think>\n[[A]]<|im_end|>",
]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Rows of two formats, from the smallest world."""
    out = tmp_path_factory.mktemp("prompts") / "run"
    cells = [{"lengths": [64], "groups": 4, "per_group": 1}]
    settings = {"source": "probe", "tokenizer": "judge_words", "probe.cells": cells}
    settings |= {"formats": ["pairwise", "listwise"]}
    synthesize(RECIPE.resolve(None, settings), out)
    return out / "rows"


@pytest.fixture(scope="module")
def rows(prompts):
    return list(datasets.load_dataset(str(prompts), split="train"))


@pytest.fixture
def expected(rows):
    """The reward of every row and text."""
    reward = longrm.verdict_reward(correct=1.0, format=0.1)
    texts = [text.removesuffix("<|im_end|>") for text in TEXTS]
    pairs = [(row, text) for row in rows for text in texts]
    scores = [
        reward.judge([row], [text.replace("[[A]]", f"[[{ranked(row)}]]")], [None])[0] for row, text in pairs
    ]
    assert {round(score.reward, 3) for score in scores} == {0.0, 0.1, 1.0, 1.1}
    return [score.reward for score in scores]


def ranked(row):
    """How the first response is preferred in the row's format."""
    return "A" if row["format"] == "pairwise" else "A > B"


def written(row):
    return [text.replace("[[A]]", f"[[{ranked(row)}]]") for text in TEXTS]


def test_verl(example, rows, expected):
    module = example("verl_judge")
    table = datasets.Dataset.from_list(rows).map(module.to_verl)
    found = []
    for row in table:
        for text in written(row):
            result = module.compute_score(
                data_source=row["data_source"],
                solution_str=text.removesuffix("<|im_end|>"),  # verl skips special tokens
                ground_truth=row["reward_model"]["ground_truth"],
                extra_info={**row["extra_info"], "num_turns": None, "rollout_reward_scores": {}},
            )
            assert result.keys() == {"score", "correct", "format", "unparsed"}
            found.append(result["score"])
    assert found == pytest.approx(expected)


def test_openrlhf(example, rows, expected):
    module = example("openrlhf_judge")
    found = []
    for row in rows:
        prompt = f"<|im_start|>user\n{row['prompt'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        for text in written(row):
            info = module.reward_func([prompt + text], [prompt], [row["gold"]])
            assert info["rewards"] == info["scores"]
            assert info["extra_logs"].keys() == {"correct", "format", "unparsed"}
            found.append(info["scores"])
    assert found == pytest.approx(expected)
    with pytest.raises(ValueError, match="prompt"):
        module.reward_func(["cut off"], ["the whole prompt"], ["A"])


def test_the_reward_manager_of_verl(rows, expected, tmp_path):
    """Its own loader of custom functions, and its default manager, which calls the function for every rollout."""
    naive = pytest.importorskip("verl.experimental.reward_loop.reward_manager.naive")
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.reward import get_custom_reward_fn

    spec = importlib.util.spec_from_file_location("verl_judge", TRAINERS / "verl_judge.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = {"path": str(TRAINERS / "verl_judge.py"), "name": "compute_score", "reward_kwargs": {}}
    config = OmegaConf.create(
        {"reward": {"custom_reward_function": function}, "custom_reward_function": function}
    )
    characters = SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)))
    manager = naive.NaiveRewardManager(config, characters, get_custom_reward_fn(config))

    async def reward(row, text):
        ids = torch.tensor([[*map(ord, text.removesuffix("<|im_end|>"))]])
        given = module.to_verl(row)
        data = DataProto.from_single_dict(
            {
                "responses": ids,
                "attention_mask": torch.ones_like(ids),
                **{name: as_objects(given[name]) for name in ("data_source", "reward_model", "extra_info")},
            }
        )
        return (await manager.run_single(data))["reward_score"]

    def as_objects(value):
        objects = np.empty(1, dtype=object)
        objects[0] = value
        return objects

    loop = manager.loop
    found = [loop.run_until_complete(reward(row, text)) for row in rows for text in written(row)]
    assert found == pytest.approx(expected)


def test_the_executor_of_openrlhf(rows, expected):
    """Its executor loads the file, renders prompts as its data set does, and calls the function for every rollout."""
    agent = pytest.importorskip("openrlhf.utils.agent")
    executor = agent.SingleTurnAgentExecutor(str(TRAINERS / "openrlhf_judge.py"))

    class Characters:
        def __call__(self, text, **_):
            return {"input_ids": torch.tensor([[*map(ord, text)]])}

        def decode(self, ids, **_):
            return "".join(map(chr, ids))

    class Engine:
        async def generate(self, prompt_ids, parameters, multi_modal_data=None):
            output = SimpleNamespace(token_ids=[*map(ord, self.text)], finish_reason="stop", logprobs=None)
            return SimpleNamespace(outputs=[output])

    engine, parameters = Engine(), SimpleNamespace(max_tokens=100, logprobs=None)

    async def reward(row, text):
        engine.text = text
        prompt = f"<|im_start|>user\n{row['prompt'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        output = await executor.execute(prompt, row["gold"], parameters, 100_000, Characters(), engine)
        return output["reward"]

    found = [asyncio.run(reward(row, text)) for row in rows for text in written(row)]
    assert found == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_trl(example, prompts, rows, tmp_path):
    path = tmp_path / "judge"
    save(
        new_language_model(ModelShape(hidden=32, init_std=0.3), words_tokenizer(verdicts=True), seed=1), path
    )
    settings = SETTINGS | {"max_steps": 8, "gradient_accumulation_steps": 1}
    trainer = example("trl_judge").train(str(path), str(prompts), str(tmp_path / "out"), **settings)
    assert trainer.state.global_step == 8
    assert longrm.load(str(tmp_path / "out"), judge={"max_tokens": 8}).name.endswith("out")
    logs = trainer._logs
    reward = longrm.verdict_reward(**example("trl_judge").WEIGHTS)
    by_prompt = {row["prompt"][0]["content"]: row for row in rows}
    given = [by_prompt[prompt[0]["content"]] for prompt in logs["prompt"]]
    texts = [message_text(completion[0]) for completion in logs["completion"]]
    assert len({tuple(row["order"]) for row in given}) == 2, "both orders are in a batch"
    assert len({row["id"] for row in given}) == 1
    scores = reward.judge(given, texts, [None] * len(given))
    assert list(logs["rewards"]["verdict"]) == pytest.approx([score.reward for score in scores])
    logged = [entry for entry in trainer.state.log_history if "verdict/correct" in entry]
    assert len(logged) == 8
    assert {entry["verdict/omitted_consistent"] for entry in logged} == {0.0}
    assert all(0 <= entry["verdict/unparsed"] <= 1 for entry in logged)
