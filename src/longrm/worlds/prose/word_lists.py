"""Names, values and sayings of facts in prose, read from `facts.toml`."""

import tomllib
from importlib.resources import files
from typing import NamedTuple

_FACTS = tomllib.loads((files(__package__) / "facts.toml").read_text("utf-8"))
_VALUES: dict[str, tuple[str, ...]] = {sort: tuple(words.split()) for sort, words in _FACTS["values"].items()}

SURNAMES: tuple[str, ...] = tuple(_FACTS["surnames"].split())
FIRST_NAMES: tuple[str, ...] = tuple(_FACTS["first_names"].split())
ANIMALS, CITIES, CROPS, GOODS, CODEWORDS = (
    _VALUES[sort] for sort in ("animals", "cities", "crops", "goods", "codewords")
)


class Family(NamedTuple):
    """Facts whose values are of one sort; see `facts.toml`."""

    noun: str
    values: tuple[str, ...]
    sayings: tuple[tuple[str, str], ...]


FAMILIES = tuple(
    Family(one["noun"], _VALUES[one["values"]], tuple((says, asks) for says, asks in one["sayings"]))
    for one in _FACTS["families"]
)
