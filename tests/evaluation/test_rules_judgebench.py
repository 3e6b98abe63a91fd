import json
from pathlib import Path

import pytest

from longrm.evaluation.rules import judgebench
from longrm.types import Outcome

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "judgebench"
AB, BA = (0, 1), (1, 0)
A, B, TIE, SILENT = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), ()


def test_sums_of_two_trials_by_hand(asked, judgment):
    records = [
        asked("agree twice", (AB, A), (BA, A), task="Math"),
        asked("agree once, tie", (AB, A), (BA, TIE), task="Math"),
        asked("agree once, silent", (AB, SILENT), (BA, A), task="Math"),
        asked("both ways", (AB, A), (BA, B), task="Math"),
        asked("contradict", (AB, A), (BA, TIE), task="Code", ranks=(2, 1)),
        asked("nothing", (AB, SILENT), (BA, TIE), task="Code"),
        judgment("error", outcome=Outcome.ERROR, task="Code"),
        judgment("unknown", ranks=None, scores=(1.0, 0.0), task="Code"),
    ]
    assert judgebench(records, "verdict") == {
        "overall_percent": pytest.approx(100 * 3 / 6),
        "by_category_percent": {"Code": 0.0, "Math": 75.0},
        "pairs": 6,
        "correct": 3,
        "undecided": 2,
        "left_out": 1,
    }
    assert judgebench([], "verdict")["overall_percent"] is None


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded judgments are not next to the checkout")
@pytest.mark.parametrize(
    ("judge", "published"),
    [("Ray2333_GRM-Gemma-2B-rewardmodel-ft", 59.43), ("Skywork_Skywork-Reward-Llama-3.1-8B", 62.29)],
)
def test_the_published_accuracies_come_out(asked, judge, published):
    path = RECORDED / f"gpt-4o-2024-05-13__reward_model__{judge}.jsonl"
    records = []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        first, second = (judgment["judgment"]["scores"] for judgment in row["judgments"])
        ranks = (1, 2) if row["label"] == "A>B" else (2, 1)
        records.append(asked(row["pair_id"], (AB, first), (BA, second[::-1]), ranks=ranks))
    found = judgebench(records, "logit")
    assert (round(found["overall_percent"], 2), found["pairs"]) == (published, 350)
    unturned = [
        asked(
            record.id, (AB, record.trials[0].scores), (BA, record.trials[1].scores[::-1]), ranks=record.ranks
        )
        for record in records
    ]
    assert judgebench(unturned, "logit")["overall_percent"] < 5  # negative control: every pair is undecided
