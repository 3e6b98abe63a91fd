"""The check of summaries against their published schema, beside the reference implementation of JSON Schema."""

import copy
import json
import math
import random
from importlib.resources import files

import jsonschema
import pytest

from longrm.errors import RunError
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_summary, read_summary, summary_schema, to_json
from longrm.runs.folder import SUMMARY, write_json
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Trial

STRANGE = (None, True, False, 0, 1, 1.0, -1, 0.5, "", "0", "128", "x", [], [None], {}, {"value": 1}, {"": 0})


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
    told = {"model": "m", "bench": "b", "resamples": 100}
    first = summarize(pairs, scale="points", rule="judgebench", release_rule=True, **told)
    second = summarize(mixed, scale="logit", **told)
    stage = first | {"best_of_4": second, "pointwise": first}
    metric = first["ties"]
    return [
        first,
        second | {"audit": {"comparisons": 2, "findings": {"ties": {"what": "w", "count": 1, "examples": ["a"]}}}},
        summarize([judged(0)], **told),
        {
            "schema_version": 1, "kind": "training", "objective": "sft", "steps": 2, "tokens": 9, "window": 2,
            "loss": 0.5, "accuracy": None, "data": {"read": 3}, "model_step": 2,
            "evaluations": {"metric": "top1", "values": {"2": 0.5, "4": None}, "best": 2},
        },
        {
            "schema_version": 1, "kind": "demo", "stages": {"short": stage}, "controls": {"none": metric}, "seed": 3,
            "contrasts": {"a_vs_b": {"by_length": {"128": metric}}}, "seconds": {"all": 1.5}, "notes": {"start": ""},
        },
    ]  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    schema = json.loads(json.dumps(summary_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    # JSON Schema takes 1.0 for a whole number; nothing that writes a summary writes one so.
    whole = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=whole)(schema)


def fault_in(summary):
    try:
        parse_summary(summary)
    except ValueError as error:
        return str(error)
    return ""


def places(tree, path=()):
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at for key, part in parts for at in ((*path, key), *places(part, (*path, key)))]


def altered(rng, summary):
    """A copy in which one or two things are removed, added, renamed or replaced."""
    tree = copy.deepcopy(summary)
    for _ in range(rng.choice([1, 1, 2])):
        *above, last = rng.choice(places(tree))
        holder = tree
        for key in above:
            holder = holder[key]
        match rng.randrange(4):
            case 0 if isinstance(holder, dict):
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(["x", "0", "0128", "128", "0.2-0.4", "top1"])] = copy.deepcopy(holder[last])
            case _:
                holder[last] = copy.deepcopy(rng.choice(STRANGE))
    return tree


def test_every_summary_that_is_written_fits(summaries, reference):
    for summary in summaries:
        parse_summary(summary)
        reference.validate(summary)


def test_what_fits_is_what_the_reference_says(summaries, reference):
    rng = random.Random(5)
    refused = 0
    for _ in range(500):
        summary = altered(rng, rng.choice(summaries))
        found = fault_in(summary)
        assert bool(found) != reference.is_valid(summary), found or json.dumps(summary)
        refused += bool(found)
    assert 150 < refused < 500


def test_the_published_schema_is_the_one_that_the_types_make():
    published = (files("longrm.runs") / "summary.schema.json").read_text(encoding="utf-8")
    assert json.loads(published) == json.loads(json.dumps(summary_schema()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("chance"), r"field 'chance'"),
        (
            lambda s: s["metrics"]["overall"]["pair_accuracy"].pop("n"),
            r"field 'metrics\.overall\.pair_accuracy\.n'",
        ),
        (
            lambda s: s["counts"].update(comparisons="3"),
            r"field 'counts\.comparisons'",
        ),
        (
            lambda s: s["ties"].update(value=math.nan),
            r"field 'ties\.value'",
        ),
        (lambda s: s.update(more=1), r"field 'more'"),
        (
            lambda s: s.update(kind="score"),
            r"field 'kind'",
        ),
        (lambda s: s["metrics"]["by_length"].update({"0128": {}}), r"field 'metrics\.by_length\.0128'"),
        (lambda s: s.update(schema_version=2), r"has schema version 2, not 1"),
        (lambda s: s.update(schema_version=[1]), r"has schema version \[1\], not 1"),
    ],
)
def test_a_summary_that_does_not_fit_is_refused_by_its_field(change, said, summaries, tmp_path):
    summary = copy.deepcopy(summaries[0])
    change(summary)
    (tmp_path / SUMMARY).write_text(json.dumps(summary))
    with pytest.raises(RunError, match=rf"summary\.json.*{said}"):
        read_summary(tmp_path)


def test_a_summary_that_fits_is_read(summaries, tmp_path):
    for summary in summaries:
        write_json(tmp_path / SUMMARY, summary)
        assert read_summary(tmp_path) == summary


def test_types_write_the_summary_that_they_were_read_from(summaries):
    for summary in summaries[:3]:
        rules = {key: summary[key] for key in summary if key.endswith("_rule")}
        assert {**to_json(parse_summary(summary)), **rules} == summary
