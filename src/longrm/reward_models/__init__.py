"""Reward models of every kind behind one protocol."""

from longrm.reward_models.baselines import BASELINES, Baseline
from longrm.reward_models.kinds import KINDS, Model, load, loaded, local_models, name_of, pinned
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.reward_functions import RewardFunction, reward_function, token_rewards
from longrm.reward_models.settings import JudgeSettings, ModelSettings

__all__ = [
    "BASELINES",
    "KINDS",
    "Baseline",
    "JudgeSettings",
    "Model",
    "ModelSettings",
    "RewardFunction",
    "RewardModel",
    "load",
    "loaded",
    "local_models",
    "name_of",
    "pinned",
    "reward_function",
    "token_rewards",
]
