"""What to generate (`WorldPlan`), and groups of comparisons: several questions about one generated context."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, nearest
from longrm.types import Comparison
from longrm.worlds.known_worlds import WORLDS

MOST_TOKENS, MOST_PER_GROUP, MOST_ROWS = 10_000_000, 10_000, 100_000_000
"""Limits of tokens per context and questions about it, which are held in memory, and of comparisons."""

Depth = float | Literal["uniform"]


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """What to generate.

    Attributes:
        world: A name of `WORLDS`.
        length: Tokens of the user message: the context and the longest question of the group. Contexts are as long as
            fits, and never longer.
        responses: N >= 2. Two are a pair; more are graded by how many of their N - 1 claims are right.
        depth: Where the facts in question are, 0 = start to 1 = end; with a number, all questions of a group are about
            the facts there. "uniform" spreads the questions evenly over all depths.
        per_group: Comparisons that share a context.
        seed: Other seeds give other contexts.
        unrelated: A control: questions and responses are those of the same plan without it, the context is that of the
            next group. No model can do better than chance.
        texts: Kinds of text, one of which is drawn for every context; empty for all. Only for worlds in prose.
        haystack: A folder or file of documents whose paragraphs surround the facts, in place of a kind of text.
        haystack_column: The column of the text in a haystack's JSON lines or CSV.

    Raises:
        ConfigError: A value is out of its range.
    """

    world: str
    length: int
    responses: int = 2
    depth: Depth = "uniform"
    per_group: int = 1
    seed: int = 0
    unrelated: bool = False
    texts: tuple[str, ...] = ()
    haystack: str | None = None
    haystack_column: str = "text"

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise ConfigError(f"no world '{self.world}'; {nearest(self.world, WORLDS)}")
        if self.depth != "uniform" and not (isinstance(self.depth, int | float) and 0 <= self.depth <= 1):
            raise ConfigError(f"depth must be from 0 (start) to 1 (end) or 'uniform', got {self.depth!r}")
        if not 1 <= self.length <= MOST_TOKENS:
            raise ConfigError(f"length must be from 1 to {MOST_TOKENS:,} tokens, got {self.length:,}")
        if not 1 <= self.per_group <= MOST_PER_GROUP:
            raise ConfigError(f"per_group must be from 1 to {MOST_PER_GROUP:,}, got {self.per_group:,}")
        WORLDS[self.world].check(self)

    @property
    def name(self) -> str:
        """The beginning of the ids of the plan's comparisons; it reveals nothing of the gold."""
        depth = "" if self.depth == "uniform" else f"-d{float(self.depth)}"
        texts = "".join(f"-{text}" for text in (*self.texts, *(["haystack"] if self.haystack else [])))
        control = "-unrelated" if self.unrelated else ""
        return f"{self.world}-{self.length}-{self.responses}{depth}{texts}-s{self.seed}{control}"

    @property
    def key(self) -> tuple[object, ...]:
        """The part of the random key that all worlds share, without the group's index."""
        depth = self.depth if self.depth == "uniform" else float(self.depth)
        return (self.world, self.length, self.responses, depth, self.per_group, self.seed)


def generate(plan: WorldPlan, n: int, tokenizer: Tokenizer) -> Iterator[Comparison]:
    """Yields `n` comparisons, `plan.per_group` per context; the last context may have fewer.

    Raises:
        ConfigError: n is too large, or the plan's length too short for its questions.
    """
    if n > MOST_ROWS:
        raise ConfigError(f"at most {MOST_ROWS:,} comparisons, got {n:,}")
    groups = (group(plan, index, tokenizer) for index in range(-(-n // plan.per_group)))
    return islice((comparison for members in groups for comparison in members), n)


def group(plan: WorldPlan, index: int, tokenizer: Tokenizer) -> list[Comparison]:
    """Makes group number `index` of a plan: comparisons about one context.

    The result depends only on the version of the worlds, the plan, the index, the tokenizer's counts and the
    documents of a haystack, so groups may be made in any order and on any machine.

    Raises:
        ConfigError: The plan's length is too short for its questions, the haystack too small for the length, or the
            tokenizer does not know the world's words.
    """
    return WORLDS[plan.world].group(plan, index, tokenizer)
