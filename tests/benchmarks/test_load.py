from collections import Counter

import pytest

from longrm.benchmarks import Benchmark, Cell, Leval, Probe, Source, load
from longrm.benchmarks.probe import comparisons
from longrm.errors import ConfigError, DataError

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


@pytest.mark.parametrize("name", ["file", "rewardbench", "rewardbench-2", "judgebench", "long-rewardbench"])
def test_a_missing_path_is_refused_at_once(name, tmp_path, bench):
    with pytest.raises(DataError, match=str(tmp_path)):
        bench(f"{name}:{tmp_path}/nothing")


def test_the_probe_can_be_read_again_and_is_audited():
    probed = load("probe", source=Source(), probe=SMALL, leval=Leval())
    assert list(probed.comparisons) == list(probed.comparisons) == list(comparisons(SMALL))
    assert (probed.total, probed.rule, probed.audit.comparisons) == (4, "", 4)
    assert not any(finding.count for finding in probed.audit.findings.values())
    short = load("probe", source=Source(limit=3), probe=SMALL, leval=Leval())
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
    probe = Probe(cells=(Cell(lengths=(128,), depths=(0.5, 1.5)),))
    with pytest.raises(ConfigError, match=r"depth must be .* got 1\.5"):
        next(comparisons(probe))


def test_a_file_is_audited_too(put, bench, counts):
    row = {"prompt": "?", "chosen": "yes", "rejected": "no"}
    loaded = bench(f"file:{put('rows.jsonl', row, row, {**row, 'prompt': '!'})}")
    assert [c.id for c in loaded.comparisons] == ["row-1", "row-2", "row-3"]
    assert counts(loaded) == {"duplicates": 1}
    assert loaded.reading.format == "trl"


def test_comparisons_of_ones_own_have_no_audit():
    assert Benchmark("mine", []).audit is None
