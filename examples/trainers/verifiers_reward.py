"""Scores traces of verifiers (0.4 or later) with a longrm reward model; no server is needed.

As a setting of the task, in the TOML of an evaluation or of prime-rl:

[env.taskset.task.rewards.longrm]
fn = "examples/trainers/verifiers_reward.py:longrm_reward"
weight = 1.0

LONGRM_MODEL is the model.
"""

import asyncio
import os
from typing import Any

import longrm

REWARD = longrm.reward_function(os.environ["LONGRM_MODEL"])


async def longrm_reward(task: Any, trace: Any) -> float:
    """The reward of the last reply to the task's prompt; raises where it has no score, which fails the rollout."""
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    prompt = [*system, {"role": "user", "content": task.prompt_text}]
    (reward,) = await asyncio.to_thread(REWARD, [prompt], [trace.last_reply])
    if reward is None:
        raise ValueError(f"{REWARD.__name__} gave no score for the reply; see the log")
    return reward
