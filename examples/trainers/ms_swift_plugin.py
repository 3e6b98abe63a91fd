"""Registers a longrm reward model as a reward function of ms-swift; no server is needed.

swift rlhf --rlhf_type grpo ... --external_plugins examples/trainers/ms_swift_plugin.py --reward_funcs longrm

LONGRM_MODEL names the model.
"""

import os
from typing import Any

from swift.rewards import ORM, orms

import longrm


class LongRM(ORM):
    """Scores the last message of each conversation as the response to those before it."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        super().__init__(args, **kwargs)
        self.reward = longrm.reward_function(os.environ["LONGRM_MODEL"])

    def __call__(
        self, completions: list[str], messages: list[list[dict[str, Any]]], **columns: Any
    ) -> list[float | None]:
        """One reward per completion; None where there is no score, which ms-swift skips."""
        return self.reward([turns[:-1] for turns in messages], completions)


orms["longrm"] = LongRM
