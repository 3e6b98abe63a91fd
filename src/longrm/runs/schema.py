"""Checks a summary against its published JSON Schema, `summary.schema.json`, before anything reads it.

The schema is the one description there is: what it says is checked as it stands, by the keywords that it uses.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from longrm.reading import short

Schema = Mapping[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and value == math.floor(value),
    "number": lambda value: _is_number(value),
}
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}
_TOLD = ("$schema", "$id", "$defs", "title", "description")
"""Keywords that check nothing."""


@cache
def summary_schema() -> Schema:
    """The schema of `summary.json`."""
    text = files("longrm.runs").joinpath("summary.schema.json").read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def fault_in(value: Any, schema: Schema | None = None) -> str:
    """What of a value does not fit the schema of summaries, or a part of it; empty where all does."""
    return next(_faults(value, summary_schema() if schema is None else schema, ""), "")


def _faults(value: Any, schema: Schema, place: str) -> Iterator[str]:
    for keyword, rule in schema.items():
        if keyword not in _TOLD:
            yield from _CHECKS[keyword](value, rule, place, schema)


def _type(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    kinds = [rule] if isinstance(rule, str) else rule
    if not any(_TYPES[kind](value) for kind in kinds):
        yield f"{_field(place)}: needs {' or '.join(kinds)}, got {short(value)}"


def _enum(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    # Python takes true for 1, JSON does not.
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in rule):
        yield f"{_field(place)}: needs one of {', '.join(map(repr, rule))}, got {short(value)}"


def _const(value: Any, rule: Any, place: str, schema: Schema) -> Iterator[str]:
    return _enum(value, [rule], place, schema)


def _limit(keyword: str) -> Callable[[Any, Any, str, Schema], Iterator[str]]:
    def check(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
        if _is_number(value) and not _LIMITS[keyword](value, rule):
            yield f"{_field(place)}: {keyword} is {rule}, got {short(value)}"

    return check


def _pattern(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    if isinstance(value, str) and not re.search(rule, value):
        yield f"{_field(place)}: needs the form {rule}, got {short(value)}"


def _required(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{_field(_under(place, name))} is missing" for name in rule if name not in value)


def _properties(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    if isinstance(value, dict):
        for name, schema in rule.items():
            if name in value:
                yield from _faults(value[name], schema, _under(place, name))


def _patterned(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    for pattern, schema in rule.items() if isinstance(value, dict) else ():
        for name in filter(re.compile(pattern).search, value):
            yield from _faults(value[name], schema, _under(place, name))


def _additional(value: Any, rule: Any, place: str, schema: Schema) -> Iterator[str]:
    return _others(value, rule, place, set(schema.get("properties", ())))


def _unevaluated(value: Any, rule: Any, place: str, schema: Schema) -> Iterator[str]:
    patterns = [re.compile(pattern) for pattern in _known(schema, "patternProperties")]
    named = {name for name in value if any(pattern.search(name) for pattern in patterns)}
    return _others(value, rule, place, _known(schema) | named)


def _others(value: Any, rule: Any, place: str, known: set[str]) -> Iterator[str]:
    """What is wrong with the properties of which no other keyword has spoken."""
    for name in value.keys() - known if isinstance(value, dict) else ():
        if rule is False:
            yield f"{_field(_under(place, name))} is unknown"
        else:
            yield from _faults(value[name], rule, _under(place, name))


def _known(schema: Schema, keyword: str = "properties") -> set[str]:
    """The properties that a schema, and those that it refers to, speak of."""
    referred = _known(_at(schema["$ref"]), keyword) if "$ref" in schema else set()
    return referred | set(schema.get(keyword, ()))


def _names(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        yield from _faults(name, rule, _under(place, name))


def _fewest(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    if isinstance(value, dict) and len(value) < rule:
        yield f"{_field(place)}: needs {rule} entries at least, got {len(value)}"


def _items(value: Any, rule: Any, place: str, _: Schema) -> Iterator[str]:
    for number, item in enumerate(value) if isinstance(value, list) else ():
        yield from _faults(item, rule, _under(place, number))


def _all_of(value: Any, rule: Iterable[Schema], place: str, _: Schema) -> Iterator[str]:
    for schema in rule:
        yield from _faults(value, schema, place)


def _one_of(value: Any, rule: Iterable[Schema], place: str, _: Schema) -> Iterator[str]:
    """The schemas that are told apart here are null and something else, so the last one's faults tell most."""
    found = [list(_faults(value, schema, place)) for schema in rule]
    if sum(not faults for faults in found) != 1:
        yield from found[-1] or [f"{_field(place)}: fits several forms, got {short(value)}"]


def _if(value: Any, rule: Schema, place: str, schema: Schema) -> Iterator[str]:
    if not any(_faults(value, rule, place)):
        yield from _faults(value, schema["then"], place)


def _then(*_: Any) -> Iterator[str]:
    return iter(())  # `if` speaks of it


def _refer(value: Any, rule: str, place: str, _: Schema) -> Iterator[str]:
    return _faults(value, _at(rule), place)


_CHECKS: dict[str, Callable[[Any, Any, str, Schema], Iterator[str]]] = {
    "$ref": _refer,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "required": _required,
    "properties": _properties,
    "patternProperties": _patterned,
    "additionalProperties": _additional,
    "unevaluatedProperties": _unevaluated,
    "propertyNames": _names,
    "minProperties": _fewest,
    "items": _items,
    "allOf": _all_of,
    "oneOf": _one_of,
    "if": _if,
    "then": _then,
    **{keyword: _limit(keyword) for keyword in _LIMITS},
}
"""The keywords that the schema uses; one that is not here is an error, and no silence."""


def _at(reference: str) -> Schema:
    found: Schema = summary_schema()["$defs"][reference.removeprefix("#/$defs/")]
    return found


def _is_number(value: Any) -> bool:
    # JSON has no NaN and no infinity, though Python's reader takes them; no count is beyond 64 bits.
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _under(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _field(place: str) -> str:
    return f"field {short(place)}" if place else "the whole"
