from collections import Counter

import pytest

from longrm.benchmarks import BENCHMARKS, BenchmarkSource, Leval, LoadedBenchmark, Probe, ProbeCell, load
from longrm.benchmarks.probe import comparisons
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluation_run import Evaluation

SMALL = Probe.model_validate({"cells": [{"lengths": [128], "groups": 2, "per_group": 2}]})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("probes", "no benchmark 'probes'; did you mean 'probe'"),
        ("longrewardbench:x", "did you mean 'long-rewardbench:PATH'"),
        ("judgebench", "no benchmark 'judgebench'; did you mean 'judgebench:PATH'"),
        ("probe:x", "no benchmark 'probe:x'"),
        ("zzz", "no benchmark 'zzz'; known: probe, file:PATH, long-rewardbench:PATH"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, message, bench):
    with pytest.raises(ConfigError, match=message):
        bench(name)


@pytest.mark.parametrize("name", sorted({*BENCHMARKS} - {"probe"}))
def test_a_missing_path_is_refused_at_once(name, tmp_path, bench):
    with pytest.raises(DataError, match=str(tmp_path)):
        bench(f"{name}:{tmp_path}/nothing")


def test_the_probe_can_be_read_again_and_is_audited():
    probed = load("probe", source=BenchmarkSource(), probe=SMALL, leval=Leval())
    assert list(probed.comparisons) == list(probed.comparisons) == list(comparisons(SMALL))
    assert (probed.total, probed.rule, probed.audit.comparisons) == (4, "", 4)
    assert not any(finding.count for finding in probed.audit.findings.values())
    short = load("probe", source=BenchmarkSource(limit=3), probe=SMALL, leval=Leval())
    assert len(list(short.comparisons)) == short.total == 3


def test_the_probe_has_a_grid_of_lengths_and_depths():
    cells = [
        {"lengths": [256, 512], "depths": [0, 0.5, "uniform"], "groups": 2, "per_group": 2},
        {"lengths": [128], "groups": 1, "per_group": 2},
    ]
    probe = Probe.model_validate({"depth": 1.0, "cells": cells})
    found = list(comparisons(probe))
    assert len(found) == len({c.id for c in found}) == probe.total == 2 * 3 * 4 + 2
    at = Counter((c.metadata["length"], c.metadata["depth"]) for c in found if "-d" in c.id)
    assert at == {(256, 0.0): 4, (256, 0.5): 4, (512, 0.0): 4, (512, 0.5): 4, (128, 1.0): 2}
    assert len({c.group for c in found}) == 2 * 3 * 2 + 1
    for comparison in found:
        (evidence, *_) = comparison.evidence
        if comparison.metadata["depth"] == 0:
            assert evidence.start == 0


def test_a_depth_that_cannot_be_is_refused_before_anything_is_generated():
    probe = Probe(cells=(ProbeCell(lengths=(128,), depths=(0.5, 1.5)),))
    with pytest.raises(ConfigError, match=r"depth must be .* got 1\.5"):
        next(comparisons(probe))


def test_a_file_is_audited_too(put, bench, counts):
    row = {"prompt": "?", "chosen": "yes", "rejected": "no"}
    loaded = bench(f"file:{put('rows.jsonl', row, row, {**row, 'prompt': '!'})}")
    assert [c.id for c in loaded.comparisons] == ["row-1", "row-2", "row-3"]
    assert counts(loaded) == {"duplicates": 1}
    assert loaded.reading.format == "trl"


PAIR = {"prompt": "?", "chosen": "yes", "rejected": "no"}
OWN = {"prompt": "?", "responses": ["yes", "no"], "ranks": [1, 2]}
REWARDBENCH = {**PAIR, "subset": "mt-bench-easy", "id": 7}
REWARDBENCH_2 = {
    "id": "1",
    "prompt": "?",
    "chosen": ["a"],
    "rejected": ["b", "c", "d"],
    "subset": "Factuality",
}
LONG = {
    "prompt_template": "The code is x. What?",
    "question": "What?",
    "chosen": "x",
    "rejected": "y",
    "task": "LongQA",
}
WAYS_IN = [
    ("file", PAIR),
    ("file", OWN),
    ("file", {"prompt": "?", "candidates": ["yes", "no"]}),
    ("rewardbench", REWARDBENCH),
    ("rewardbench-2", REWARDBENCH_2),
]
BAD_PLACES = [
    ("length", True),
    ("length", 4096.5),
    ("length", 1e30),
    ("length", "4k"),
    ("depth", 50),
    ("depth", "0.5"),
]


@pytest.mark.parametrize(("name", "row"), WAYS_IN)
@pytest.mark.parametrize(("field", "value"), BAD_PLACES)
def test_a_place_that_cannot_be_is_refused_before_anything_is_judged(name, row, field, value, put, bench):
    good = [{**row, "id": str(number), "prompt": f"{number}?"} for number in range(3)]
    path = put("rows.jsonl", *good, {**row, "id": "bad", field: value})
    with pytest.raises(DataError, match=rf"rows\.jsonl.*4, field '{field}': "):
        bench(f"{name}:{path}")
    loaded = bench(f"{name}:{path}", on_bad_row="skip")
    assert len(list(loaded.comparisons)) == 3
    left_out = loaded.reading.skipped if loaded.reading else loaded.audit.findings["unreadable_rows"]
    assert left_out.count == 1


@pytest.mark.parametrize("row", [row for name, row in WAYS_IN if name == "file"])
def test_a_place_in_the_metadata_is_checked_too(row, put, bench):
    path = put("rows.jsonl", {**row, "metadata": {"depth": 50}})
    with pytest.raises(DataError, match=r"rows\.jsonl.*1, field 'depth'"):
        bench(f"file:{path}")


@pytest.mark.parametrize(("name", "row"), WAYS_IN)
def test_a_whole_number_as_tables_hold_it_is_the_bucket(name, row, put, bench):
    (comparison,) = bench(f"{name}:{put('rows.jsonl', {**row, 'length': 4096.0, 'depth': 1})}").comparisons
    assert comparison.metadata["length"] == 4096
    assert type(comparison.metadata["length"]) is int
    (measured,) = bench(f"{name}:{put('rows.jsonl', {**row, 'length': None})}").comparisons
    assert measured.metadata["length"] < 16


def test_the_label_of_a_length_is_checked_likewise(put, bench):
    def labelled(label):
        (comparison,) = bench(
            f"long-rewardbench:{put('LongQA.jsonl', {**LONG, 'ctx_length_for_length': label})}"
        ).comparisons
        return comparison.metadata["length"]

    assert [labelled(label) for label in ("4k", "4096", 4096, 4096.0)] == [4096] * 4
    for label in ("9" * 5000 + "k", "99999999999999k", 1e30, True, "0k", -4):
        with pytest.raises(DataError, match=r"LongQA\.jsonl.*1, field 'ctx_length_for_length'"):
            labelled(label)


def test_a_sample_is_taken_of_rows_that_can_all_be_read(put, bench):
    path = put("rows.jsonl", PAIR, {**PAIR, "depth": 50})
    with pytest.raises(DataError, match="row.* 2, field 'depth'"):
        bench(f"file:{path}", limit=1)
    loaded = bench(f"file:{path}", limit=1, on_bad_row="skip")
    assert len(list(loaded.comparisons)) == 1
    assert loaded.reading.skipped.count == 1


def test_lengths_count_the_tools_that_a_prompt_offers(put, bench):
    pair = {"prompt": "Is it warm?", "chosen": "Yes.", "rejected": "No."}
    tool = {"name": "weather", "description": " ".join(["word"] * 400)}
    with_tools, without = bench(f"file:{put('rows.jsonl', pair | {'tools': [tool]}, pair)}").comparisons
    assert (with_tools.metadata["length"], without.metadata["length"]) == (512, 4)


def test_comparisons_of_ones_own_have_no_audit():
    assert LoadedBenchmark("mine", []).audit is None


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            {"groups": 10**14},
            "the cells have 4,800,000,000,000,000 comparisons together, and a probe has 10,000,000",
        ),
        ({"groups": -1}, "probe.cells.0.groups"),
        ({"lengths": [10**18]}, "probe.cells.0.lengths.0"),
        ({"lengths": [-1]}, "probe.cells.0.lengths.0"),
        ({"per_group": 10**9}, "probe.cells.0.per_group"),
    ],
)
def test_a_grid_that_would_never_be_done_is_refused_before_any_work(cell, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        Evaluation.resolve(None, {"bench": "probe", "probe.cells": [cell]})
