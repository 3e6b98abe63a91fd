"""The world `trajectory`: an agent answers requests about records that the results before them state.

A trajectory is a chain of steps. Every result brings new records and one request, about any record so far; the agent's
turn answers it. One step is wrong, and only its record reveals it. Answers do not depend on each other, so the steps
after the wrong one are right again, and labeled so.

The tokenizer decides which of two kinds is generated:

| tokenizer | records | the wrong value |
|---|---|---|
| `words` | sentences of `records`; results are messages of the user | of another entity of the same result |
| any other | two values each, in prose; calls and results of tools | the other of the same record |

A right and a wrong value are drawn in the same way, so neither how often, where or in which sentences a value occurs
reveals which it is. With `words` the right value is the one that occurs with the name; in prose both do.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ContextLengthError
from longrm.rng import Rng
from longrm.types import Message, Tool, Trajectory, text_of
from longrm.worlds.prose.prose_world import reads_prose
from longrm.worlds.prose.word_lists import CITIES, CROPS, FIRST_NAMES, SURNAMES
from longrm.worlds.sentence_world import filler_sentences
from longrm.worlds.vocabulary import ANSWER, ENTITIES, QUESTION, RECORDS, VALUES

VERSION = "1"
"""Part of every random key; raise it with any change of what this world writes."""

MOST_TOKENS, MOST_PER_GROUP = 262_144, 10_000
"""Limits; prose has names for 14,000 records."""

_LEAST_RECORDS = 4  # of a result, so that a request has a choice of earlier ones, too


@dataclass(frozen=True, slots=True)
class TrajectoryPlan:
    """What to generate.

    Attributes:
        length: Tokens of the whole trajectory as the tokenizer's chat template renders it, with its tools; without a
            template, of its text. Results are as long as fits, and trajectories never longer.
        steps: The fewest and the most steps; any number of them that fits the length is equally likely.
        wrong_share: The share of trajectories that have a wrong step, which is any step with equal probability.
        per_group: Trajectories with the same requests and results; each draws its own wrong step.
        seed: Other seeds give other trajectories.
    """

    length: int
    steps: tuple[int, int] = (4, 12)
    wrong_share: float = 0.75
    per_group: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.steps
        for name, given, least, most in (
            ("length", self.length, 1, MOST_TOKENS),
            ("steps", low, 1, high),
            ("steps", high, low, len(ENTITIES) // _LEAST_RECORDS),
            ("wrong_share", self.wrong_share, 0, 1),
            ("per_group", self.per_group, 1, MOST_PER_GROUP),
        ):
            if not least <= given <= most:
                raise ConfigError(f"{name} must be from {least:,} to {most:,}, got {given:,}")

    @property
    def key(self) -> tuple[object, ...]:
        """The part of the random key that all groups share."""
        return ("longrm trajectories", VERSION, self.length, *self.steps, self.seed)


def trajectories(plan: TrajectoryPlan, n: int, tokenizer: Tokenizer) -> Iterator[Trajectory]:
    """Yields `n` trajectories, `plan.per_group` of a group; the last group may have fewer."""
    groups = (trajectory_group(plan, index, tokenizer) for index in range(-(-n // plan.per_group)))
    return islice((one for members in groups for one in members), n)


def trajectory_group(plan: TrajectoryPlan, index: int, tokenizer: Tokenizer) -> list[Trajectory]:
    """Makes group number `index` of a plan: trajectories that may differ in one step each.

    The result depends only on the version, the plan, the index and the tokenizer. `metadata["depths"]` has, for every
    step, the distance back to the record that decides it, as a share of all tokens; `depth` is that of the wrong step.

    Raises:
        ContextLengthError: The plan's length is too short for its fewest steps.
    """
    scene = _fit(plan, index, tokenizer)
    depths = scene.depths(tokenizer)
    known = {"task": "trajectory", "length": plan.length, "seed": plan.seed, "depths": depths}
    group, found = f"trajectory-{plan.length}-s{plan.seed}-{index:06d}", []
    for number in range(plan.per_group):
        rng = Rng(*plan.key, index, "wrong", number)
        wrong = rng.below(len(scene.requests)) if rng.fraction() < plan.wrong_share else None
        prompt, steps = scene.messages(wrong)
        labels = tuple(-1.0 if at == wrong else 1.0 for at in range(len(steps)))
        metadata = known if wrong is None else {**known, "depth": depths[wrong]}
        name = f"{group}-{number}"
        found.append(Trajectory(name, group, prompt, steps, labels, wrong is None, scene.tools, metadata))
    return found


@dataclass(frozen=True, slots=True)
class _Request:
    """What a result asks about record number `record` of all, and the two values, one of which a step names."""

    record: int
    question: str
    answer: str  # with one {} for the value
    right: str
    wrong: str
    call: dict[str, str]  # arguments of the answer as a call, but for the value; empty for an answer in words


@dataclass(frozen=True, slots=True)
class _Scene:
    """The results of a trajectory, each with its request."""

    task: str
    joint: str
    results: list[list[str]]
    requests: list[_Request]
    tools: tuple[Tool, ...] = ()

    def messages(self, wrong: int | None) -> tuple[tuple[Message, ...], tuple[tuple[Message, ...], ...]]:
        """The prompt, which has the first result, and the steps, of which number `wrong` names the wrong value."""
        results = zip(self.results, self.requests, strict=True)
        texts = [f"{self.joint.join(lines)}\n\n{request.question}" for lines, request in results]
        steps, called = list[tuple[Message, ...]](), dict[str, Any]()
        for number, request in enumerate(self.requests):
            value = request.wrong if number == wrong else request.right
            turn: dict[str, Any] = {"role": "assistant", "content": request.answer.format(value)}
            # A result follows the call that asked for it; without tools the user writes it.
            result = [{**called, "content": texts[number]}] if number else []
            called = {"role": "user"}
            if self.tools and number < len(self.requests) - 1:
                name, arguments = "next_request", {}
                if request.call:
                    name, arguments = "record_answer", {**request.call, "value": value}
                    turn["content"] = ""
                call = {"name": name, "arguments": arguments}
                turn["tool_calls"] = [{"id": f"call_{number + 1}", "type": "function", "function": call}]
                called = {"role": "tool", "tool_call_id": f"call_{number + 1}", "name": name}
            steps.append((*result, turn))
        return ({"role": "user", "content": f"{self.task}{texts[0]}"},), tuple(steps)

    def tokens(self, tokenizer: Tokenizer) -> int:
        """Tokens of the whole trajectory with any wrong step, as `TrajectoryPlan.length` counts them."""
        prompt, steps = self.messages(None)
        messages = [*prompt, *(message for step in steps for message in step)]
        with_template = tokenizer.chat_template is not None
        text = tokenizer.render(messages, tools=self.tools) if with_template else text_of(messages)
        more = (tokenizer.count(f" {one.wrong}") - tokenizer.count(f" {one.right}") for one in self.requests)
        return tokenizer.count(text) + max(0, *more)

    def depths(self, tokenizer: Tokenizer) -> list[float]:
        """How far back the record of every step is, as a share of all tokens."""
        total, ends, answered = tokenizer.count(self.task), list[int](), list[int]()
        for lines, request in zip(self.results, self.requests, strict=True):
            for line in lines:
                total += tokenizer.count(f"{line}{self.joint}")
                ends.append(total)
            total += tokenizer.count(request.question)
            answered.append(total)
            total += tokenizer.count(request.answer)
        places = zip(answered, self.requests, strict=True)
        return [round((place - ends[request.record]) / total, 4) for place, request in places]


def _fit(plan: TrajectoryPlan, index: int, tokenizer: Tokenizer) -> _Scene:
    """The longest trajectory that has at most the plan's length, to one or two records."""
    write, (low, high) = _prose if reads_prose(tokenizer) else _words, plan.steps

    def scene(steps: int, lines: int) -> tuple[_Scene, int]:
        """A trajectory with so many lines in its results, which differ by at most one line, and its tokens."""
        sizes = [lines // steps + (number < lines % steps) for number in range(steps)]
        written = write(Rng(*plan.key, index, "scene"), sizes)
        return written, written.tokens(tokenizer)

    for steps in Rng(*plan.key, index, "steps").order(range(low, high + 1)):
        least = lines = _LEAST_RECORDS * steps
        best, most = scene(steps, lines)
        if most <= plan.length:
            break
    else:
        _, needed = scene(low, _LEAST_RECORDS * low)
        raise ContextLengthError(
            f"length {plan.length} is too short: {low} steps need {needed} tokens with this tokenizer; raise the "
            "length, or reduce steps"
        )
    tokens, one = most, tokenizer.count(f" {max(best.results[0], key=len)}") + 1
    for _ in range(12):  # other numbers of lines are other texts, so the tokens of lines do not quite add up
        more = (plan.length - tokens) // one
        if not more:
            break
        lines = max(least, lines + more)
        drafted, tokens = scene(steps, lines)
        if most < tokens <= plan.length:
            best, most = drafted, tokens
    return best


def _words(rng: Rng, sizes: Sequence[int]) -> _Scene:
    """Sentences of `records`: 70% of a result states the values of entities, as long as there are entities."""
    names, values, fillers = rng.order(ENTITIES), cycle([*rng.order(VALUES)]), filler_sentences(rng)
    results, requests, drawn = list[list[str]](), list[_Request](), 0
    # Pairs of records of one result, each used once: else the result, or how often steps name a value, is a hint.
    free: list[list[tuple[int, str, str]]] = []
    for size in sizes:
        stated = max(_LEAST_RECORDS, min(7 * size // 10, len(ENTITIES) // len(sizes)))
        lines = [*islice(fillers, size)]
        records = [(place, next(names), next(values)) for place in islice(rng.order(range(size)), stated)]
        for place, entity, value in records:
            lines[place] = rng.choice(RECORDS).format(entity=entity, value=value)
        pairs = zip(records[::2], records[1::2], strict=False)
        free += [[(drawn + place, entity, value) for place, entity, value in pair] for pair in pairs]
        results.append(lines)
        drawn += size
        (record, entity, right), (_, _, wrong) = free.pop(rng.below(len(free)))
        question, answer = QUESTION.format(subject=entity), ANSWER.format(subject=entity, value="{}")
        requests.append(_Request(record, question, answer, right, wrong, {}))
    return _Scene("", " ", results, requests)


# What records are about, their values, and two fields with how a request asks for them and a sentence answers.
_PARCELS = (
    ("pickup", "Where is the parcel of {} picked up?", "The parcel of {} is picked up in {}."),
    ("delivery", "Where is the parcel of {} delivered?", "The parcel of {} is delivered in {}."),
)
_MOVES = (
    ("former_city", "In which city did {} live before the move?", "Before the move, {} lived in {}."),
    ("current_city", "In which city does {} live now?", "Now {} lives in {}."),
)
_TRADES = ("buys", "What does {} buy?", "{} buys {}."), ("sells", "What does {} sell?", "{} sells {}.")
_TOPICS = (("parcels", CITIES, _PARCELS), ("moves", CITIES, _MOVES), ("farmers", CROPS, _TRADES))
_TASK = (
    "Answer each request about the records of {}. It may be about any record so far. Call record_answer, or write a "
    "sentence and call next_request.\n\n"
)


_TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in parameters},
                "required": parameters,
            },
        },
    }
    for name, description, parameters in (
        ("record_answer", "Records the answer to a request and opens the next.", ["name", "field", "value"]),
        ("next_request", "Opens the next request.", []),
    )
)


def _prose(rng: Rng, sizes: Sequence[int]) -> _Scene:
    """Records of two fields. In every result each value is as often in one field as in the other."""
    topic, pool, fields = rng.choice(_TOPICS)
    people = rng.order(range(len(FIRST_NAMES) * len(SURNAMES)))
    results, requests, drawn = list[list[str]](), list[_Request](), 0
    free: list[tuple[int, str, tuple[str, str]]] = []
    for size in sizes:
        first = [*islice(cycle([*rng.order(pool)]), size)]
        shift = 1 + (size % len(pool) == 1)  # so that no record has the same value twice
        pairs = [(value, first[(number + shift) % size]) for number, value in enumerate(first)]
        rng.shuffle(pairs)
        lines = []
        for number, pair in enumerate(pairs):
            who = next(people)
            name = f"{FIRST_NAMES[who % len(FIRST_NAMES)]} {SURNAMES[who // len(FIRST_NAMES)]}"
            record = [("name", name), *((fields[at][0], pair[at]) for at in (0, 1))]
            rng.shuffle(record)
            lines.append(json.dumps(dict(record)))
            free.append((drawn + number, name, pair))
        results.append(lines)
        drawn += size
        record_number, name, pair = free.pop(rng.below(len(free)))
        asked = rng.below(2)
        field, question, answer = fields[asked]
        call = {"name": name, "field": field} if rng.below(2) else {}
        question, answer = f"Request: {question.format(name)}", answer.format(name, "{}")
        requests.append(_Request(record_number, question, answer, pair[asked], pair[1 - asked], call))
    return _Scene(_TASK.format(topic), "\n", results, requests, _TOOLS)
