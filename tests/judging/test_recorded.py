"""The pairwise parser on real answers of a judge, against the decisions recorded with them."""

import json
from pathlib import Path

import pytest

from longrm.judging import load_format
from longrm.types import Query

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "judgebench"
HAIKU = FOLDER / "claude-3-5-sonnet-20240620__arena_hard__claude-3-haiku-20240307.jsonl"
O1_MINI = FOLDER / "gpt-4o-2024-05-13__arena_hard__o1-mini-2024-09-12.jsonl"
DECISIONS = {(1.0, 0.0): "A>B", (0.0, 1.0): "B>A", (0.5, 0.5): "A=B"}

# Answers with two different verdicts: Arena-Hard's rule takes neither, ours the last. (pair, trial) -> the last.
EXCEPTIONS = {
    ("663eb019-69ba-570f-bf87-f210f58e8cec", 1): "A>B",
    ("bc53b449-7816-55b7-b25d-a81f8b73fc41", 0): "B>A",
    ("3ca791e5-75b4-5172-bc59-14c5b21c60a1", 1): "B>A",
    ("c2d66af7-e981-5b4f-849d-00876452ae3e", 0): "A>B",
    ("a74d50f7-9e44-5428-969c-89c74c5bd0ea", 0): "B>A",
    ("bbdcd0e8-c9f8-5d3d-bf42-7bd74bd75273", 0): "A>B",
    ("90a99d74-d437-519b-87e4-877b1991f143", 0): "A=B",
    ("6bc9bd9d-322e-5e9d-9ef4-c949d73eeb75", 0): "A>B",
    ("e507c24c-268f-57b3-ae82-115141c2cb01", 0): "A>B",
    ("b29e3027-00b8-5e06-8b51-aeed1a2e4bdb", 0): "A=B",
    ("4e42fb58-f8e7-5d33-9585-73aa84d37ba2", 0): "A>B",
    ("9fb1c9fc-ef64-5ceb-97b4-cf17019f0455", 0): "A=B",
    ("5ab8d9e6-93cc-585e-b094-abbe3a82ff0f", 0): "B>A",
}


@pytest.mark.parametrize(
    ("file", "total", "exceptions"),
    [(HAIKU, 540, EXCEPTIONS), (O1_MINI, 700, {})],
    ids=["haiku", "o1-mini"],
)
def test_recorded_decisions_are_read_from_the_raw_answers(file, total, exceptions):
    if not file.is_file():
        pytest.skip("JudgeBench is not in ../shared/data")
    pairwise = load_format("pairwise")
    differing, read = {}, 0
    for line in file.read_text().splitlines():
        row = json.loads(line)
        for trial, (judgment, shown) in enumerate(zip(row["judgments"], ["AB", "BA"], strict=True)):
            responses = tuple(({"role": "assistant", "content": row[f"response_{name}"]},) for name in shown)
            asked = Query(row["pair_id"], ({"role": "user", "content": row["question"]},), responses)
            verdict = pairwise.parse(judgment["judgment"]["response"], asked)
            decision = verdict and DECISIONS[verdict.values]
            read += 1
            if decision != judgment["decision"]:
                assert judgment["decision"] is None
                differing[row["pair_id"], trial] = decision
    assert read == total
    assert differing == exceptions
