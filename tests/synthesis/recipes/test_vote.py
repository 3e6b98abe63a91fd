"""Votes of a panel: how judges are asked and counted, rows and pairs of a run, and the agreement of the judges."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from longrm.clients import Completion
from longrm.data import read, write_rows
from longrm.data.training_rows import tokenize
from longrm.runs.folder import read_manifest
from longrm.synthesis.documents import Candidate
from longrm.synthesis.labeling import gather_pool
from longrm.synthesis.long_context import SUFFICIENCY
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import vote
from longrm.synthesis.recipes.vote import PanelLabeling
from longrm.synthesis.voting import verify_votes
from longrm.types import Outcome, message_text
from longrm.worlds import words_tokenizer

from ..sources import all_outcomes, completion_of, world_documents

RATES = {"a": "error=0.1", "b": "error=0.1,misformat=0.1", "c": "error=0.4"}


@pytest.fixture
def recipe(tmp_path):
    """Thirty documents of a world, each with a right and a wrong answer, and three judges."""
    documents, candidates = [], []
    for one in world_documents(30, 400, seed=3):
        documents.append({"id": one.id, "context": one.text, "question": one.question, "answer": one.answer})
        candidates += [
            candidate.to_row() | {"score": score}
            for candidate, score in zip(one.candidates, (1.0, 0.1), strict=True)
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
            "batch": 4,
        }
        return vote.RECIPE.resolve(None, settings | changed)

    return resolve


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_measures_how_the_judges_agree(recipe, tmp_path):
    manifest = vote.synthesize(recipe(), tmp_path / "run")
    assert manifest == read_manifest(tmp_path / "run")
    votes = lines_of(tmp_path / "run" / "votes.jsonl")
    assert len(votes) == 60
    agreement = manifest["agreement"]
    pairs = [pair for one in votes for pair in combinations(one["scores"].values(), 2) if None not in pair]
    assert agreement["pairwise"]["n"] == len(pairs)
    assert agreement["pairwise"]["value"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    unparsed = Counter(judge for one in votes for judge, score in one["scores"].items() if score is None)
    assert {judge: one["unparsed"] for judge, one in agreement["judges"].items()} == {
        judge: unparsed[judge] for judge in "abc"
    }
    assert unparsed["b"] > 0 == unparsed["a"]
    alpha = agreement["krippendorff_alpha"]
    assert 0 < alpha["low"] < alpha["value"] < alpha["high"] < 1
    assert alpha["groups"] == 30
    counts = manifest["counts"]
    assert counts["steps"]["votes read"]["in"] == 180
    assert counts["steps"]["votes read"]["dropped"] == {"unparsed": unparsed["b"]}
    assert counts["steps"]["padding"]["kept"] == counts["rows"] == len([*read(tmp_path / "run" / "rows")])


def test_a_run_killed_between_votes_and_ledger_logs_no_vote_twice(recipe, tmp_path):
    out = tmp_path / "run"
    first = vote.synthesize(recipe(), out)
    before = {name: (out / name).read_bytes() for name in ("votes.jsonl", "ledger.jsonl")}
    (out / "files.json").unlink()
    (out / "ledger.jsonl").write_bytes(b"".join(before["ledger.jsonl"].splitlines(keepends=True)[:-4]))
    second = vote.synthesize(recipe(), out)
    assert {name: (out / name).read_bytes() for name in before} == before
    assert second["agreement"] == first["agreement"]


def sources(count=4):
    """Documents with three candidates, which earn 8, 5 and 2 points."""
    for document in world_documents(count):
        best, worst = document.candidates
        other = Candidate(document.id, "o", f"{worst.text} I think.")
        yield replace(document, candidates=(best, worst, other))


SOURCES = list(sources())
POINTS = {candidate.text: 8 - 3 * at for source in SOURCES for at, candidate in enumerate(source.candidates)}


class Judge:
    """Gives 8, 5 and 2 points to the three candidates, and its own bias; or a scripted reply."""

    def __init__(self, name, bias=0, says=None):
        self.name, self.bias, self.says, self.read, self.seeds = name, bias, says, [], set()

    async def ask(self, requests):
        self.seeds |= {request.seed for request in requests}
        return [self._answer(message_text(request.messages[-1])) for request in requests]

    def _answer(self, text):
        self.read.append(text)
        if self.says is not None:
            return completion_of(self.says)
        if text.endswith(SUFFICIENCY):
            return completion_of("[[yes]]")
        response = text.partition("<response>\n")[2].partition("\n</response>")[0]
        return completion_of(f"{self.name} has looked it up.\n\n[[{POINTS[response] + self.bias}]]")


def judges(*biases):
    return [Judge(f"judge {number}", bias) for number, bias in enumerate(biases)]


class WorldRecipe(vote.RECIPE):
    def read(self):
        return sources(12)


def make(panel, given=SOURCES, **changed):
    settings = {
        "documents": {"path": "none"},
        "candidates": {"synthetic": True},
        "judges": [{"model": "simulated:0", "name": name} for name in "ab"],
        "lengths": (1500, 2500),
        "chunk_size": 48,
        "evidence_from": "given",
    }
    recipe = WorldRecipe.resolve(None, settings | changed)
    pool = gather_pool(recipe, words_tokenizer())
    labeling = PanelLabeling(recipe, words_tokenizer(), pool, panel)
    found = all_outcomes(labeling.make_rows, given)
    return [row for one in found for row in one.rows], [nested(one.steps) for one in found]


def test_rows_have_the_consensus_over_the_long_context_and_the_outvoted_judgments(tmp_path):
    panel = [*judges(0, 0, 0, 1), Judge("mute", says="No idea.")]
    rows, steps = make(panel)
    assert [one["votes read"] for one in steps] == [{"kept": 12, "unparsed": 3}] * 4
    assert all(one["contrast"] == one["padding"] == {"kept": 3} for one in steps)
    assert all(len(words_tokenizer().encode(text)) < 500 for judge in panel for text in judge.read)
    write_rows(tmp_path / "rows.jsonl", rows)
    found = list(read(tmp_path / "rows.jsonl"))
    assert len(found) == 12
    for number, row in enumerate(found):
        comparison, source = row.comparison, SOURCES[number // 3]
        candidate, columns = source.candidates[number % 3], comparison.metadata
        text, points = message_text(comparison.prompt[0]), POINTS[candidate.text]
        assert comparison.role == "judgment"
        agreeing = {f"judge {at}": points for at in range(3)}
        assert columns["scores"] == {**agreeing, "judge 3": points + 1, "mute": -1}
        assert (columns["conf"], columns["consensus_score"], columns["contrast"]) == (
            [3, 1, 1],
            points,
            "score",
        )
        assert columns["reject_models"] == ["judge 3", "mute"]
        assert (columns["answer"], columns["query"]) == (candidate.text, source.question)
        assert f"<response>\n{candidate.text}\n</response>" in text
        size = len(words_tokenizer().prompt_ids(comparison.prompt))
        assert columns["length"] - 16 <= size == columns["prompt_ctx_length"] <= columns["length"]
        before = text.partition("<context>\n")[2][: columns["evidence"][0]["start"] - len("<context>\n")]
        assert before.count("\n\n") == columns["insert_index"]
        assert tokenize(row, words_tokenizer(verdicts=True)).contrast
        assert verify_votes(comparison).same_conf


@pytest.mark.parametrize(
    "said",
    [
        Completion(Outcome.TRUNCATED, "It is sound, so I would say [[9]]"),
        Completion(Outcome.REFUSED, "[[9]]"),
        "Between two: [[2.5]]",
    ],
)
def test_incomplete_and_fractional_judgments_are_no_votes(said):
    rows, steps = make([*judges(0, 0), Judge("odd", says=said)])
    assert [one["votes read"] for one in steps] == [{"kept": 6, "unparsed": 3}] * 4
    assert {(row["scores"]["odd"], *row["conf"]) for row in rows} == {(-1, 2, 1)}


def test_every_judge_has_its_own_seeds():
    panel, again = judges(0, 0, 1), judges(0, 0, 1)
    assert make(panel) == make(again)
    assert len(set.union(*(judge.seeds for judge in panel))) == 3 * 12
    assert [judge.seeds for judge in panel] == [judge.seeds for judge in again]


def test_answers_without_consensus_or_contrast_are_dropped_before_padding():
    rows, steps = make(judges(0, 0, 0))
    assert rows == []
    assert [one["contrast"] for one in steps] == [{"no_contrast": 3}] * 4
    assert not any("padding" in one for one in steps)
    rows, steps = make(judges(0, 1))
    assert [one["consensus"] for one in steps] == [{"tie": 3}] * 4


def test_pairs_follow_the_consensus_over_one_long_context(tmp_path):
    rows, steps = make(judges(0, 0, 1), rows="pairs")
    assert [one["pairs"] for one in steps] == [{"kept": 3}] * 4
    write_rows(tmp_path / "rows.jsonl", rows)
    for number, row in enumerate(read(tmp_path / "rows.jsonl")):
        columns, candidates = row.comparison.metadata, SOURCES[number // 3].candidates
        better, worse = ((0, 1), (0, 2), (1, 2))[number % 3]
        listed = [message_text(row.comparison.responses[at][0]) for at in row.comparison.best_first()]
        assert listed == [candidates[better].text, candidates[worse].text]
        scores = [columns["judge_scores"][at] for at in row.comparison.best_first()]
        assert scores == [8 - 3 * better, 8 - 3 * worse]
        assert (columns["points_apart"], columns["conf"]) == (scores[0] - scores[1], [[2, 1], [2, 1]])
        assert not tokenize(row, words_tokenizer()).margin  # points are no margin of scores


def test_the_first_judge_checks_what_suffices():
    panel = judges(0, 0, 1)
    make(panel, sufficiency="judge")
    assert [sum(text.endswith(SUFFICIENCY) for text in judge.read) for judge in panel] == [4, 0, 0]
