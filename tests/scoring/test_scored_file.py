import json

import pytest

from longrm.scoring.scored_file import ScoreSettings, score_file


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
def test_a_judge_that_follows_the_place_scores_all_responses_alike(tmp_path, place):
    found = scores(f"baseline:{place}", tmp_path)
    assert len(found) == 3
    assert all(left == right for left, right in found)


def test_a_judge_that_reads_the_responses_tells_them_apart(tmp_path):
    assert all(left > right for left, right in scores("baseline:longest", tmp_path))
