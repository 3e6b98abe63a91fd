"""TRL's own GRPOTrainer trains a tiny random policy by the example, with the rewards that transformers alone gives."""

import json
import math
import re
import statistics
import zlib

import datasets
import pytest
import torch
import trl
from transformers import AutoModelForCausalLM

import longrm
from longrm.data import write
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.reward_models import JudgeSettings, RewardModel
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.scoring.scored_file import ScoreSettings
from longrm.scoring.selection import rank_file
from longrm.types import Judgment, Outcome, message_text, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.test_generative import Script

from .conftest import PROMPTS, plain_scores

# TRL 1.16 uses a name that transformers has renamed.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
SETTINGS = {
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8,
    "max_steps": 10,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
    "activation_checkpointing": False,
    "disable_tqdm": True,
    "seed": 0,
}

CPU = {"use_cpu": True, "bf16": False}
"""For trainers made here; those of examples/ look for a GPU."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "tiny"
    save(new_language_model(ModelShape(hidden=32, init_std=0.3), words_tokenizer(), seed=1), path)
    return path


@pytest.mark.parametrize("form", ["messages", "text"])
def test_grpo_trains_on_our_rewards(example, scorer, policy, tmp_path, form):
    prompts = PROMPTS if form == "text" else [[{"role": "user", "content": text}] for text in PROMPTS]
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    trainer = example("trl_grpo").train(
        str(policy), str(scorer), str(rows), str(tmp_path / "out"), **SETTINGS
    )
    logs = trainer._logs
    (name,) = logs["rewards"]
    assert name == scorer.name
    assert trainer.state.global_step == SETTINGS["max_steps"]
    given, written = [
        [[{"role": role, "content": text}] if isinstance(text, str) else list(text) for text in logs[column]]
        for column, role in (("prompt", "user"), ("completion", "assistant"))
    ]
    assert len(given) == 8, "TRL keeps the rows of the last step"
    truth = plain_scores(scorer, [[*prompt, *reply] for prompt, reply in zip(given, written, strict=True)])
    assert list(logs["rewards"][name]) == pytest.approx(truth, abs=1e-4)
    assert max(truth) - min(truth) > 1e-2
    steps = [entry for entry in trainer.state.log_history if f"{name}/unscored" in entry]
    assert [entry[f"{name}/unscored"] for entry in steps] == [0.0] * 10
    assert any(abs(advantage) > 0.1 for advantage in logs["advantages"])
    before = AutoModelForCausalLM.from_pretrained(policy).get_input_embeddings().weight
    assert (tmp_path / "out/model.safetensors").is_file()
    moved = (trainer.model.get_input_embeddings().weight - before).abs().max()
    assert torch.isfinite(moved)
    assert moved > 1e-3, "the policy has learned something"


class Halting(RewardModel):
    """Scores a completion by its length, and has none for about half of them."""

    name = "halting"

    def judge(self, queries):
        return [self.judgment([message_text(answer[0]) for answer in query.responses]) for query in queries]

    def judgment(self, texts):
        if any(zlib.crc32(text.encode()) % 2 for text in texts):
            return Judgment(Outcome.TOO_LONG, detail="too long")
        return Judgment(Outcome.ANSWERED, tuple(float(len(text)) for text in texts))


def test_grpo_skips_completions_without_a_score(example, policy, tmp_path):
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    settings = SETTINGS | {"max_steps": 1}
    trainer = example("trl_grpo").train(str(policy), Halting(), str(rows), str(tmp_path / "out"), **settings)
    logs = trainer._logs
    rewards, advantages = list(logs["rewards"]["halting"]), list(logs["advantages"])
    truth = [
        float("nan") if zlib.crc32(text.encode()) % 2 else float(len(text)) for text in logs["completion"]
    ]
    unscored = [math.isnan(reward) for reward in truth]
    assert rewards == pytest.approx(truth, nan_ok=True)
    assert any(unscored)
    assert not all(unscored)
    for group in (slice(0, 4), slice(4, 8)):
        scored = [reward for reward in truth[group] if not math.isnan(reward)]
        mean = sum(scored) / max(1, len(scored))
        spread = statistics.stdev(scored) if len(scored) > 1 else 0.0
        for reward, advantage in zip(truth[group], advantages[group], strict=True):
            expected = 0.0 if math.isnan(reward) else (reward - mean) / (spread + 1e-4)
            assert advantage == pytest.approx(expected, abs=1e-3)
    (entry,) = [entry for entry in trainer.state.log_history if "halting/unscored" in entry]
    assert entry["halting/unscored"] == pytest.approx(sum(unscored) / 8)


CHECKLISTS = [
    # Criteria without a weight, as `datasets` fills it in, and different numbers of them.
    {
        "rubrics": [{"criterion": "first", "weight": 3.0}, {"criterion": "second", "weight": None}],
        "target_words": 5,
    },
    {"rubrics": [{"criterion": "third", "weight": 1.0}], "target_words": None},
]


def points_of(criterion, text):
    """The verdict of the scripted judge: 0 or 10 points, by a digest of both."""
    return 10 * (zlib.crc32(f"{criterion}: {text.strip()}".encode()) % 2)


def test_grpo_trains_on_a_checklist_and_a_length(policy, tmp_path):
    judged = []

    def verdict(request):
        text = text_of(request.messages)
        (criterion,) = re.findall(r"<criterion>\n(.*)\n</criterion>", text)
        (response,) = re.findall(r"<response>\n(.*)\n</response>", text, re.DOTALL)
        judged.append((next(at for at, prompt in enumerate(PROMPTS) if prompt in text), criterion))
        return f"[[{points_of(criterion, response)}]]"

    judge = GenerativeRewardModel(Script(verdict), JudgeSettings(format="pointwise"))
    rows = [{"prompt": prompt, **columns} for prompt, columns in zip(PROMPTS, CHECKLISTS, strict=True)]
    reward = longrm.reward_function(judge, rubrics="item", length="item")
    steps = 3
    trainer = trl.GRPOTrainer(
        model=str(policy),
        reward_funcs=reward,
        args=trl.GRPOConfig(output_dir=str(tmp_path / "out"), **SETTINGS | CPU | {"max_steps": steps}),
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.train()
    assert set(judged) == {(0, "first"), (0, "second"), (1, "third")}, "each prompt has its own criteria"
    logs = trainer._logs  # the rows of the last step
    checklists, lengths = [], []
    for prompt, text in zip(logs["prompt"], logs["completion"], strict=True):
        columns = CHECKLISTS[PROMPTS.index(prompt)]
        weights = {one["criterion"]: one["weight"] or 1.0 for one in columns["rubrics"]}
        met = sum(weight * points_of(criterion, text) / 10 for criterion, weight in weights.items())
        checklists.append(met / sum(weights.values()))
        words, target = len(re.findall(r"[a-z0-9]+", text.lower())), columns["target_words"]
        if target is None:
            lengths.append(None)
        else:
            lengths.append(max(0.0, 1 - max((words / target - 1) / 3, (target / words - 1) / 2)))
    expected = [
        one if other is None else (one + other) / 2 for one, other in zip(checklists, lengths, strict=True)
    ]
    (given,) = logs["rewards"].values()
    assert list(given) == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) > 2, "the rewards differ"
    assert list(given) != pytest.approx(checklists, abs=1e-2), "the control: the length counts"
    entries = [one for one in trainer.state.log_history if f"{reward.__name__}/checklist" in one]
    assert len(entries) == steps
    known = [one for one in lengths if one is not None]
    terms = {"checklist": statistics.mean(checklists), "length": statistics.mean(known), "unscored": 0.0}
    for name, value in terms.items():
        assert entries[-1][f"{reward.__name__}/{name}"] == pytest.approx(value, abs=1e-6)
    before = AutoModelForCausalLM.from_pretrained(policy).get_input_embeddings().weight
    assert (trainer.model.get_input_embeddings().weight - before).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["best", "pairs"])
def test_trl_trainers_read_ranked_files(scorer, policy, tmp_path, form):
    data, out = tmp_path / "data.jsonl", tmp_path / "ranked.jsonl"
    write(data, generate(WorldPlan("records", 150, responses=4), 8, words_tokenizer()))
    kept = {"best": 1} if form == "best" else {"pairs": True}
    rank_file(ScoreSettings(model=str(scorer), data=str(data)), out, **kept)
    table = datasets.load_dataset("json", data_files=str(out), split="train")
    plain = {name: SETTINGS[name] for name in ("report_to", "save_strategy", "disable_tqdm")}
    plain |= {"max_steps": 1, "max_length": None, "activation_checkpointing": False, **CPU}
    kinds = [
        (trl.RewardTrainer, trl.RewardConfig, scorer),
        (trl.DPOTrainer, trl.DPOConfig, policy),
    ]
    if form == "best":
        kinds = [(trl.SFTTrainer, trl.SFTConfig, policy)]
    for make, config, model in kinds:
        trainer = make(str(model), args=config(str(tmp_path / "o"), **plain), train_dataset=table)
        trainer.train()
        assert trainer.state.global_step == 1
        assert math.isfinite(trainer.state.log_history[-1]["train_loss"])
