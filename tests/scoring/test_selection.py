"""Ranked and filtered files against plain Python over the file that `longrm score` has written."""

import json
import random

import pytest

from longrm import reward_models
from longrm.cli.score import filter_ as filter_command
from longrm.data import read, read_demonstrations
from longrm.errors import ConfigError, DataError, RunError
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.scoring.selection import filter_file, rank_file
from longrm.types import Judgment, Outcome

MODEL = "baseline:longest"  # a score is the number of characters, so that an oracle can be read off the texts
WORDS = ["a", "bb", "ccc", "dddd", "eeee", "f" * 9]


def response(row, place):
    """The texts of a row differ; some are as long as others."""
    return f"{row:03}{random.Random(4 * row + place).choice(WORDS)}{'xyzw'[place]}"


def candidates(n=40, **more):
    """Rows of four responses without a gold order."""
    return [
        {
            "id": f"r{row}",
            "prompt": f"Document {row}. Question {row}?",
            "question": f"Question {row}?",
            "responses": [response(row, place) for place in range(4)],
            "length": 128 + row,
            **more,
        }
        for row in range(n)
    ]


def pairs(n=40):
    return [
        {"prompt": f"Question {row}?", "chosen": response(row, 0), "rejected": response(row, 1), "topic": row}
        for row in range(n)
    ]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def text(messages):
    (message,) = messages
    return message["content"]


@pytest.fixture
def scored(put, tmp_path):
    """Writes rows, has them scored, and returns the scored file and its rows."""

    def score(rows, name="scored.jsonl"):
        out = tmp_path / name
        score_file(ScoreSettings(model=MODEL, data=str(put("data.jsonl", *rows))), out)
        return out, lines(out)

    return score


def rank(data, out, **settings):
    forms = {name: settings.pop(name) for name in ("best", "pairs") if name in settings}
    return rank_file(ScoreSettings(data=str(data), **settings), out, **forms)


def keep(data, out, **settings):
    bounds = {
        name: settings.pop(name) for name in ("min_margin", "max_margin", "near_tie") if name in settings
    }
    return filter_file(ScoreSettings(data=str(data), **settings), out, **bounds)


@pytest.mark.parametrize("best", [None, 3, 2])
def test_a_ranking_holds_the_best_responses_in_the_order_of_the_scores(scored, tmp_path, best):
    path, rows = scored(candidates())
    counts = rank(path, tmp_path / "ranked.jsonl", best=best)
    ranked = lines(tmp_path / "ranked.jsonl")
    assert (counts.rows, counts.written, counts.dropped) == (40, 40, {})
    for row, found in zip(rows, ranked, strict=True):
        assert [len(answer) for answer in row["responses"]] == row["scores"], "the oracle holds"
        order = sorted(range(4), key=lambda index: (-row["scores"][index], index))[:best]
        assert found["order"] == order
        assert [text(answer) for answer in found["responses"]] == [row["responses"][index] for index in order]
        assert found["scores"] == [row["scores"][index] for index in order]
        assert found["ranks"] == [
            1 + len({score for score in found["scores"] if score > own}) for own in found["scores"]
        ]
        assert found["metadata"] == {"length": row["length"]}
    assert len({tuple(found["order"]) for found in ranked}) > 3
    assert any(len(set(found["ranks"])) < len(found["ranks"]) for found in ranked), "some scores tie"
    reading = read(tmp_path / "ranked.jsonl")
    assert reading.format == "longrm"
    assert [row.comparison.question.start for row in reading] == [
        row["prompt"].index("Question") for row in rows
    ]


def test_the_best_response_becomes_a_demonstration(scored, tmp_path):
    path, rows = scored(candidates())
    rank(path, tmp_path / "best.jsonl", best=1)
    tied = []  # of rows with several best responses, whether the first of these is chosen
    for row, found in zip(rows, lines(tmp_path / "best.jsonl"), strict=True):
        (best,) = found["order"]
        assert row["scores"][best] == max(row["scores"])
        if row["scores"].count(max(row["scores"])) > 1:
            tied.append(best == row["scores"].index(max(row["scores"])))
        assert text(found["completion"]) == row["responses"][best]
        assert text(found["prompt"]) == row["prompt"]
        assert (found["scores"], found["id"]) == ([row["scores"][best]], row["id"])
    assert 0 < sum(tied) < len(tied), "the first may be gold"
    assert len(list(read_demonstrations(tmp_path / "best.jsonl"))) == 40


def test_the_best_and_the_worst_become_a_pair(scored, tmp_path):
    path, rows = scored(
        [*candidates(), {"id": "tied", "prompt": "Which?", "responses": ["one", "two", "six"]}]
    )
    counts = rank(path, tmp_path / "pairs.jsonl", pairs=True)
    untied = [row for row in rows if max(row["scores"]) > min(row["scores"])]
    assert 1 <= counts.dropped["tied"] == 41 - len(untied)
    for row, pair in zip(untied, lines(tmp_path / "pairs.jsonl"), strict=True):
        assert len(text(pair["chosen"])) == max(row["scores"]) == pair["scores"][0]
        assert len(text(pair["rejected"])) == min(row["scores"]) == pair["scores"][1]
        assert [text(pair["chosen"]), text(pair["rejected"])] == [
            row["responses"][index] for index in pair["order"]
        ]
    reading = read(tmp_path / "pairs.jsonl")
    assert reading.format == "trl"
    assert [row.comparison.metadata["length"] for row in reading] == [row["length"] for row in untied]
    assert all(row.comparison.question for row in reading)


def test_of_identical_responses_one_is_kept(scored, tmp_path):
    rows = [
        {"prompt": "Which?", "responses": ["long one", "short", "long one"]},
        {"prompt": "And now?", "responses": ["same", "same"]},
    ]
    path, _ = scored(rows)
    counts = rank(path, tmp_path / "ranked.jsonl")
    (found,) = lines(tmp_path / "ranked.jsonl")
    assert found["order"] == [0, 1]
    assert counts.dropped == {"identical": 1}
    assert rank(path, tmp_path / "best.jsonl", best=1).written == 2


BOUNDS = [
    {"min_margin": 0.0},
    {"min_margin": 3.0},
    {"min_margin": -2.0, "max_margin": 4.0},
    {"near_tie": 2.0},
    {"near_tie": 1.5, "min_margin": -4.0, "max_margin": 3.0},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_filter_keeps_rows_by_margin_unchanged(scored, tmp_path, bounds):
    path, rows = scored(pairs())
    counts = keep(path, tmp_path / "kept.jsonl", **bounds)
    margins = [row["scores"][0] - row["scores"][1] for row in rows]
    assert min(margins) < 0 < max(margins), "the scores contradict some of the gold"
    expected = [
        row
        for row, margin in zip(rows, margins, strict=True)
        if bounds.get("min_margin", -99) <= margin <= bounds.get("max_margin", 99)
        and not abs(margin) < bounds.get("near_tie", 0)
    ]
    assert 0 < len(expected) < 40
    assert lines(tmp_path / "kept.jsonl") == expected
    assert counts.written == len(expected)
    assert counts.written + counts.dropped.total() == counts.rows == 40


@pytest.mark.parametrize("gold", [None, [2, 1, 1, 3], [1, 1, 1, 1]], ids=str)
def test_the_margin_uses_the_best_response_of_each_side(scored, tmp_path, gold):
    path, rows = scored(candidates(**({} if gold is None else {"ranks": gold})))
    counts = keep(path, tmp_path / "kept.jsonl", min_margin=2.0)
    expected = []
    for row in rows:
        scores = row["scores"]
        if gold is None:
            first, second = sorted(scores, reverse=True)[:2]
            margin = first - second
        else:
            margin = max(scores[1], scores[2]) - max(scores[0], scores[3])
        expected += [row] if margin >= 2.0 else []
    if gold == [1, 1, 1, 1]:
        assert counts.dropped == {"tied gold": 40}
        return
    assert 0 < len(expected) < 40
    assert lines(tmp_path / "kept.jsonl") == expected


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_scoring_and_selecting_at_once_gives_equal_bytes(scored, put, tmp_path, suffix):
    path, _ = scored(pairs())
    data = tmp_path / "data.jsonl"
    for name, make, settings in (
        ("ranked", rank, {"pairs": True}),
        ("best", rank, {"best": 1}),
        ("kept", keep, {"near_tie": 1.0}),
    ):
        after, at_once = tmp_path / f"{name}-after.{suffix}", tmp_path / f"{name}-at-once.{suffix}"
        make(path, after, **settings)
        make(data, at_once, model=MODEL, **settings)
        assert at_once.read_bytes() == after.read_bytes()
        assert not at_once.with_name(at_once.name + ".partial").exists()


def test_a_killed_run_continues_with_another_selection(put, tmp_path, monkeypatch):
    data, out, whole = put("data.jsonl", *candidates()), tmp_path / "best.jsonl", tmp_path / "whole.jsonl"
    rank(data, whole, model=MODEL, best=1)
    judged, model = [], reward_models.load(MODEL)
    judge = model.judge

    def judge_two_batches(queries):
        if len(judged) == stop_at:
            raise KeyboardInterrupt
        judged.append([query.id for query in queries])
        return judge(queries)

    model.judge = judge_two_batches
    monkeypatch.setattr(reward_models, "load", lambda *_, **__: model)
    stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        rank(data, out, model=MODEL, pairs=True)
    assert not out.exists()
    stop_at = -1
    rank(data, out, model=MODEL, best=1)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(name for batch in judged for name in batch) == sorted(f"r{row}" for row in range(40))


def test_rows_without_scores_are_dropped_and_counted(put, tmp_path):
    rows = [row | {"scores": [1, 2, 3, 4], "scores_outcome": "answered"} for row in candidates(4)]
    rows[1] |= {"scores": None, "scores_outcome": "too_long"}
    rows[2] |= {"scores": None, "scores_outcome": "error"}
    data = put("scored.jsonl", *rows)
    for counts in (rank(data, tmp_path / "r.jsonl"), keep(data, tmp_path / "k.jsonl", min_margin=0.0)):
        assert counts.dropped == {"too_long": 1, "error": 1}
        assert (counts.rows, counts.written) == (4, 2)


def test_scores_of_another_source_need_a_column(put, tmp_path):
    rows = [row | {"scores": [4, 3, 2, 1]} for row in candidates(3)]
    data = put("others.jsonl", *rows)
    with pytest.raises(DataError, match="no scores written by longrm score; name a --model"):
        rank(data, tmp_path / "r.jsonl")
    rank(data, tmp_path / "r.jsonl", column="scores")
    assert [row["order"] for row in lines(tmp_path / "r.jsonl")] == [[0, 1, 2, 3]] * 3
    both = [row | {"model_scores": [1, 2, 3, 4], "model_scores_outcome": "answered"} for row in rows]
    rank(put("both.jsonl", *both), tmp_path / "r.jsonl")
    assert [row["order"] for row in lines(tmp_path / "r.jsonl")] == [[3, 2, 1, 0]] * 3


@pytest.mark.parametrize("change", [{"scores": [1, 2, 3, float("inf")]}, {"scores": None}], ids=str)
def test_a_row_with_bad_scores_is_named_or_skipped(put, tmp_path, change):
    rows = [row | {"scores": [1, 2, 3, 4], "scores_outcome": "answered"} for row in candidates(5)]
    rows[2] |= change
    data = put("scored.jsonl", *rows)
    with pytest.raises(DataError, match=r"scored.jsonl, line 3"):
        rank(data, tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()
    counts = rank(data, tmp_path / "r.jsonl", on_bad_row="skip")
    assert (counts.rows, counts.written) == (4, 4)


@pytest.mark.parametrize(
    ("make", "settings", "named"),
    [
        (keep, {}, "--min-margin"),
        (keep, {"min_margin": 2.0, "max_margin": 1.0}, "--max-margin"),
        (rank, {"best": 1, "pairs": True}, "--pairs"),
        (rank, {"engine": "ray"}, "--model"),
        (rank, {"judge": {"retries": 3}}, "--model"),
        (rank, {"model": MODEL, "workers": 2}, "--workers"),
    ],
)
def test_settings_that_do_not_fit_are_refused(scored, tmp_path, make, settings, named):
    path, _ = scored(pairs(3))
    with pytest.raises(ValueError, match=named):
        make(path, tmp_path / "x.jsonl", **settings)
    with pytest.raises(DataError, match="--out"):
        rank(path, path)


def run(command, *arguments):
    return command.main([*map(str, arguments)], standalone_mode=False)


class Failing(reward_models.RewardModel):
    """Has no score for some rows."""

    name = "failing"

    def judge(self, queries):
        return [
            Judgment(outcome, detail="why") if outcome else Judgment(Outcome.ANSWERED, (1.0, 2.0))
            for query in queries
            for outcome in [self.outcomes.get(query.id)]
        ]


def test_errors_fail_the_command_and_are_retried(put, tmp_path, monkeypatch, capsys):
    data, out = put("data.jsonl", *pairs(4)), tmp_path / "k.jsonl"
    failing = Failing()
    failing.outcomes = {"row-2": Outcome.ERROR, "row-3": Outcome.TOO_LONG}
    monkeypatch.setattr(reward_models, "load", lambda *_, **__: failing)
    asked = ("--model", "m", "--data", data, "--out", out, "--min-margin", "-2")
    with pytest.raises(RunError, match="1 of 4 rows ended in errors; the same command retries them"):
        run(filter_command, *asked)
    said = capsys.readouterr()
    assert "Wrote 2 of 4 rows (format trl)" in said.out
    assert "dropped: 1 error, 1 too_long" in said.out
    assert "No scores (error), first: row 2: why" in said.err
    failing.outcomes = {}
    run(filter_command, *asked)
    assert "Wrote 3 of 4 rows" in capsys.readouterr().out
    failing.outcomes = dict.fromkeys(("row-1", "row-2", "row-3", "row-4"), Outcome.TOO_LONG)
    with pytest.raises(DataError, match="data.jsonl"):
        run(filter_command, *asked)


@pytest.mark.parametrize("bound", [{"min_margin": float("nan")}, {"near_tie": -1.0}])
def test_a_bound_that_is_no_margin_is_refused(tmp_path, bound):
    with pytest.raises(ConfigError):
        filter_file(ScoreSettings(data="scored.jsonl"), tmp_path / "clear.jsonl", **bound)
