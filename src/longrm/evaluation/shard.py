"""A shard of an evaluation: the part of its comparisons that one run folder of several judges."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator

from longrm.errors import ConfigError
from longrm.runs.logs import to_line
from longrm.runs.records import GoldRecord


@dataclass(frozen=True, order=True, slots=True)
class Shard:
    """Shard `number` of `count`, from 1; batches are dealt out in turn, so that each has lengths of every kind."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads I/N, such as 2/4.

        Raises:
            ConfigError: It is not written so, or there is no such shard.
        """
        found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise ConfigError(f"a shard is I/N with I from 1 to N, such as 2/4; got '{text[:40]}'")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def takes(self, batch: int) -> bool:
        """Whether a batch, counted from 0, is of this shard."""
        return batch % self.count == self.number - 1


ShardName = Annotated[str, AfterValidator(lambda text: str(Shard.parse(text)))]
"""A setting that names a shard, such as "2/4"."""


class DealtBatches:
    """The batches of a benchmark as they go by, and those of them that are of a shard.

    Attributes:
        shard: Which shard; None for all of them.
        ranks: The gold ranks of its comparisons by their ids, in the order of the benchmark.
    """

    def __init__(self, shard: Shard | None) -> None:
        self.shard = shard
        self.ranks: dict[str, tuple[int, ...] | None] = {}
        self._sizes: list[int] = []
        self._own = 0
        self._digest = hashlib.sha256()

    def take(self, batch: Sequence[GoldRecord]) -> int | None:
        """Sees the next batch; returns its number among those of the shard, from 0, or None for another one's."""
        number = len(self._sizes)
        self._sizes.append(len(batch))
        if self.shard is not None:
            for gold in batch:
                self._digest.update(to_line(gold))
            if not self.shard.takes(number):
                return None
        self.ranks.update((gold.id, gold.ranks) for gold in batch)
        self._own += 1
        return self._own - 1

    def check(self, bench: str) -> None:
        """Refuses a shard that is empty though the benchmark is not.

        Raises:
            ConfigError: It is.
        """
        batches = len(self._sizes)
        if batches and not self._own:
            raise ConfigError(
                f"shard {self.shard} is empty, for '{bench}' has {batches} batches: leave this one out, and merge the "
                f"first {batches}"
            )

    def facts(self) -> dict[str, Any]:
        """What the manifest of a shard tells of the whole: the sizes of all batches, and the digest of all gold."""
        return {"batches": self._sizes, "gold_sha256": self._digest.hexdigest()}
