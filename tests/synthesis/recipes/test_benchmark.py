import asyncio
import json
from collections import Counter

import pytest

from longrm import benchmarks
from longrm.clients import Completion
from longrm.errors import DataError, RunError
from longrm.synthesis.documents import Document
from longrm.synthesis.recipes import benchmark
from longrm.synthesis.recipes.benchmark import (
    RECIPE,
    chosen_comparisons,
    rate_by_judge,
    synthesize,
    write_benchmark,
)
from longrm.synthesis.selection import tier_of
from longrm.types import Outcome, text_of

from ..sources import completion_of
from ..test_selection import WORDS, answer, planted, selected

pytest.importorskip("sacrebleu")
RIGHTS = {"a": 10, "b": 7, "c": 4, "d": 0}


@pytest.fixture
def written_benchmark():
    """Loads a folder in the schema of Long-RewardBench."""
    source = benchmarks.BenchmarkSource()
    return lambda folder: benchmarks.load(
        f"long-rewardbench:{folder}", source=source, probe=benchmarks.Probe()
    )


@pytest.fixture
def recipe(put):
    """Four texts with two questions each, and four candidates of known worth a question."""
    documents, candidates = [], []
    for number in range(8):
        text = f"Text {number // 2}. " + "Nothing happens here. " * 300
        question, name = f"What of {number}?", f"d{number}"
        gold = {"id": name, "context": text, "question": question, "answer": " ".join(WORDS)}
        documents.append(gold | {"task": "LongQA", "metric": "token_f1"})
        candidates += [
            {"document": name, "model": model, "text": answer(right)} for model, right in RIGHTS.items()
        ]
    return {
        "documents.path": str(put("documents.jsonl", *documents)),
        "documents.license": "mit",
        "candidates.path": str(put("candidates/rows/rows-00000.jsonl", *candidates).parents[1]),
        "pairs": 12,
        "rankings": 4,
    }


def of(recipe, **more):
    return RECIPE.resolve(None, recipe | more)


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in (".jsonl", ".md")}


def test_a_recipe_becomes_a_benchmark_that_evaluations_read(tmp_path, recipe, written_benchmark):
    manifest = synthesize(of(recipe), tmp_path / "out")
    rows = list(written_benchmark(tmp_path / "out").comparisons)
    assert len(rows) == manifest["counts"]["rows"] == 12 + 3 * 4
    assert manifest["counts"] == json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]
    for row in rows:  # the planted order, best first
        scores = row.metadata["candidates_score"]
        assert scores == sorted(scores, reverse=True)
        assert row.metadata["second_check"] == "agrees"
    steps = manifest["counts"]["steps"]
    assert steps["candidates"] == {"in": 32, "kept": 32, "dropped": {}}
    for step in steps.values():  # nothing is lost uncounted
        assert step["in"] == step["kept"] + sum(step["dropped"].values())
    assert manifest["models"] == {"writers": "a, b, c, d"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: mit" in card
    assert "written by a, b, c, d." in card
    assert "are synthetic" not in card
    assert "| all | | | 24 |" in card
    assert "| candidates | 32 | 32 |  |" in card


def test_a_finished_run_is_left_alone_and_a_killed_one_ends_the_same(tmp_path, recipe, monkeypatch):
    synthesize(of(recipe), tmp_path / "whole")
    whole = files_of(tmp_path / "whole")
    stamp = (tmp_path / "whole" / "LongQA.jsonl").stat().st_mtime_ns
    synthesize(of(recipe), tmp_path / "whole")
    assert (tmp_path / "whole" / "LongQA.jsonl").stat().st_mtime_ns == stamp

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "data_card", killed)
    with pytest.raises(KeyboardInterrupt):
        synthesize(of(recipe), tmp_path / "killed")
    assert not (tmp_path / "killed" / "README.md").exists()
    monkeypatch.undo()
    synthesize(of(recipe), tmp_path / "killed")
    assert files_of(tmp_path / "killed") == whole
    synthesize(of(recipe, seed=1), tmp_path / "other")
    assert files_of(tmp_path / "other") != whole

    (tmp_path / "whole" / "LongQA.jsonl").write_text("")
    with pytest.raises(RunError, match=r"LongQA\.jsonl"):
        synthesize(of(recipe), tmp_path / "whole")


def test_a_simulated_judge_checks_and_errs_at_its_rate(tmp_path, recipe, written_benchmark):
    judged = {"second_check.model": "simulated:0"}
    right = synthesize(of(recipe, **judged), tmp_path / "right")
    checked = right["counts"]["second_check"]["token_f1"]
    assert checked["disagreement"] == 0
    assert right["models"]["second check"] == "simulated:0"
    wrong = synthesize(of(recipe, **judged | {"second_check.model": "simulated:0.9"}), tmp_path / "wrong")
    assert wrong["counts"]["second_check"]["token_f1"]["disagreement"] > 0.3
    kept = written_benchmark(tmp_path / "wrong").comparisons
    assert {row.metadata["second_check"] for row in kept} == {"agrees"}
    assert "the judge simulated:0.9, which rated" in (tmp_path / "wrong" / "README.md").read_text()


def test_the_loader_reads_back_what_was_built(tmp_path, written_benchmark):
    read = planted()
    chosen, _ = selected(read)
    written, extremes = write_benchmark(tmp_path, read, chosen)
    assert written == {"LongQA": len(chosen) // 2, "Summ": len(chosen) // 2}
    found = written_benchmark(tmp_path)
    rows = list(found.comparisons)
    findings = {kind: finding.count for kind, finding in found.audit.findings.items() if finding.count}
    assert findings == {"missing_tasks": 5}  # no odd length, score, question or response
    built = [c for task in ("LongQA", "Summ") for c in chosen_comparisons(read, chosen, task)]
    assert len(rows) == len(built) == len(chosen)
    for row, comparison in zip(rows, built, strict=True):
        for name in ("prompt", "responses", "ranks", "group", "question"):
            assert getattr(row, name) == getattr(comparison, name)
        (found_context,), (context,) = row.context, comparison.context
        # The loader counts the frame of the context as well.
        assert found_context.start <= context.start < context.end <= found_context.end
        for key in ("length", "subtype", "candidates_score", "second_check", "source"):
            assert row.metadata[key] == comparison.metadata[key]
        right = [sum(word in WORDS for word in text_of(response).split()) for response in row.responses]
        assert row.metadata["candidates_score"] == pytest.approx([one / 10 for one in right])
        if row.metadata["tasktype"] == "BestOfN":
            tiers = [tier_of(one / 10) for one in right]
            assert tiers == sorted({*tiers} - {None})
    kinds = Counter((row.metadata["tasktype"], row.metadata["subtype"]) for row in rows)
    # Of the ten pairs of a document, 4 over 3 is too close, and one is already there as a ranking of two.
    assert kinds[("PairWise", "cross")] + kinds[("PairWise", "same")] == 24 * 8
    assert [kinds[("BestOfN", n)] for n in "234"] == [24, 24, 24]
    assert 0 < sum(extremes.values()) <= len(rows)
    with pytest.raises(DataError, match="is gone"):
        write_benchmark(tmp_path, planted(texts=5), chosen)


class Judge:
    """Gives a scripted reply to the response in a prompt."""

    name = "scripted"

    def __init__(self, script):
        self.script, self.prompts = script, []

    async def ask(self, requests):
        prompts = [request.messages[0]["content"] for request in requests]
        self.prompts += prompts
        return [
            completion_of(next(said for text, said in self.script.items() if f"\n{text}\n" in prompt))
            for prompt in prompts
        ]


def test_a_judge_reads_the_text_and_not_the_gold_answer():
    texts = {
        "good": "Right.\n\n[[9]]",
        "bad": "No.\n\n[[2.5]]",
        "odd": "Who knows?",
        "long": Completion(Outcome.TOO_LONG),
    }
    judge = Judge(texts)
    document = Document("d", "All of the text.", "Which one?", "the secret gold", metric="token_f1")
    assert asyncio.run(rate_by_judge(judge, 64)(document, [*texts])) == [9, 2.5, None, None]
    assert all("All of the text." in prompt and "Which one?" in prompt for prompt in judge.prompts)
    assert not any("secret gold" in prompt for prompt in judge.prompts)
    down = Judge({"good": Completion(Outcome.ERROR, detail="no route")})
    with pytest.raises(RunError, match="scripted.*no route"):
        asyncio.run(rate_by_judge(down, 64)(document, ["good"]))
