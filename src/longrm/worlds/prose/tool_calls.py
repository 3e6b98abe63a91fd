"""The world `tool-call`: a context documents tools and states what to book; the wrong response has one error."""

import json
from typing import Any

from longrm.worlds.prose.tasks import Case, Names, Point
from longrm.worlds.prose.word_lists import CITIES, CODEWORDS

FUNCTION, NUMBER = "Incorrect function name", "Incorrect number of function calls"
VALUE, TYPE = "Parameter value error", "Parameter value type error"
MISSING, UNEXPECTED = "Missing required parameter", "Unexpected parameter"
# The names on the data card of FC-RewardBench. Two of its types are not used: a parsing error shows in the response
# alone, and the documentation of a tool does not decide whether an optional parameter may be omitted.
ERRORS = (FUNCTION, NUMBER, VALUE, TYPE, MISSING, UNEXPECTED)

_OWNERS = ("bakery", "cannery", "dairy", "forge", "nursery", "pottery", "tannery", "winery")
_JOBS = {"delivery": "deliveries", "pickup": "pickups"}
_TYPES = ("integer", "string")
# In the same words, so that what the tools take must be read, and is not revealed by which words occur.
_TAKES = {
    "": "city (string) and without crates",
    "integer": "city (string) and crates (integer)",
    "string": "city (string) and crates (string)",
}


def tool_call(names: Names, size: int) -> Case:
    """The calls for all jobs of one kind; the wrong response has one error of a type of FC-RewardBench.

    Every type is as likely as its reverse, so responses alone do not reveal the right one: an argument is missing as
    often as unexpected, a call missing as often as one too many, an integer is right as often as a string. The wrong
    tool and city are those of the owner's other kind of job. Similar to the single-turn calls of BFCL, with the
    documentation far back.
    """
    cities, words = names.values(CITIES, 2 * size), names.values(CODEWORDS, 2 * size)
    return Case(
        tuple(_point(names, cities[at : at + 2], words[at : at + 2]) for at in range(0, 2 * size, 2)), ""
    )


def _point(names: Names, cities: list[str], words: list[str]) -> Point:
    rng = names.rng
    tools = [f"{word}_desk" for word in words]
    owner = f"the {names.surname()} {rng.choice(_OWNERS)}"
    asked, other = rng.order(tuple(_JOBS))
    crates, error = list(rng.order(range(2, 10))), rng.choice(ERRORS)
    # The type of the argument `crates`, or none if the tools do not take it.
    kinds = _TYPES if error in (TYPE, MISSING) else ("",) if error == UNEXPECTED else ("", *_TYPES)
    kind = rng.choice(kinds)
    both = error == NUMBER and bool(rng.below(2))  # whether both jobs are asked for

    def call(job: int, kind: str, *, tool: int = 0, city: int | None = None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"city": cities[job if city is None else city]}
        if kind:
            arguments["crates"] = crates[job] if kind == "integer" else str(crates[job])
        return {"name": tools[tool], "arguments": arguments}

    right, one_more = [call(0, kind)], [call(0, kind), call(1, kind)]
    rng.shuffle(one_more)
    wrong = {
        FUNCTION: [call(0, kind, tool=1)],
        NUMBER: one_more,
        VALUE: [call(0, kind, city=1)],
        TYPE: [call(0, _TYPES[kind == "integer"])],
        MISSING: [call(0, "")],
        UNEXPECTED: [call(0, rng.choice(_TYPES))],
    }[error]
    if both:
        right, wrong = wrong, right
    # In one order, so that the tool to call is first as often as second.
    books = " and ".join(f"{_JOBS[job]} with {tools[job == other]}" for job in _JOBS)
    facts = [names.stated(f"{owner} books {books}, both called with {_TAKES[kind]}")]
    for at, job in enumerate((asked, asked if both else other)):
        facts.append(names.stated(f"{owner} has a {job} of {crates[at]} crates in {cities[at]}"))
    rng.shuffle(facts)
    return Point(
        tuple(facts),
        f"Book all {_JOBS[asked]} of {owner}, with one tool call for each.",
        "{}",
        json.dumps(right),
        json.dumps(wrong),
        error=error,
    )
