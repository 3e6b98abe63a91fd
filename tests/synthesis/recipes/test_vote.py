import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from longrm.data import read, write_rows
from longrm.errors import ConfigError, RunError
from longrm.runs.folder import read_manifest
from longrm.synthesis.inputs.documents import Document, read_documents
from longrm.synthesis.recipes import vote
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

LEVAL = Path(__file__).parents[4] / "shared" / "data" / "leval"
RATES = {"a": "error=0.1", "b": "error=0.1,misformat=0.1", "c": "error=0.4"}


@pytest.fixture
def recipe(tmp_path):
    """Thirty documents of a world, each with a right and a wrong answer, and three judges."""
    documents, candidates = [], []
    for comparison in generate(WorldPlan("records", 400, seed=3), 30, words_tokenizer()):
        text, context, question = (
            message_text(comparison.prompt[0]),
            comparison.context[0],
            comparison.question,
        )
        best, worst = (message_text(comparison.responses[at][0]) for at in comparison.best_first())
        document = Document(
            comparison.id, text[context.start : context.end], text[question.start : question.end], best
        )
        documents.append(
            {"id": document.id, "context": document.text, "question": document.question, "answer": best}
        )
        candidates += [
            {"document": document.id, "model": name, "text": answer, "score": score}
            for name, answer, score in (("m", best, 1.0), ("n", worst, 0.1))
        ]
    write_rows(tmp_path / "documents.jsonl", documents)
    write_rows(tmp_path / "candidates.jsonl", candidates)

    def resolve(**changed):
        settings = {
            "lengths": [800, 1200],
            "chunk_size": 48,
            "documents": {"path": str(tmp_path / "documents.jsonl")},
            "candidates": {"path": str(tmp_path / "candidates.jsonl")},
            "judges": [{"model": f"simulated:{rates}", "name": name} for name, rates in RATES.items()],
            "output": {"batch": 4},
        }
        return vote.RECIPE.resolve(None, settings | changed)

    return resolve


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_tells_how_the_judges_agree(recipe, tmp_path):
    manifest = vote.synthesize(recipe(), tmp_path / "run")
    assert manifest == read_manifest(tmp_path / "run")
    votes = lines_of(tmp_path / "run" / "votes.jsonl")
    assert len(votes) == 60
    assert {one["id"].rpartition("#")[0] for one in votes} == {
        one["document"] for one in lines_of(tmp_path / "candidates.jsonl")
    }
    told = manifest["agreement"]
    agreeing = [
        one["scores"][first] == one["scores"][second]
        for one in votes
        for first, second in combinations("abc", 2)
        if None not in (one["scores"][first], one["scores"][second])
    ]
    assert told["pairwise"]["n"] == len(agreeing)
    assert told["pairwise"]["value"] == pytest.approx(sum(agreeing) / len(agreeing))
    unparsed = Counter(judge for one in votes for judge, score in one["scores"].items() if score is None)
    assert {judge: one["unparsed"] for judge, one in told["judges"].items()} == {
        j: unparsed[j] for j in "abc"
    }
    assert unparsed["b"] > 0 == unparsed["a"]
    alpha = told["krippendorff_alpha"]
    assert 0 < alpha["low"] < alpha["value"] < alpha["high"] < 1
    assert alpha["groups"] == 30
    steps = manifest["counts"]["steps"]
    assert steps["votes read"]["in"] == 180
    assert steps["votes read"]["dropped"] == {"unparsed": unparsed["b"]}
    assert (
        steps["padding"]["kept"]
        == manifest["counts"]["rows"]
        == sum(1 for _ in read(tmp_path / "run" / "rows"))
    )


def test_pairs_of_a_run_are_mostly_right(recipe, tmp_path):
    vote.synthesize(recipe(rows="pairs"), tmp_path / "run")
    gold = {one["id"]: one["answer"] for one in lines_of(tmp_path / "documents.jsonl")}
    found = [row.comparison for row in read(tmp_path / "run" / "rows")]
    right = [
        message_text(one.responses[one.best_first()[0]][0]) == gold[one.metadata["document"]] for one in found
    ]
    assert len(right) > 20
    assert sum(right) / len(right) > 0.9


def test_judges_are_weighed_by_an_earlier_vote(recipe, tmp_path):
    vote.synthesize(recipe(), tmp_path / "first")
    manifest = vote.synthesize(recipe(weights=str(tmp_path / "first")), tmp_path / "second")
    weights = manifest["agreement"]["weights"]
    assert weights["c"] < min(weights["a"], weights["b"])
    assert sum(weights.values()) == pytest.approx(3)
    assert lines_of(tmp_path / "first" / "votes.jsonl") == lines_of(tmp_path / "second" / "votes.jsonl")
    assert manifest["sources"][-1]["sha256"]
    with pytest.raises(ConfigError, match="names no vote"):
        vote.synthesize(recipe(weights=str(tmp_path / "nowhere")), tmp_path / "third")
    assert not (tmp_path / "third").exists()
    other = recipe(
        weights=str(tmp_path / "first"), judges=[{"model": "simulated:0", "name": n} for n in "ad"]
    )
    with pytest.raises(ConfigError, match="no weight for the judges d"):
        vote.synthesize(other, tmp_path / "third")


def test_other_settings_are_refused_in_the_same_folder(recipe, tmp_path):
    vote.synthesize(recipe(), tmp_path / "run")
    with pytest.raises(RunError, match=r"voting\.majority"):
        vote.synthesize(recipe(voting={"majority": 0.3}), tmp_path / "run")


def test_killed_runs_lose_and_double_nothing(recipe, tmp_path):
    vote.synthesize(recipe(), tmp_path / "whole")
    config, killed = tmp_path / "whole" / "config.toml", tmp_path / "killed"
    command = (
        "import sys; from pathlib import Path; from longrm.synthesis.recipes import vote; "
        "vote.synthesize(vote.RECIPE.resolve(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    lines = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", command, str(config), str(killed)])
        try:
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                ledger = killed / "ledger.jsonl"
                if ledger.exists() and ledger.read_bytes().count(b"\n") >= lines + 4:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            process.wait(60)
        finally:
            process.kill()
        lines = (killed / "ledger.jsonl").read_bytes().count(b"\n")
    assert lines < 30, "never killed in the middle"
    vote.synthesize(recipe(), killed)
    for name in ("votes.jsonl", "ledger.jsonl", "rows/rows-00000.jsonl"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    manifests = [read_manifest(tmp_path / name) for name in ("whole", "killed")]
    assert manifests[0]["counts"] == manifests[1]["counts"]
    assert manifests[0]["agreement"] == manifests[1]["agreement"]


@pytest.mark.real
@pytest.mark.skipif(not LEVAL.is_dir(), reason="needs the real data beside the checkout")
def test_real_documents_are_voted_on_and_become_long_pairs(recipe, tmp_path):
    documents, candidates = {"path": str(LEVAL), "limit": 150}, {"recorded": True}
    changed = {"documents": documents, "candidates": candidates, "lengths": [4096], "chunk_size": 128}
    manifest = vote.synthesize(recipe(rows="pairs", **changed), tmp_path / "run")
    steps = manifest["counts"]["steps"]
    assert steps["votes read"]["in"] == 3 * len(lines_of(tmp_path / "run" / "votes.jsonl")) > 0
    texts = {document.id: document.text for document in read_documents(LEVAL)}
    found = [row.comparison for row in read(tmp_path / "run" / "rows")]
    assert found
    for comparison in found:
        prompt = message_text(comparison.prompt[0])
        assert all(
            prompt[s.start : s.end] in texts[comparison.metadata["document"]] for s in comparison.evidence
        )
        assert 4080 <= comparison.metadata["tokens"] <= 4096


def test_a_judge_that_would_say_the_same_twice_is_refused(recipe):
    twice = [{"model": "openai:http://127.0.0.1:9/v1#m", "name": name} for name in "ab"]
    with pytest.raises(ValueError, match="votes twice, and at temperature 0"):
        recipe(judges=twice)
    assert len(recipe(judges=twice, temperature=1.0).judges) == 2
    with pytest.raises(ValueError, match='an evidence_model is asked only with evidence_from = "model"'):
        recipe(evidence_model={"model": "simulated:0"})
