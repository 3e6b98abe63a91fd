"""Rewards a judge that OpenRLHF trains for its verdicts.

longrm synthesize judge-prompts --set source=file:pairs.jsonl --set tokenizer=JUDGE --out runs/prompts
python -m openrlhf.cli.train_ppo_ray ... \
    --reward.remote_url examples/trainers/openrlhf_judge.py --data.prompt_dataset runs/prompts/rows \
    --data.input_key prompt --data.label_key gold --data.apply_chat_template

OpenRLHF passes one completion and its gold verdict per call, for prompts of the pairwise or the listwise format. Terms
that need more (`consistent`, `solved`, `brief`, and `correct` of the pointwise format) do not apply. LONGRM_END is the
end-of-turn token of the judge.
"""

import os
import re
from typing import Any

import longrm

REWARD = longrm.verdict_reward(correct=1.0, format=0.1)
END = os.environ.get("LONGRM_END", "<|im_end|>")


def reward_func(
    queries: list[str], prompts: list[str], labels: list[str], **_: Any
) -> dict[str, float | dict[str, float]]:
    """The reward of the one completion of a call, and its terms for OpenRLHF's logs."""
    (query,), (prompt,), (gold,) = queries, prompts, labels
    if not query.startswith(prompt):
        raise ValueError(
            "the query does not start with the prompt; is the prompt longer than --data.max_len?"
        )
    completion = query.removeprefix(prompt).rstrip().removesuffix(END)
    letters = re.findall(r"[A-Z]", gold)
    row = {
        "gold": gold,
        "format": "pairwise" if len(letters) == 1 else "listwise",
        "order": range(max(2, len(letters))),
        "id": "",
    }
    (score,) = REWARD.judge([row], [completion], [None])
    logs = {**score.terms, "unparsed": float(not score.verdict)}
    return {"rewards": score.reward, "scores": score.reward, "extra_logs": logs}
