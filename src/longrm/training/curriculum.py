"""Lengths that grow while training goes on: short contexts first, the long ones once the task is known."""

from typing import Annotated

from pydantic import Field, model_validator

from longrm.config import Config
from longrm.rng import Draws
from longrm.worlds.generator import MOST_TOKENS


class CurriculumSettings(Config):
    """How context lengths grow.

    Attributes:
        lengths: Context lengths in tokens, rising. Each but the last is trained on for as many steps.
        ramp: Share of all steps after which the last length is reached.
        short_share: Share of the later steps that go back to the first length, so that it is not forgotten.
    """

    lengths: tuple[Annotated[int, Field(ge=1, le=MOST_TOKENS)], ...] = Field((128,), min_length=1)
    ramp: float = Field(0.5, gt=0.0, le=1.0)
    short_share: float = Field(0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _rising(self) -> "CurriculumSettings":
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"curriculum.lengths must rise, got {list(self.lengths)}")
        return self


class Curriculum:
    """Which length each step trains on; a pure function of the step."""

    def __init__(self, settings: CurriculumSettings, *, steps: int, seed: int) -> None:
        self._settings = settings
        self._ramp_steps = settings.ramp * steps
        self._seed = seed

    def length(self, step: int) -> int:
        """The context length of a step, counted from 0."""
        lengths = self._settings.lengths
        climbed = int(step / self._ramp_steps * (len(lengths) - 1))
        back = Draws("curriculum", self._seed, step).fraction() < self._settings.short_share
        return lengths[0] if back else lengths[min(climbed, len(lengths) - 1)]
