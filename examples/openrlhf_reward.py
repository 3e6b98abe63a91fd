"""Scores OpenRLHF's rollouts with a reward model of longrm; no server is needed.

python -m openrlhf.cli.train_ppo_ray ... \
    --reward.remote_url examples/openrlhf_reward.py --data.label_key prompt

OpenRLHF hands over one completion a call, behind a prompt that is rendered for the policy. What the reward model reads
comes from the label: let --data.label_key name the column of the prompt, as text or messages. Each of
`--vllm.num_engines` engines loads a model of its own; completions that wait within one are scored together.
LONGRM_MODEL names the model, and LONGRM_END what the policy ends its completions with.
"""

import os
from typing import Any

import longrm

REWARD = longrm.reward_function(os.environ["LONGRM_MODEL"])
END = os.environ.get("LONGRM_END", "<|im_end|>")
UNSCORED = 0.0
"""The reward of a completion without a score, for OpenRLHF needs a number; `scored` tells them apart in its logs."""


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """The reward of the one completion that OpenRLHF hands over a call."""
    (query,), (prompt,), (label,) = queries, prompts, labels
    if not query.startswith(prompt):
        raise ValueError(
            "the query does not begin with the prompt: is the prompt longer than --data.max_len?"
        )
    completion = query.removeprefix(prompt)
    if completion.rstrip().endswith(END):  # some policies write a line break behind it
        completion = completion.rstrip().removesuffix(END)
    (reward,) = REWARD([label], [completion])
    score = UNSCORED if reward is None else reward
    return {"rewards": score, "scores": score, "extra_logs": {"scored": float(reward is not None)}}
