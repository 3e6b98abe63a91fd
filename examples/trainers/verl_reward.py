"""Scores verl's rollouts with a longrm reward model; no server is needed.

python -m verl.trainer.main_ppo ... \
    reward.custom_reward_function.path=examples/trainers/verl_reward.py reward.num_workers=1

verl passes one completion per call, without its prompt: your data set must have the prompt, as text or messages, in
`extra_info["prompt"]`. Each of the `reward.num_workers` processes loads its own copy of the model; completions that
wait in one process are scored together. LONGRM_MODEL is the model.
"""

import asyncio
import os
from typing import Any

import longrm

REWARD = longrm.reward_function(os.environ["LONGRM_MODEL"])
UNSCORED = 0.0
"""The reward of a completion without a score: verl needs a number. `scored` in its metrics counts them."""


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any], **_: Any
) -> dict[str, float]:
    """The reward of one completion."""
    (reward,) = await asyncio.to_thread(REWARD, [extra_info["prompt"]], [solution_str])
    return {"score": UNSCORED if reward is None else reward, "scored": float(reward is not None)}
