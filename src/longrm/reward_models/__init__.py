"""Reward models of every kind behind one protocol."""

from longrm.errors import ConfigError
from longrm.reward_models.baselines import BASELINES, Baseline
from longrm.reward_models.protocol import RewardModel

__all__ = ["RewardModel", "load"]


def load(model: str) -> RewardModel:
    """Loads a reward model by its name.

    Args:
        model: A folder or Hub id of a one-label sequence classifier, or `baseline:NAME`.

    Raises:
        ConfigError: An unknown baseline.
        ModelError: A folder or Hub id that cannot be loaded; the message says why.
    """
    kind, colon, name = model.partition(":")
    if colon and kind == "baseline":
        if name not in BASELINES:
            raise ConfigError(f"no baseline '{name}'; known: {', '.join(BASELINES)}")
        return Baseline(name)
    # Imported late: everything but a local model works without torch.
    from longrm.reward_models.discriminative import DiscriminativeRewardModel

    return DiscriminativeRewardModel.load(model)
