import pytest

from longrm.benchmarks import Benchmark, Leval, Probe, Source, load
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


def test_a_file_is_audited_too(put, bench, counts):
    row = {"prompt": "?", "chosen": "yes", "rejected": "no"}
    loaded = bench(f"file:{put('rows.jsonl', row, row, {**row, 'prompt': '!'})}")
    assert [c.id for c in loaded.comparisons] == ["row-1", "row-2", "row-3"]
    assert counts(loaded) == {"duplicates": 1}
    assert loaded.reading.format == "trl"


def test_comparisons_of_ones_own_have_no_audit():
    assert Benchmark("mine", []).audit is None
