"""Scores verl's rollouts with a reward model of longrm; no server is needed.

python -m verl.trainer.main_ppo ... \
    reward.custom_reward_function.path=examples/verl_reward.py reward.num_workers=1

verl hands over one completion a call, and not its prompt: let your data set hold it, as text or messages, in
`extra_info["prompt"]`. Each of `reward.num_workers` processes loads a model of its own, and those that wait within one
process are scored together. LONGRM_MODEL names the model.
"""

import asyncio
import os
from typing import Any

import longrm

REWARD = longrm.reward_function(os.environ["LONGRM_MODEL"])
UNSCORED = 0.0
"""The reward of a completion without a score, for verl needs a number; `scored` tells them apart in its metrics."""


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any], **_: Any
) -> dict[str, float]:
    """The reward of one completion."""
    (reward,) = await asyncio.to_thread(REWARD, [extra_info["prompt"]], [solution_str])
    return {"score": UNSCORED if reward is None else reward, "scored": float(reward is not None)}
