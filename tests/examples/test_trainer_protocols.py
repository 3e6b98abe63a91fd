"""The examples called as their trainers call them.

verl, OpenRLHF, ms-swift and verifiers need a GPU's packages or versions of transformers that exclude ours. So these
are hand-written stand-ins of how verl 0.9.1, OpenRLHF 0.11.2, ms-swift 4.6.0 and verifiers 0.4.0 import and call what a
user gives them, written after reading their sources; TRL itself runs in `test_trl.py`.
"""

import asyncio
import inspect
import sys
import time
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch

from .conftest import ROWS, TOO_LONG, TRAINERS

pytestmark = pytest.mark.full


def watch(reward):
    """Records, for every call of the model, the number of completions of each query."""
    asked, judge = [], reward.model.judge

    def judging(queries):
        if not asked:
            time.sleep(0.2)  # until the other calls wait
        asked.append([len(query.responses) for query in queries])
        return judge(queries)

    reward.model.judge = judging
    return asked


def assert_shared(asked, rows):
    """Fewer prompts were read than rows, because rows that waited were scored together."""
    assert sum(map(sum, asked)) == rows
    assert sum(map(len, asked)) < rows, asked


async def all_at_once(*calls):
    return await asyncio.gather(*calls)


def verl(compute_score, completion, prompt):
    """One row of verl's naive reward manager, which may bind settings to the function."""

    async def configured(function, settings, **given):
        return await function(**given, **settings)

    assert inspect.iscoroutinefunction(compute_score)

    async def run():
        result = await partial(configured, compute_score, {})(
            data_source="file",
            solution_str=completion,
            ground_truth="",
            extra_info={"prompt": prompt, "num_turns": None, "rollout_reward_scores": {}},
        )
        return result["score"], dict(result)

    return run()


def test_verl(example, expected):
    module = example("verl_reward")
    asked = watch(module.REWARD)
    rows = [verl(module.compute_score, completion, prompt) for prompt, completion in ROWS]
    found = asyncio.run(all_at_once(*rows))
    assert [score for score, _ in found] == expected
    assert_shared(asked, len(ROWS))
    chat = [{"role": "user", "content": ROWS[0][0]}]
    assert asyncio.run(verl(module.compute_score, ROWS[0][1], chat))[0] == expected[0]
    _, extra = asyncio.run(verl(module.compute_score, TOO_LONG, ROWS[0][0]))
    assert extra == {"score": module.UNSCORED, "scored": 0.0}


def rendered(prompt):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


async def openrlhf(reward_func, prompt, completion, label):
    """One rollout of OpenRLHF's single-turn executor, for --reward.remote_url FILE.py."""
    chunks = await asyncio.gather(
        asyncio.to_thread(reward_func, [rendered(prompt) + completion], [rendered(prompt)], [label])
    )
    info = chunks[0]
    score = info.get("scores") if info.get("scores") is not None else info.get("rewards")
    logs = {key: torch.tensor([value]) for key, value in info["extra_logs"].items()}
    return torch.tensor([info["rewards"]]).shape, torch.tensor([score]).item(), logs


def test_openrlhf(example, expected):
    module = example("openrlhf_reward")
    asked = watch(module.REWARD)
    rows = [
        openrlhf(module.reward_func, prompt, f"{completion}<|im_end|>", prompt) for prompt, completion in ROWS
    ]
    found = asyncio.run(all_at_once(*rows))
    assert [score for _, score, _ in found] == expected
    assert {shape for shape, _, _ in found} == {(1,)}
    assert_shared(asked, len(ROWS))
    _, score, logs = asyncio.run(openrlhf(module.reward_func, ROWS[0][0], TOO_LONG, ROWS[0][0]))
    assert (score, logs["scored"].item()) == (module.UNSCORED, 0.0)
    for end in ("", "<|im_end|>\n", "<|im_end|> \n"):
        assert (
            asyncio.run(openrlhf(module.reward_func, ROWS[0][0], ROWS[0][1] + end, ROWS[0][0]))[1]
            == expected[0]
        )
    with pytest.raises(ValueError, match="prompt"):
        module.reward_func(["cut off"], ["the whole prompt"], ["label"])


@pytest.fixture
def ms_swift(monkeypatch):
    """A stand-in of `swift.rewards`: the base of reward functions, and their registry."""

    class ORM:
        def __init__(self, args=None, **kwargs):
            self.args = args

    package, rewards = ModuleType("swift"), ModuleType("swift.rewards")
    rewards.ORM, rewards.orms = ORM, {}
    package.rewards = rewards
    monkeypatch.setitem(sys.modules, "swift", package)
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    return rewards


def test_ms_swift(example, expected, ms_swift):
    example("ms_swift_plugin")
    function = ms_swift.orms["longrm"](args=SimpleNamespace())
    asked = watch(function.reward)
    completions = [completion for _, completion in ROWS] + [TOO_LONG]
    rows = [*ROWS, (ROWS[0][0], TOO_LONG)]
    messages = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        for prompt, completion in rows
    ]
    columns = {"messages": messages, "prompt_id": ["p"] * len(rows), "solution": [None] * len(rows)}
    output = function(completions, trainer_state=None, **columns)
    rewards = torch.tensor([reward if reward is not None else torch.nan for reward in output])
    assert rewards[:-1].tolist() == expected
    assert rewards[-1].isnan()
    assert asked[0] == [5, 4]


async def verifiers(path, prompt, reply):
    """One trace scored by a plugged function: found by path, called by the names of its parameters."""
    file, _, name = path.rpartition(":")
    function = getattr(verifiers.load(file), name)
    task = SimpleNamespace(prompt=prompt, prompt_text=prompt, system_prompt=None)
    available = {"task": task, "trace": SimpleNamespace(last_reply=reply)}
    given = {name: available[name] for name in inspect.signature(function).parameters if name in available}
    return float(await function(**given))


def test_verifiers(example, expected):
    module = example("verifiers_reward")
    asked = watch(module.REWARD)
    verifiers.load = lambda file: module
    path = f"{TRAINERS / 'verifiers_reward.py'}:longrm_reward"
    found = asyncio.run(all_at_once(*[verifiers(path, prompt, reply) for prompt, reply in ROWS]))
    assert found == expected
    assert_shared(asked, len(ROWS))
    with pytest.raises(ValueError, match="no score"):
        asyncio.run(verifiers(path, ROWS[0][0], TOO_LONG))
