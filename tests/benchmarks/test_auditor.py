import json
from dataclasses import replace

import pytest

from longrm.benchmarks.benchmark import AuditedComparisons, Auditor
from longrm.types import Comparison

USER = ({"role": "user", "content": "?"},)


def comparison(name: str, *texts: str, ranks: tuple[int, ...] | None = None) -> Comparison:
    responses = tuple(({"role": "assistant", "content": text},) for text in texts)
    return Comparison(name, name, USER, responses, ranks or tuple(range(1, len(texts) + 1)))


ROWS = [
    comparison("plain", "a", "b"),
    comparison("again", "b", "a"),  # the order of the responses does not make it another item
    comparison("equal", "c", "c", ranks=(1, 1)),
    comparison("empty", "d", " "),
    comparison("apart", "a", "c"),
]


def test_every_oddity_is_counted_where_it_is():
    audited = AuditedComparisons(lambda _: ROWS)
    assert audited.audit is None
    assert list(audited) == ROWS
    found = audited.audit.findings
    assert audited.audit.comparisons == 5
    assert {kind: finding.examples for kind, finding in found.items()} == {
        "duplicates": ("again",),
        "identical_responses": ("equal",),
        "empty_responses": ("empty",),
        "ties": ("equal",),
    }
    assert {finding.count for finding in found.values()} == {1}


def test_another_prompt_makes_no_duplicate():
    other = replace(ROWS[0], prompt=({"role": "user", "content": "!"},))
    audited = AuditedComparisons(lambda _: [ROWS[0], other])
    list(audited)
    assert audited.audit.findings["duplicates"].count == 0


def test_comparisons_come_again_from_the_start_and_the_audit_is_the_latest():
    audited = AuditedComparisons(lambda _: iter(ROWS), limit=2)
    assert list(audited) == list(audited) == [ROWS[0], ROWS[2]]
    assert (audited.audit.comparisons, audited.sampled_from) == (2, 5)


def test_an_iteration_that_was_left_has_no_audit():
    audited = AuditedComparisons(lambda _: ROWS)
    next(iter(audited))
    assert audited.audit is None


def test_examples_are_few_and_counts_are_whole():
    auditor = Auditor({"no_clear_gap": "questions without answers that are clearly apart"})
    for number in range(25):
        auditor.note("no_clear_gap", str(number))
    finding = auditor.findings["no_clear_gap"]
    assert (finding.count, len(finding.examples), finding.examples[0]) == (25, 10, "0")


def test_a_kind_that_was_not_announced_is_a_mistake():
    with pytest.raises(KeyError):
        Auditor().note("rising_scores", "x")


def test_it_is_json_and_says_what_each_kind_means():
    audited = AuditedComparisons(lambda _: ROWS, {"rising_scores": "scores that rise"})
    list(audited)
    plain = json.loads(json.dumps(audited.audit.as_dict()))
    assert plain["comparisons"] == 5
    assert plain["findings"]["rising_scores"] == {
        "what": "scores that rise",
        "count": 0,
        "examples": [],
    }
