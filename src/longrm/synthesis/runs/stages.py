"""What the recipes of both stages say."""

from typing import Self

from pydantic import model_validator

from longrm.synthesis.inputs import Inputs
from longrm.synthesis.models import Model
from longrm.synthesis.runs.course import Recipe
from longrm.synthesis.short_to_long_settings import ShortToLong


class StageRecipe(Recipe, Inputs, ShortToLong):
    """What the recipes of both stages say.

    Attributes:
        finder: Names the critical chunks where `find = "model"`; by default the judge, or the first of several.
        tokenizer: The target tokenizer, a folder, file or Hub id: that of the model that will be trained. "words"
            counts words and punctuation marks.
    """

    finder: Model | None = None
    tokenizer: str = "words"

    @model_validator(mode="after")
    def _asks_its_finder(self) -> Self:
        if self.finder is not None and self.find != "model":
            raise ValueError('a finder is asked only with find = "model"')
        return self
