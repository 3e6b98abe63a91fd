"""Scores OpenRLHF's rollouts with a longrm reward model; no server is needed.

python -m openrlhf.cli.train_ppo_ray ... \
    --reward.remote_url examples/trainers/openrlhf_reward.py --data.label_key prompt

OpenRLHF passes one completion per call, after a prompt that is rendered for the policy. The reward model reads the
prompt from the label instead: set --data.label_key to the column of the prompt (text or messages). Each of the
`--vllm.num_engines` engines loads its own copy of the model; completions that wait in one engine are scored together.
LONGRM_MODEL is the model, LONGRM_END the end-of-turn token of the policy.
"""

import os
from typing import Any

import longrm

REWARD = longrm.reward_function(os.environ["LONGRM_MODEL"])
END = os.environ.get("LONGRM_END", "<|im_end|>")
UNSCORED = 0.0
"""The reward of a completion without a score: OpenRLHF needs a number. `scored` in its logs counts them."""


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """The reward of the one completion of a call."""
    (query,), (prompt,), (label,) = queries, prompts, labels
    if not query.startswith(prompt):
        raise ValueError(
            "the query does not start with the prompt; is the prompt longer than --data.max_len?"
        )
    completion = query.removeprefix(prompt)
    if completion.rstrip().endswith(END):  # some policies write a newline after it
        completion = completion.rstrip().removesuffix(END)
    (reward,) = REWARD([label], [completion])
    score = UNSCORED if reward is None else reward
    return {"rewards": score, "scores": score, "extra_logs": {"scored": float(reward is not None)}}
