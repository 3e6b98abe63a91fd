"""Chunks of a long context as the arms of a bandit (LongMab-PO, arXiv 2508.13993)."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from longrm.clients.remote_settings import ModelName, Remote
from longrm.config import Config
from longrm.errors import ConfigError
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import JudgeSettings, ModelSettings

# Added to the rounds of a chunk, as in the authors' code: from round 2 on, new chunks come before all others.
_NEVER = 1e-6


class BanditSettings(Config):
    """How chunks are chosen and answers rated. The defaults are those of LongMab-PO, except for the reward.

    Attributes:
        rounds: Answers of every writer to a question.
        chunks: Chunks of the context that the writer sees in a round.
        chunk_size: Approximate tokens of a chunk at most.
        temperature: Of the writers.
        reward_model: Rates the answers: a scalar reward model, a judge with `judge.format = "pointwise"`,
            `likelihood:MODEL` or `baseline:NAME`. By default the document's metric (token F1 if it names none) compares
            them with the gold answer.
        rows: "candidates", all answers, or "pairs": the best and the worst answer of all writers, to the question about
            the whole context.
        model_args: How the reward model is loaded, and what it reads.
        judge: How the reward model is asked.
        remote: How a reward model behind HTTP is reached.
    """

    rounds: int = Field(30, ge=1)
    chunks: int = Field(4, ge=1)
    chunk_size: int = Field(1500, ge=8)
    temperature: float = Field(1.0, ge=0)
    reward_model: ModelName | None = None
    rows: Literal["candidates", "pairs"] = "candidates"
    model_args: ModelSettings = ModelSettings()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()


class ChunkBandit:
    """Chooses chunks by their upper confidence bounds; each chunk of a round gets the reward of its answer.

    The bound of a chunk after n rounds with rewards r_1 ... r_n, in round t:
        (prior + r_1 + ... + r_n) / (1 + n) + sqrt(2 ln t / n)
    So the prior counts as one reward. In round 1 it alone decides; then chunks that were never shown come first.
    """

    def __init__(self, priors: Sequence[float]) -> None:
        self.values = [*priors]  # the mean of prior and rewards, by chunk
        self.counts = [0] * len(self.values)
        self._round = 0

    def select(self, count: int) -> list[int]:
        """Begins a round: the chunks with the largest bounds, in reading order. Of equal ones the first is chosen."""
        self._round += 1
        explored = 2 * math.log(self._round)
        bounds = [
            value + math.sqrt(explored / (shown + _NEVER))
            for value, shown in zip(self.values, self.counts, strict=True)
        ]
        return sorted(sorted(range(len(bounds)), key=lambda arm: -bounds[arm])[:count])

    def update(self, arms: Sequence[int], reward: float) -> None:
        """Adds the reward of an answer, from 0 to 1, to each chunk that its writer saw."""
        for arm in arms:
            self.counts[arm] += 1
            self.values[arm] += (reward - self.values[arm]) / (self.counts[arm] + 1)


def check_rates_answers(model: RewardModel) -> None:
    """Raises `ConfigError` if a reward model needs several responses to rate one."""
    if model.sees_order or model.scale == "verdict":
        raise ConfigError(
            f"bandit.reward_model must score each answer on its own, and {model.name} compares answers; use a scalar "
            "reward model, or bandit.judge.format = 'pointwise'"
        )


def reward_of(score: float, earlier: Sequence[float], scale: str) -> float:
    """The score of an answer as a reward from 0 to 1.

    Points become shares of 10. Scores of other reward models have no common ends, so the reward is the share of the
    `earlier` scores that this one exceeds, ties counted half; 0.5 for the first one.
    """
    if scale == "share":
        return score
    if scale == "points":
        return score / 10
    if not earlier:
        return 0.5
    return sum((score > other) + 0.5 * (score == other) for other in earlier) / len(earlier)
