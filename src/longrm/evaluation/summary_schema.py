"""Reads and checks `summary.json`, and makes its JSON Schema, by the types of `summaries`."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from longrm import reading
from longrm.errors import RunError
from longrm.evaluation.rules import RULES, rule_key
from longrm.evaluation.summaries import (
    AttributionSummary,
    DemoSummary,
    EvaluationSummary,
    RunSummary,
    TrainingSummary,
)
from longrm.runs.folder import SCHEMA_VERSION, SUMMARY, read_json

_PART = re.compile("^by_[a-z_]+_percent$")
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "evaluation": TypeAdapter(EvaluationSummary),
    "training": TypeAdapter(TrainingSummary),
    "demo": TypeAdapter(DemoSummary),
    "attribution": TypeAdapter(AttributionSummary),
}


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run, once it is known to fit its schema.

    Raises:
        RunError: The run has no summary yet, one of another schema version, or one that was changed.
    """
    summary = read_json(folder / SUMMARY)
    _checked(summary, folder / SUMMARY)
    return summary


def load_summary(folder: Path) -> RunSummary:
    """The summary of a finished run as types.

    Raises:
        RunError: As `read_summary`.
    """
    return _checked(read_json(folder / SUMMARY), folder / SUMMARY)


def _checked(summary: Mapping[str, Any], path: Path) -> RunSummary:
    if summary.get("schema_version") != SCHEMA_VERSION:
        version = reading.short(summary.get("schema_version"))
        raise RunError(f"{path} has schema version {version}, not {SCHEMA_VERSION}")
    try:
        return parse_summary(summary)
    except ValidationError as error:
        fault = reading.validation_problem(error).replace(".[key]", "")
    except ValueError as error:
        fault = f", {error}"
    raise RunError(f"{path}{fault}; another version of longrm wrote it, or it was changed: run it again")


def parse_summary(summary: Mapping[str, Any]) -> RunSummary:
    """Types of what a summary holds as JSON values.

    Raises:
        ValueError: It does not fit the schema.
    """
    kind = summary.get("kind")
    if not isinstance(kind, str) or kind not in _ADAPTERS:
        raise ValueError(f"field 'kind': needs one of {', '.join(_ADAPTERS)}, got {reading.short(kind)}")
    parsed: RunSummary = _ADAPTERS[kind].validate_json(json.dumps(_with_rules(summary)), strict=True)
    return parsed


def parse_evaluation(summary: Mapping[str, Any]) -> EvaluationSummary:
    """Types of what the summary of an evaluation holds; see `parse_summary`."""
    parsed = parse_summary(summary)
    assert isinstance(parsed, EvaluationSummary), "only evaluations are asked for"
    return parsed


def _with_rules(summary: Any) -> Any:
    """A summary in which the published rules of an evaluation stand together, as the types have them."""
    if not isinstance(summary, Mapping) or "rules" in summary:
        return summary
    if isinstance(summary.get("stages"), Mapping):
        return {**summary, "stages": {name: _with_rules(stage) for name, stage in summary["stages"].items()}}
    rules = {name: _with_parts(summary[rule_key(name)]) for name in RULES if rule_key(name) in summary}
    rest = {key: value for key, value in summary.items() if key not in map(rule_key, rules)}
    parts = {key: _with_rules(rest[key]) for key in ("best_of_4", "pointwise") if key in rest}
    return {**rest, **parts, **({"rules": rules} if rules else {})}


def _with_parts(score: Any) -> Any:
    """What a rule made of a run, without the figures that are the rule's own business."""
    if not isinstance(score, Mapping):
        return score
    known = {name: score[name] for name in ("overall_percent", "left_out", "errs", "note") if name in score}
    return known | {"parts": {name: part for name, part in score.items() if _PART.search(name)}}


def to_json(value: Any) -> Any:
    """A summary, or a part of one, as JSON values; parts that are None by default are left out where they are."""
    if is_dataclass(value) and not isinstance(value, type):
        held = [(f.name, getattr(value, f.name), f.default) for f in fields(value) if f.name != "rules"]
        return {
            name: to_json(part) for name, part, default in held if part is not None or default is not None
        }
    if isinstance(value, Mapping):
        return {str(name): to_json(part) for name, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, tuple) else value


class _Untitled(GenerateJsonSchema):
    """A schema without a title at every field, and without keys that match no pattern."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        return {name: value for name, value in super().default_schema(schema).items() if name != "default"}


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`, made from these types, `METRICS` and the published rules."""
    union: TypeAdapter[Any] = TypeAdapter(Annotated[RunSummary, Field(discriminator="kind")])
    schema = union.json_schema(schema_generator=_Untitled)
    rule = schema["$defs"]["RuleScore"]
    parts = rule["properties"].pop("parts")
    rule |= {"patternProperties": parts["patternProperties"], "additionalProperties": True}
    for name in ("EvaluationSummary", "StageSummary"):
        properties = schema["$defs"][name]["properties"]
        properties |= dict.fromkeys(map(rule_key, RULES), properties.pop("rules")["additionalProperties"])
    schema.pop("discriminator")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://longrm.invalid/summary.schema.json",
        "title": "Summary of a run",
        "description": "Every share is a fraction. Buckets are keyed by whole tokens, written in decimal.",
        **schema,
    }
