"""The run folder of a recipe: rows, ledger, manifest, and continuing after a kill at any place."""

import hashlib
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from longrm.config import Config
from longrm.data import read_demonstrations
from longrm.errors import DataError, RunError
from longrm.judging.prompts import prompt_hash
from longrm.runs.folder import RunFolder, read_manifest
from longrm.runs.logs import Log
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, SynthesisRun
from longrm.synthesis.simulated import GoldAnswers

FACTS = {
    "sources": [{"name": "numbers", "license": "CC0-1.0"}],
    "seed": 7,
    "prompts": {"judge": prompt_hash("ask")},
    "models": {"judge": "m"},
}


class Settings(Config):
    seed: int = 7


class Numbered(NamedTuple):
    id: str


class Killed(Exception):
    pass


def outcome(number):
    """Input 3 is dropped; every fifth gives two rows."""
    if number == 3:
        return InputOutcome("3", (), Steps({("judge", "unparsed"): 1}))
    rows = [
        {"id": f"{number}#{k}", "prompt": f"p{number} é", "completion": "c" * (number % 7 + 1)}
        for k in range(2 if number % 5 == 0 else 1)
    ]
    return InputOutcome(str(number), rows, Steps({("judge", KEPT): 1}))


def run(out, numbers, batch=64, die_at=None, facts=FACTS):
    async def make_rows(one):
        if one.id == str(die_at):
            raise Killed
        return outcome(int(one.id))

    spending = SimpleNamespace(note=str, to_dict=dict)
    with RunFolder(out, "synthesis of short-to-long", Settings()) as folder:
        run = SynthesisRun(folder, batch, facts, {}, spending, GoldAnswers())
        return run.write((Numbered(str(number)) for number in numbers), make_rows)["counts"]


def digests(out):
    files = [out / "ledger.jsonl", out / "rows" / "rows.jsonl"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_killed_run_ends_with_the_bytes_of_one_never_killed(tmp_path):
    whole = tmp_path / "whole"
    run(whole, range(40), 4)
    for at, batch in ((0, 4), (5, 3), (11, 5), (23, 1), (38, 7)):
        out = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            run(out, range(40), batch, die_at=at)
        # Killed between the rows and the ledger, and in the middle of a line of either.
        if at:
            with (out / "rows" / "rows.jsonl").open("ab") as file:
                file.write(b'{"id": "not in the ledger"}\n{"id": "ha')
            with (out / "ledger.jsonl").open("ab") as file:
                file.write(b'{"id": "ha')
        run(out, range(40), batch)
        assert digests(out) == digests(whole), at


def test_a_run_killed_between_the_rows_and_the_ledger_doubles_nothing(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    run(whole, range(40), 4)
    append = Log.append
    for at in range(1, 10):
        calls = iter(range(1, 99))

        def killed(log, *records, calls=calls, at=at):
            if next(calls) == at:
                raise Killed
            append(log, *records)

        out = tmp_path / f"killed-{at}"
        with monkeypatch.context() as patch:
            patch.setattr(Log, "append", killed)
            with pytest.raises(Killed):
                run(out, range(40), 4)
        run(out, range(40), 4)
        assert digests(out) == digests(whole), at


def test_a_run_is_not_continued_with_other_sources_prompts_or_inputs(tmp_path):
    run(tmp_path / "run", range(20))
    for name, changed in {
        "sources": [{"name": "numbers", "license": "MIT"}],
        "prompts": {"judge": "x"},
    }.items():
        with pytest.raises(RunError, match=f"the {name} have changed"):
            run(tmp_path / "run", range(20), facts=FACTS | {name: changed})
    with pytest.raises(RunError, match="input 1 was '0'"):
        run(tmp_path / "run", range(1, 20))
    with pytest.raises(RunError, match="input 20 was '19'"):
        run(tmp_path / "run", range(19))
    with pytest.raises(DataError, match="the id '1'"):
        run(tmp_path / "other", [0, 1, 1])


def test_counts_add_up_and_are_in_the_manifest(tmp_path):
    counts = run(tmp_path / "run", range(40))
    manifest = read_manifest(tmp_path / "run")
    assert manifest["counts"] == counts
    assert counts == {
        "inputs": 40,
        "rows": 47,  # 39 kept, 8 of them twice
        "steps": {"judge": {"in": 40, "kept": 39, "dropped": {"unparsed": 1}}},
    }
    assert {name: manifest[name] for name in FACTS} == FACTS
    found = [row.demonstration for row in read_demonstrations(tmp_path / "run" / "rows")]
    assert len(found) == 47
    assert found[0].prompt[0]["content"] == "p0 é"


def test_a_finished_run_does_nothing_and_new_inputs_are_added(tmp_path):
    out = tmp_path / "run"
    run(out, range(20))
    before = digests(out)
    run(out, range(20))
    assert digests(out) == before
    assert run(out, range(30))["inputs"] == 30
    ids = [row.demonstration.id for row in read_demonstrations(out / "rows")]
    assert len(ids) == len(set(ids)) == 30 + 6 - 1  # every fifth twice, one dropped


@pytest.mark.parametrize("finished", [True, False])
def test_rows_that_lost_bytes_are_named(tmp_path, finished):
    out = tmp_path / "run"
    run(out, range(20))
    if not finished:
        (out / "files.json").unlink()
    path = out / "rows" / "rows.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(RunError, match=path.name):
        run(out, range(20))
    path.write_bytes(content)
    run(out, range(20))
