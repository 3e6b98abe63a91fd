"""JudgeBench's rule counts the decisions that were recorded, not what the texts are read to say."""

import json

from longrm.reward_models.recorded import RecordedRewardModel
from longrm.types import Outcome, Query


def test_the_recorded_decision_counts_and_the_text_only_without_one(tmp_path):
    text = {"response": "So [[A>B]]"}
    rows = [
        {"pair_id": "null", "judgments": [{"judgment": text, "decision": None}]},
        {"pair_id": "other", "judgments": [{"judgment": text, "decision": "B>A"}]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    user, answer = ({"role": "user", "content": "q"},), ({"role": "assistant", "content": "a"},)
    asked = [Query(row["pair_id"], user, (answer, answer)) for row in rows]
    null, other = RecordedRewardModel(path).judge(asked)
    assert null.outcome is Outcome.UNPARSED
    assert other.scores == (0.0, 1.0)
