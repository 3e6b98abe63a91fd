"""`summary.json` of every kind of run: its models, its schema, and errors."""

import json
from importlib.resources import files

import jsonschema
import pytest

from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import read_summary, summary_schema
from longrm.runs.folder import SUMMARY, write_json
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Trial


def judged(number, responses=2):
    order = tuple(range(responses))
    scores = tuple(float((number * 7 + place) % 5) for place in order)
    trials = (
        Trial(order=order, outcome=Outcome.ANSWERED, scores=scores),
        Trial(order=order[::-1], outcome=Outcome.ANSWERED, scores=scores[::-1]),
    )
    ranks = tuple(place + 1 for place in order)
    return JudgmentRecord(
        id=f"{number}", group=f"{number // 2}", outcome=Outcome.ANSWERED,
        ranks=ranks, order=order, scores=scores, length=128 << number % 3,
        depth=number % 10 / 10, task=f"t{number % 2}", characters=(9,) * responses, trials=trials,
        context_check="same", baselines={"longest": scores},
    )  # fmt: skip


@pytest.fixture(scope="module")
def summaries():
    pairs = [judged(number) for number in range(24)]
    mixed = [judged(number, 2 + number % 2) for number in range(24)]
    described = {"model": "m", "bench": "b", "resamples": 100}
    first = summarize(pairs, scale="points", rule="judgebench", **described).to_dict()
    second = summarize(mixed, scale="logit", **described).to_dict()
    return [
        first,
        second | {"audit": {"comparisons": 2, "findings": {"ties": {"what": "w", "count": 1, "examples": ["a"]}}}},
        summarize([judged(0)], **described).to_dict(),
        {
            "schema_version": 1, "kind": "training", "objective": "sft", "steps": 2, "tokens": 9, "window": 2,
            "loss": 0.5, "accuracy": None, "data": {"read": 3}, "model_step": 2,
            "evaluations": {"metric": "top1", "values": {"2": 0.5, "4": None}, "best": 2},
        },
    ]  # fmt: skip


def test_every_kind_of_summary_fits_its_schema_and_is_read_as_it_was_written(summaries, tmp_path):
    schema = json.loads(json.dumps(summary_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    for summary in summaries:
        jsonschema.validate(summary, schema)
        write_json(tmp_path / SUMMARY, summary)
        assert read_summary(tmp_path) == summary


def test_the_published_schema_is_that_of_the_models():
    published = (files("longrm.runs") / "summary.schema.json").read_text(encoding="utf-8")
    assert json.loads(published) == json.loads(json.dumps(summary_schema()))
