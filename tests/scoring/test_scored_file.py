import json

import pytest

import longrm
from longrm.data import read
from longrm.errors import DataError
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.scoring.selection import rank_file
from tests.kills import killed_everywhere
from tests.reward_models.tiny_models import make_model


def scores(model, folder):
    data, out = folder / "pairs.jsonl", folder / "scored.jsonl"
    rows = [
        {"prompt": f"Question {index}?", "chosen": f"This is {index}, of course.", "rejected": "That is not."}
        for index in range(3)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score_file(ScoreSettings(model=model, data=str(data)), out)
    return [json.loads(line)["scores"] for line in out.read_text().splitlines()]


@pytest.mark.parametrize("place", ["first", "last"])
def test_position_bias_cancels_in_scores(tmp_path, place):
    found = scores(f"baseline:{place}", tmp_path)
    assert len(found) == 3
    assert all(left == right for left, right in found)


def test_scores_of_another_model_are_not_overwritten(tmp_path):
    scores("baseline:longest", tmp_path)
    data, out = tmp_path / "pairs.jsonl", tmp_path / "scored.jsonl"
    before = out.read_bytes()
    other = {"model": "baseline:shortest", "data": str(data)}
    for write in (
        lambda: score_file(ScoreSettings(**other), out),
        lambda: score_file(ScoreSettings(**other, column="mine"), out),
        lambda: rank_file(ScoreSettings(**other), out, pairs=True),
    ):
        with pytest.raises(DataError, match="'baseline:longest'.* --out"):
            write()
        assert out.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl", "scored.jsonl"]
    scores("baseline:longest", tmp_path)  # its own are
    assert out.read_bytes() == before
    score_file(ScoreSettings(**other, force=True), out)
    assert out.read_bytes() != before


def test_scores_in_the_data_are_kept(tmp_path):
    scores("baseline:longest", tmp_path)
    again = ScoreSettings(model="baseline:shortest", data=str(tmp_path / "scored.jsonl"))
    for _ in range(2):
        score_file(again, tmp_path / "both.jsonl")
    (row, *_) = map(json.loads, (tmp_path / "both.jsonl").read_text().splitlines())
    assert (row["scores_by"], row["model_scores_by"]) == ("baseline:longest", "baseline:shortest")


def test_a_model_that_writes_is_announced_and_reports_its_progress_within_a_batch(tmp_path, caplog):
    caplog.set_level("INFO", "longrm")
    judge = str(make_model(tmp_path / "judge"))
    data = tmp_path / "pairs.jsonl"
    row = {"prompt": "Why?", "chosen": "For this.", "rejected": "No."}
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(16)))
    settings = ScoreSettings.resolve(None, {"model": judge, "data": str(data), "judge.max_tokens": 32})
    done = []
    score_file(settings, tmp_path / "out.jsonl", progress=lambda label, rows, total: done.append(rows))
    assert f"likelihood:{judge}" in caplog.text
    assert done == sorted(done)
    assert {0, 4, 8, 12, 16} <= {*done}, "although all rows are one batch"


def test_rows_without_scores_are_named_with_a_model_that_has_them(tmp_path, caplog):
    row = {"prompt": "Why?", "chosen": "For this.", "rejected": "No."}
    name = str(make_model(tmp_path / "judge"))
    for judge in (name, longrm.load(name, judge={"max_tokens": 2})):
        settings = {"judge.max_tokens": 2} if judge == name else {}
        assert list(longrm.score(judge, [row], settings=settings)["scores"]) == [None]
        assert 'kind="likelihood"' in caplog.text
        caplog.clear()
    assert None not in list(longrm.score("baseline:longest", [row])["scores"])
    assert not caplog.text


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_run_killed_at_any_change_of_a_file_continues(tmp_path, suffix):
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"prompt": "Why?", "chosen": "For this.", "rejected": "No."}) + "\n")
    settings = ScoreSettings(model="baseline:longest", data=str(data))

    def check(place):
        assert [path.name for path in place.iterdir()] == [f"scored.{suffix}"]
        assert len(list(read(place / f"scored.{suffix}"))) == 1

    def work(place):
        score_file(settings, place / f"scored.{suffix}")

    assert killed_everywhere(work, check, tmp_path) > 10
