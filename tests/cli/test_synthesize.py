"""`longrm synthesize`: from documents to demonstrations."""

import json

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import read_demonstrations
from longrm.errors import RunError
from longrm.runs.folder import read_manifest
from longrm.synthesis.documents import read_candidates

RESPONSES = """
documents = {path = "w.jsonl", format = "comparisons", license = "Apache-2.0"}
[[writers]]
model = "simulated:0.2"
name = "careless"
[[plans]]
[[plans]]
perturbations = [{name = "drop_clues", p = 1}]
"""
STAGE_1 = """
lengths = [512, 768]
evidence_from = "given"
documents = {path = "w.jsonl", format = "comparisons"}
candidates = {path = "responses"}
judge = {model = "simulated:misformat=0.2"}
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("world", "records", "--length", "200", "--n", "20", "--out", "w.jsonl")
    (tmp_path / "responses.toml").write_text(RESPONSES)
    (tmp_path / "stage1.toml").write_text(STAGE_1)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)


def test_from_documents_to_demonstrations(recipes):
    assert (
        "40 rows from 20 inputs"
        in run("synthesize", "responses", "--config", "responses.toml", "--out", "responses").output
    )
    found = [*read_candidates(recipes / "responses" / "rows")]
    assert {candidate.perturbation for candidate in found} == {"", "drop_clues"}
    arguments = ("synthesize", "short-to-long", "--config", "stage1.toml", "--out", "stage1")
    done = run(*arguments)
    rows = [row.demonstration for row in read_demonstrations("stage1/rows")]
    assert f"{len(rows)} rows from 20 inputs, saved to stage1/rows" in done.output
    judged = read_manifest(recipes / "stage1")["counts"]["steps"]["judgment"]
    assert 20 < judged["in"] < 40  # some models write the same
    assert judged["dropped"].keys() == {"unparsed"}
    assert judged["kept"] == len(rows) < judged["in"]
    unparsed = judged["dropped"]["unparsed"]
    assert (
        f"{unparsed} dropped replies: their text is in stage1/ledger.jsonl, field 'unusable'" in done.output
    )
    before = (recipes / "stage1" / "ledger.jsonl").read_bytes()
    assert run(*arguments).stdout == done.stdout
    assert (recipes / "stage1" / "ledger.jsonl").read_bytes() == before
    manifest = json.loads(run(*arguments, "--json").stdout)
    assert manifest["models"] == {"judge": "simulated:misformat=0.2"}
    assert [source["name"] for source in manifest["sources"]] == ["w.jsonl", "candidates"]


def test_a_run_without_a_row_fails_and_names_what_every_step_dropped(recipes):
    run("synthesize", "responses", "--config", "responses.toml", "--out", "responses")
    arguments = ("synthesize", "short-to-long", "--config", "stage1.toml", "--out", "none")
    nothing = ("--set", "judge.model=simulated:misformat=1")
    message = r"^none: no row from 20 inputs; .*judgment dropped \d+ unparsed"
    for _ in range(2):  # a finished run fails again
        with pytest.raises(RunError, match=message):
            run(*arguments, *nothing)
    with pytest.raises(RunError, match=message):
        run(*arguments, *nothing, "--json")


def test_pairs_of_the_bandit_train_a_policy_as_the_page_says(recipes):
    settings = "documents.path=w.jsonl documents.format=comparisons sampling=bandit bandit.rounds=4"
    writers = 'writers=[{model = "simulated:0.1"}]'
    arguments = [part for one in [*settings.split(), writers, "bandit.rows=pairs"] for part in ("--set", one)]
    printed = run("synthesize", "responses", "--out", "pairs", *arguments).stdout
    assert "longrm train preference --set data.path=pairs/rows" in printed
