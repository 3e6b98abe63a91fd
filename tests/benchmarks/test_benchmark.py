"""Loading by name, the audit, measured lengths and the probe."""

import json
import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from longrm.benchmarks import BENCHMARKS, BenchmarkSource, LoadedBenchmark, Probe, ProbeCell, load
from longrm.benchmarks.benchmark import AuditedComparisons, Auditor, bucket, measure_with
from longrm.benchmarks.probe import comparisons
from longrm.data.chunking import approximate_tokens
from longrm.data.files import find_files, raw_rows
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluate import Evaluation
from longrm.types import Comparison
from longrm.worlds.words_tokenizer import words_tokenizer

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "longrm-sample" / "simpo"
SMALL = Probe(cells=(ProbeCell(lengths=(128,), groups=2, per_group=2),))


def comparison(name: str, *texts: str, ranks: tuple[int, ...] | None = None) -> Comparison:
    responses = tuple(({"role": "assistant", "content": text},) for text in texts)
    prompt = ({"role": "user", "content": "?"},)
    return Comparison(name, name, prompt, responses, ranks or tuple(range(1, len(texts) + 1)))


ROWS = [
    comparison("plain", "a", "b"),
    comparison("again", "b", "a"),  # the order of the responses does not make it another item
    comparison("equal", "c", "c", ranks=(1, 1)),
    comparison("empty", "d", " "),
    comparison("apart", "a", "c"),
]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("probes", "'probe'"),
        ("judgebench", "'judgebench:PATH'"),
        ("probe:x", "'probe'"),
        ("judgbench:here", "'judgebench:PATH'"),
        ("x.csv", "probe, .*"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_or_all(name, known, bench):
    with pytest.raises(ConfigError, match=f"'{name}'.*{known}"):
        bench(name)


def test_an_existing_path_is_a_file_unless_it_has_the_name_of_a_benchmark(tmp_path, monkeypatch, bench):
    monkeypatch.chdir(tmp_path)
    for name in ("pairs.jsonl", "a:b.jsonl", "probe", "judgebench"):
        Path(name).touch()

    def named(bench):
        return Evaluation.resolve(overrides={"bench": bench}).bench

    assert named("pairs.jsonl") == "file:pairs.jsonl"
    assert named("a:b.jsonl") == "file:a:b.jsonl"
    assert named(str(tmp_path / "pairs.jsonl")) == f"file:{tmp_path / 'pairs.jsonl'}"
    for kept in ("file:pairs.jsonl", "probe", "judgebench", "judgebench:x", "missing.jsonl"):
        assert named(kept) == kept
    with pytest.raises(ConfigError, match="'judgebench:judgebench' or 'file:judgebench'"):
        bench("judgebench")


@pytest.mark.parametrize("name", sorted({*BENCHMARKS} - {"probe"}))
def test_a_path_without_data_is_an_error_at_once(name, tmp_path, bench):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match=str(path)):
            bench(f"{name}:{path}")


def test_every_oddity_is_counted_with_an_example():
    audited = AuditedComparisons(lambda _: ROWS, {"rising_scores": "scores that rise"})
    assert list(audited) == ROWS
    assert audited.audit.comparisons == 5
    found = audited.audit.as_dict()["findings"]
    assert {kind: (finding["count"], finding["examples"]) for kind, finding in found.items()} == {
        "duplicates": (1, ["again"]),
        "identical_responses": (1, ["equal"]),
        "empty_responses": (1, ["empty"]),
        "ties": (1, ["equal"]),
        "rising_scores": (0, []),
    }
    other = AuditedComparisons(
        lambda _: [ROWS[0], replace(ROWS[0], prompt=({"role": "user", "content": "!"},))]
    )
    list(other)
    assert other.audit.findings["duplicates"].count == 0  # another prompt is another item


def test_an_audit_belongs_to_the_latest_complete_iteration():
    audited = AuditedComparisons(lambda _: iter(ROWS), limit=2)
    next(iter(audited))
    assert audited.audit is None
    assert list(audited) == list(audited)
    assert (audited.audit.comparisons, audited.sampled_from) == (2, 5)
    assert LoadedBenchmark("a user's own", ROWS).audit is None


def test_only_the_first_examples_are_kept():
    auditor = Auditor({"no_clear_gap": "questions without answers that are clearly apart"})
    for number in range(25):
        auditor.note("no_clear_gap", str(number))
    finding = auditor.findings["no_clear_gap"]
    assert (finding.count, len(finding.examples), finding.examples[0]) == (25, 10, "0")


def test_the_probe_can_be_read_again_and_is_audited():
    probed = load("probe", source=BenchmarkSource(), probe=SMALL)
    assert list(probed.comparisons) == list(probed.comparisons) == list(comparisons(SMALL))
    assert (probed.total, probed.rule, probed.audit.comparisons) == (4, "", 4)
    assert not any(finding.count for finding in probed.audit.findings.values())
    short = load("probe", source=BenchmarkSource(limit=3), probe=SMALL)
    assert len(list(short.comparisons)) == short.total == 3


def test_the_probe_has_a_grid_of_lengths_and_depths():
    cells = [
        {"lengths": [256, 512], "depths": [0, 0.5, "uniform"], "groups": 2, "per_group": 2},
        {"lengths": [128], "depths": [1.0], "groups": 1, "per_group": 2},
    ]
    probe = Probe.model_validate({"cells": cells})
    found = list(comparisons(probe))
    assert len(found) == len({c.id for c in found}) == probe.total == 2 * 3 * 4 + 2
    at = Counter((c.metadata["length"], c.metadata["depth"]) for c in found if "-d" in c.id)
    assert at == {(256, 0.0): 4, (256, 0.5): 4, (512, 0.0): 4, (512, 0.5): 4, (128, 1.0): 2}
    assert len({c.group for c in found}) == 2 * 3 * 2 + 1
    assert all(c.evidence[0].start == 0 for c in found if c.metadata["depth"] == 0)


@pytest.mark.parametrize("cell", [{"groups": -1}, {"lengths": [10**18]}, {"depths": []}])
def test_a_wrong_grid_is_an_error(cell):
    with pytest.raises(ConfigError, match=f"probe.cells.0.{next(iter(cell))}"):
        Evaluation.resolve(None, {"bench": "probe", "probe.cells": [cell]})


def test_a_length_that_is_too_short_is_an_error_before_any_work():
    probe = Probe(cells=(ProbeCell(lengths=(16,)),))
    with pytest.raises(ConfigError, match="records: length 16 is too short"):
        load("probe", source=BenchmarkSource(), probe=probe)


def test_a_wrong_depth_is_an_error_before_anything_is_generated():
    with pytest.raises(ConfigError, match=r"depth.*1\.5"):
        next(comparisons(Probe(cells=(ProbeCell(lengths=(128,), depths=(0.5, 1.5)),))))


def test_a_file_is_audited_too(put, bench, counts):
    row = {"prompt": "?", "chosen": "yes", "rejected": "no"}
    loaded = bench(f"file:{put('rows.jsonl', row, row, {**row, 'prompt': '!'})}")
    assert [c.id for c in loaded.comparisons] == ["row-1", "row-2", "row-3"]
    assert counts(loaded) == {"duplicates": 1}
    assert loaded.reading.format == "trl"


PAIR = {"prompt": "?", "chosen": "yes", "rejected": "no"}
FILES = [
    ("file", PAIR),
    ("file", {"prompt": "?", "responses": ["yes", "no"], "ranks": [1, 2]}),
    ("file", {"prompt": "?", "candidates": ["yes", "no"]}),
    ("rewardbench", {**PAIR, "subset": "mt-bench-easy", "id": 7}),
]


@pytest.mark.parametrize(("name", "row"), FILES)
def test_a_wrong_length_or_depth_is_an_error_before_any_work(name, row, put, bench):
    good = [{**row, "id": str(number), "prompt": f"{number}?"} for number in range(3)]
    for field, value in (
        ("length", True),
        ("length", 4096.5),
        ("length", "4k"),
        ("depth", 50),
        ("depth", "0.5"),
    ):
        path = put("rows.jsonl", *good, {**row, "id": "bad", field: value})
        with pytest.raises(DataError, match=rf"rows\.jsonl.*4, field '{field}': "):
            bench(f"{name}:{path}")
        loaded = bench(f"{name}:{path}", on_bad_row="skip")
        assert len(list(loaded.comparisons)) == 3
        left_out = loaded.reading.skipped if loaded.reading else loaded.audit.findings["unreadable_rows"]
        assert left_out.count == 1
    if name == "file":
        with pytest.raises(DataError, match="field 'depth'"):
            bench(f"file:{put('rows.jsonl', {**row, 'metadata': {'depth': 50}})}")


@pytest.mark.parametrize(("name", "row"), FILES)
def test_a_whole_length_may_be_a_float_and_a_missing_one_is_measured(name, row, put, bench):
    (stated,) = bench(f"{name}:{put('rows.jsonl', {**row, 'length': 4096.0, 'depth': 1})}").comparisons
    assert stated.metadata["length"] == 4096
    assert type(stated.metadata["length"]) is int
    (measured,) = bench(f"{name}:{put('rows.jsonl', {**row, 'length': None})}").comparisons
    assert measured.metadata["length"] < 16


def test_measured_lengths_count_the_tools(put, bench):
    tool = {"name": "weather", "description": " ".join(["word"] * 400)}
    pair = PAIR | {"prompt": "Is it warm?"}
    with_tools, without = bench(f"file:{put('rows.jsonl', pair | {'tools': [tool]}, pair)}").comparisons
    assert (with_tools.metadata["length"], without.metadata["length"]) == (512, 4)


def test_a_tokenizer_measures_in_its_own_tokens():
    text = "The access code of Noreth is copper."
    assert measure_with("words")(text) == words_tokenizer().count(text) == 8
    assert measure_with(None) is approximate_tokens
    assert [bucket(tokens) for tokens in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the real sample is not next to the checkout")
def test_approximate_tokens_are_near_those_of_a_large_model():
    estimates, by_words = [], []
    for raw in raw_rows([*find_files(SAMPLE / "train"), *find_files(SAMPLE / "eval")]):
        text = "\n".join(message["content"] for message in raw.value["chat_template"])
        estimates.append(approximate_tokens(text) / raw.value["prompt_ctx_length"])
        by_words.append(len(text.split()) * 4 / 3 / raw.value["prompt_ctx_length"])
    assert len(estimates) == 18
    assert min(estimates) > 0.85
    assert max(estimates) < 1.1
    assert min(by_words) < 0.5  # the usual estimate is far off


@pytest.mark.parametrize(
    ("name", "field"),
    [("tau-bench", "task_id"), ("judgebench", "pair_id"), ("rmb", "conversation_input")],
)
def test_a_row_of_another_benchmark_is_an_error_that_says_what_it_has(name, field, put, bench):
    with pytest.raises(DataError, match=f"line 1, field '{field}': .*[;,] found only id, text$"):
        bench(f"{name}:{put('rows.jsonl', {'id': 'a', 'text': 'b'})}")


def test_a_file_without_a_gold_order_is_named_before_any_work(tmp_path, caplog, bench):
    row = {"prompt": "Who?", "responses": ["Ann", "Bob"]}
    scored = row | {"scores": [1.0, 2.0], "scores_outcome": "answered", "scores_by": "runs/long/model"}
    for rows, said in {
        (json.dumps(row),): "1 of 1 comparisons have no gold order: add a column 'ranks'",
        (json.dumps(scored), json.dumps(row | {"ranks": [1, 2]})): "1 of 2 .* those of long, not gold",
    }.items():
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(rows))
        with caplog.at_level(logging.INFO, "longrm"):
            bench(f"file:{path}")
        (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
        assert re.search(f"{path}: {said}", warning)
        caplog.clear()
