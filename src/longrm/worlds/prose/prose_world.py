"""Worlds in prose: an entry of the registry, and how groups of comparisons are made from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.rng import Rng
from longrm.types import Comparison, Criterion
from longrm.worlds.comparisons import ending_of, world_comparison
from longrm.worlds.prose.prose_context import PlacedFact, ProseDraft
from longrm.worlds.prose.tasks import Case, Names, Point
from longrm.worlds.prose.texts import text_kinds

if TYPE_CHECKING:
    from longrm.worlds.generator import WorldPlan

PROSE_VERSION = "2"
"""Part of every random key; raise it with any change of what prose worlds write."""

_MOST_CASES = 12
_NUMBERS = {2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True)
class ProseWorld:
    """A world whose facts are plain sentences in prose.

    Attributes:
        case: The task: draws so many points of one form.
        asks: What is asked, for `longrm world --list`.
        similar_to: Similar benchmarks, likewise.
        near: Points of a case if two responses are compared.
        share: The share of the length that further points of one case fill; 0 for only the points that questions need.
        parts: Points that a pair is asked at once, each a criterion of its rubrics; the worse response has one wrong.
        most_responses: The largest N.
        mixed: The facts and decoys of a point are in any order in a stretch of the text, up to half of it, whose size
            and order do not depend on the depth; otherwise its facts are in order, and the last one is at the depth.
    """

    case: Callable[[Names, int], Case]
    asks: str
    similar_to: str
    near: int = 4
    share: float = 0.0
    parts: int = 1
    most_responses: int = 5
    mixed: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Empty: the `words` tokenizer does not know prose."""
        return ()

    def check(self, plan: "WorldPlan") -> None:
        """Refuses a plan that this world cannot generate.

        Raises:
            ConfigError: It has too many responses, or an unknown kind of text.
        """
        if not 2 <= plan.responses <= self.most_responses:
            most = f"2 to {self.most_responses}" if self.most_responses > 2 else "only 2"
            raise ConfigError(f"{plan.world} can rank {most} responses, got {plan.responses}")
        text_kinds(plan.texts, plan.haystack, plan.haystack_column)

    def group(self, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> list[Comparison]:
        """Makes a group of comparisons about one context; see `longrm.worlds.generator.group`."""
        asked = _Scene(self, plan, index, tokenizer)
        shown = _Scene(self, plan, index + 1, tokenizer) if plan.unrelated else asked
        ending = max((ending_of(question.text) for question in asked.questions), key=tokenizer.count)
        context = shown.draft.fit(plan.length, ending)
        return [
            world_comparison(
                plan,
                index,
                number,
                context=context.text,
                question=question.text,
                responses=question.responses,
                ranks=question.ranks,
                evidence=[context.facts[fact] for fact in question.facts] if shown is asked else (),
                depth=question.depth,
                rubrics=question.rubrics,
                text=shown.kind.title,
                **question.metadata,
            )
            for number, question in enumerate(asked.questions)
        ]


@dataclass(frozen=True, slots=True)
class _ProseQuestion:
    """A question, its responses in random order with their ranks, the numbers of the facts that decide, their depth.

    If it asks several things at once each is a criterion, and `metadata` has the ranks by each.
    """

    text: str
    responses: tuple[str, ...]
    ranks: tuple[int, ...]
    facts: tuple[int, ...]
    depth: float
    rubrics: tuple[Criterion, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


class _Scene:
    """The facts of context number `index` of a plan, their places, and the questions about them."""

    def __init__(self, world: ProseWorld, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> None:
        kinds = text_kinds(plan.texts, plan.haystack, plan.haystack_column)
        digests = (kind.digest for kind in kinds)
        key: tuple[object, ...] = ("longrm prose worlds", PROSE_VERSION, *plan.key, index, *digests)
        self._plan, self._parts, self._mixed = plan, world.parts, world.mixed
        self._depth = None if plan.depth == "uniform" else float(plan.depth)  # None for any
        self.kind = Rng(*key, "kind").choice(kinds)
        if not reads_prose(tokenizer):
            raise ConfigError(
                f"the world '{plan.world}' is plain prose, which this tokenizer does not know (words knows records and "
                "chain only): name your model's, such as --tokenizer MODEL, or probe.tokenizer"
            )
        self._cases = self._draw_cases(
            world, Names(Rng(*key, "names"), tokenizer, self.kind.occurs), tokenizer
        )
        self._points = [point for case in self._cases for point in case.points]
        # What pairs ask about: every point, then every twin, each with the number of the point that states its facts.
        twins = [(number, point.twin) for number, point in enumerate(self._points) if point.twin]
        self._asked = [*enumerate(self._points), *twins]
        if self._depth is not None and not world.mixed:
            del self._asked[1:]  # only the first point is at the depth
        self._ends = self._draw_ends(Rng(*key, "depths"))
        rng = Rng(*key, "places")
        places = _mixed if world.mixed else _rising
        placed = [
            PlacedFact(fact, place)
            for point, end in zip(self._points, self._ends, strict=True)
            for fact, place in zip(point.stated, places(len(point.stated), end, rng), strict=True)
        ]
        self.draft = ProseDraft(self.kind, placed, Rng(*key, "text"), tokenizer)
        ask = self._graded if plan.responses > 2 else self._checklist if world.parts > 1 else self._pair
        rng = Rng(*key, "questions")
        self.questions = [ask(number, rng) for number in range(plan.per_group)]

    def _draw_cases(self, world: ProseWorld, names: Names, tokenizer: Tokenizer) -> list[Case]:
        """Draws the cases of the context.

        Usually one. For pairs at any depth, as many as give every question its own facts within a third of the
        length. If the world fills a share of the length, one case of that size.
        """
        plan = self._plan
        near = world.near if plan.responses == 2 else self._graded_points
        if world.share:
            some = world.case(names, near)
            room = int(world.share * plan.length * near / _fact_tokens(some, tokenizer))
            return [world.case(names, max(near, min(room, names.left)))]
        if plan.responses > 2:
            return [world.case(names, near)]
        wanted = -(-plan.per_group // world.near) if self._depth is None or world.mixed else 1
        cases = [world.case(names, world.near)]
        held = most = _fact_tokens(cases[0], tokenizer)
        while len(cases) < min(wanted, _MOST_CASES) and 3 * (held + most) <= plan.length:
            cases.append(world.case(names, world.near))
            tokens = _fact_tokens(cases[-1], tokenizer)
            held, most = held + tokens, max(most, tokens)
        return cases

    def _draw_ends(self, rng: Rng) -> list[float]:
        """Draws the depth of every point: the given one if it is asked about, else any."""
        count = len(self._points)
        if self._plan.responses > 2:
            depth = rng.fraction() if self._depth is None else self._depth
            asked = [depth, *(depth * rng.fraction() for _ in range(self._graded_points - 1))]
            return [*asked, *(rng.fraction() for _ in range(count - len(asked)))]
        ends = [(stratum + rng.fraction()) / count for stratum in rng.order(range(count))]
        if self._depth is None:
            return ends
        return [self._depth] * count if self._mixed else [self._depth, *ends[1:]]

    def _pair(self, number: int, rng: Rng) -> _ProseQuestion:
        """Asks about one point after another; at a given depth only about those there."""
        turn, place = divmod(number, len(self._asked))
        (asked, point), size = self._asked[place], len(self._cases[0].points)
        others = [
            self._points[(asked // size) * size + (asked + step) % size].value for step in range(1, size)
        ]
        others = [value for value in others if value != point.value]
        wrong = point.wrong or others[turn % len(others)]
        ranked = [(1, point.value), (2, wrong)]
        rng.shuffle(ranked)
        gold = {"answer": [point.value, point.also] if point.also else point.value}
        return _ProseQuestion(
            f"Question: {point.question}",
            tuple(point.answer.format(value) for _, value in ranked),
            tuple(rank for rank, _ in ranked),
            self._facts_of(asked, point),
            round(self._ends[asked], 4),
            metadata={"subtype": point.error} if point.error else gold,
        )

    def _checklist(self, number: int, rng: Rng) -> _ProseQuestion:
        """Asks for several points at once; the worse response is wrong about the one that `_pair` would ask about.

        The wrong value is the right one of a point that is not asked for, and its place in the response is random.
        """
        turn, asked = divmod(number, len(self._points) if self._depth is None else 1)
        size = len(self._cases[0].points)
        ring = [self._points[(asked // size) * size + (asked + step) % size] for step in range(size)]
        points, place = ring[1 : self._parts], rng.below(self._parts)
        points.insert(place, ring[0])
        wrong = ring[self._parts + turn % (size - self._parts)].value
        said = [[point.value for point in points] for _ in range(2)]
        said[1][place] = wrong
        ranked = [(1, said[0]), (2, said[1])]
        rng.shuffle(ranked)
        ranks = tuple(rank for rank, _ in ranked)
        texts = [
            [point.answer.format(one) for point, one in zip(points, of, strict=True)] for _, of in ranked
        ]
        count = _NUMBERS[self._parts]
        return _ProseQuestion(
            f"Answer {count} questions, with a sentence each. {' '.join(point.question for point in points)}",
            tuple(map(" ".join, texts)),
            ranks,
            self._facts_of(asked),
            round(self._ends[asked], 4),
            tuple(Criterion(f"It answers as the text does: {point.question}") for point in points),
            {"criterion_ranks": [list(ranks) if at == place else [1, 1] for at in range(self._parts)]},
        )

    def _graded(self, number: int, rng: Rng) -> _ProseQuestion:
        """Asks for N - 1 points of the case; every response is about its own points.

        The response of rank r makes r - 1 wrong claims at random places among its N - 1. Wrong values that are right
        for other points are traded along a ring, so that no value is claimed twice and only the context reveals the
        ranks; see `longrm.worlds.sentence_world`.
        """
        del number
        responses = self._plan.responses
        points = self._points[: self._graded_points]
        order = list(range(len(points)))
        rng.shuffle(order)
        claimed = [order[rank * (responses - 1) : (rank + 1) * (responses - 1)] for rank in range(responses)]
        wrong = [index for rank, own in enumerate(claimed) for index in own[:rank]]
        rng.shuffle(wrong)
        values = {index: point.value for index, point in enumerate(points)}
        for index, other in zip(wrong, wrong[1:] + wrong[:1], strict=True):
            values[index] = points[index].wrong or points[other].value
        ranked = list(enumerate(claimed, 1))
        rng.shuffle(ranked)
        for _, own in ranked:
            rng.shuffle(own)
        return _ProseQuestion(
            f"Question: {self._cases[0].question_many.format(number=_NUMBERS[responses - 1])}",
            tuple(" ".join(points[index].answer.format(values[index]) for index in own) for _, own in ranked),
            tuple(rank for rank, _ in ranked),
            tuple(fact for index in range(len(points)) for fact in self._facts_of(index)),
            round(self._ends[0], 4),
        )

    @property
    def _graded_points(self) -> int:
        """How many points N > 2 responses make claims about: N - 1 each."""
        return self._plan.responses * (self._plan.responses - 1)

    def _facts_of(self, owner: int, asked: Point | None = None) -> tuple[int, ...]:
        """The numbers of the facts that decide a point, or its twin, among all facts of the context."""
        first = sum(len(point.stated) for point in self._points[:owner])
        stated = self._points[owner].stated
        return tuple(first + stated.index(fact) for fact in (asked or self._points[owner]).facts)


def reads_prose(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer knows plain English; `words` does not."""
    return tokenizer.unk_id is None or tokenizer.unk_id not in tokenizer.encode("Plain prose, such as this.")


def _rising(count: int, end: float, rng: Rng) -> list[float]:
    """Draws the places of a point's facts: the last one at `end`, the others anywhere before it."""
    return [*sorted(end * rng.fraction() for _ in range(count - 1)), end]


def _mixed(count: int, depth: float, rng: Rng) -> list[float]:
    """Draws the places of a point's facts in any order in a stretch of the text.

    The stretch has up to half of the text. At depth 0 it begins where the text does; at depth 1 they end together.
    """
    if count == 1:
        return [depth]
    stretch = 0.5 * rng.fraction()
    within = [0.0, 1.0, *(rng.fraction() for _ in range(count - 2))]
    rng.shuffle(within)
    return [depth * (1 - stretch) + stretch * place for place in within]


def _fact_tokens(case: Case, tokenizer: Tokenizer) -> int:
    return sum(tokenizer.count(f" {fact.text}") for point in case.points for fact in point.stated)
