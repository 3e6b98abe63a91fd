"""Groups of comparisons: several questions about one generated context."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, nearest
from longrm.types import Comparison
from longrm.worlds.contexts import Depth
from longrm.worlds.known_worlds import WORLDS

MOST_TOKENS, MOST_PER_GROUP, MOST_ROWS = 10_000_000, 10_000, 100_000_000
"""What is generated at most: tokens of a context and questions about it, which are held in memory, and comparisons."""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """What to generate.

    Attributes:
        world: A name of `WORLDS`.
        length: Tokens of the user message: the context and the longest question of the group. Never more, and
            so few less that no further sentence fits.
        responses: N >= 2. Two are a pair; more are graded by how many of their N - 1 claims are right.
        depth: Where the block of facts in question stands, 0 = start to 1 = end; with a number, all questions
            of a group are about the one block there. "uniform" spreads the questions evenly over all depths.
        per_group: Comparisons that share a context.
        seed: Other seeds give other contexts.
        unrelated: A control: the questions and responses are those of the same plan without it, the context
            is that of the next group. No model can do better than chance.
        texts: Kinds of text, of which every context is drawn to be one; none names all. Of prose worlds alone.
        haystack: A folder or file of documents whose paragraphs surround the facts, in place of a kind of text.
        haystack_column: The column of the text, in JSON lines of the haystack.

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
        if self.length < 1 or self.per_group < 1:
            raise ConfigError(f"length and per_group must be positive, got {self.length}, {self.per_group}")
        if self.length > MOST_TOKENS or self.per_group > MOST_PER_GROUP:
            raise ConfigError(
                f"length can be {MOST_TOKENS:,} tokens and per_group {MOST_PER_GROUP:,} at most, for a group is made "
                f"in memory; got {self.length:,} and {self.per_group:,}"
            )
        WORLDS[self.world].check(self)

    @property
    def name(self) -> str:
        """Begins the ids of the plan's comparisons; tells nothing of the gold."""
        depth = "" if self.depth == "uniform" else f"-d{float(self.depth)}"
        texts = "".join(f"-{text}" for text in (*self.texts, *(["haystack"] if self.haystack else [])))
        control = "-unrelated" if self.unrelated else ""
        return f"{self.world}-{self.length}-{self.responses}{depth}{texts}-s{self.seed}{control}"


def generate(plan: WorldPlan, n: int, tokenizer: Tokenizer) -> Iterator[Comparison]:
    """Yields `n` comparisons, `plan.per_group` a context; the last context may have fewer.

    Raises:
        ConfigError: So many are never made, or the plan's length is too short for its questions.
    """
    if n > MOST_ROWS:
        raise ConfigError(f"{n:,} comparisons are more than are made, which is {MOST_ROWS:,}; ask for fewer")
    groups = (group(plan, index, tokenizer) for index in range(-(-n // plan.per_group)))
    return islice((comparison for members in groups for comparison in members), n)


def group(plan: WorldPlan, index: int, tokenizer: Tokenizer) -> list[Comparison]:
    """Makes group number `index` of a plan: comparisons about one context.

    The result depends on the version of the worlds, the plan, the index, the tokenizer's counts and the documents of
    the haystack alone, so groups may be made in any order and on any machine.

    Raises:
        ConfigError: The plan's length is too short for its questions, the haystack for the length, or the tokenizer
            does not know the world's words.
    """
    return WORLDS[plan.world].group(plan, index, tokenizer)
