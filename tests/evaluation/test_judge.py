"""What a run keeps in full: verdicts by hand, and a sample that does not depend on who draws it."""

import random

import pytest

from longrm.evaluation.judge import ExampleSample, verdict
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome


@pytest.mark.parametrize(
    ("ranks", "scores", "ranking", "expected"),
    [
        ((1, 2), (2.0, 1.0), (), "right"),
        ((2, 1), (2.0, 1.0), (), "wrong"),
        ((1, 2), (1.0, 1.0), (), "tied"),
        ((1, 1, 2), (3.0, 3.0, 0.0), (), "right"),
        ((3, 1, 2), (), (1, 0, 2), "right"),
        ((3, 1, 2), (), (0, 1, 2), "wrong"),
        (None, (2.0, 1.0), (), "no gold"),
    ],
)
def test_verdict(
    ranks: tuple[int, ...] | None, scores: tuple[float, ...], ranking: tuple[int, ...], expected: str
) -> None:
    record = JudgmentRecord(
        id="a", group="g", outcome=Outcome.ANSWERED, ranks=ranks, scores=scores, ranking=ranking
    )
    assert verdict(record) == expected
    assert verdict(JudgmentRecord(id="a", group="g", outcome=Outcome.REFUSED, ranks=ranks)) == "no answer"


def test_a_part_of_the_judgments_keeps_everything_that_all_of_them_keep():
    """So processes and shards choose independently, and the main process drops the rest."""
    draw = random.Random(0)
    for seed in range(200):
        records = [
            JudgmentRecord(
                id=str(number),
                group=str(draw.randrange(12)),
                outcome=draw.choice([Outcome.ANSWERED] * 5 + [Outcome.UNPARSED]),
                ranks=(1, 2),
                order=(0, 1),
                scores=draw.choice([(1.0, 0.0)] * 4 + [(0.0, 1.0), (0.0, 0.0)]),
                length=draw.choice((64, 128)),
            )
            for number in range(40)
        ]
        part = [record for record in records if draw.random() < 0.5]
        whole, seen = ExampleSample(3), ExampleSample(3)
        kept = {record.id for record in records if whole.keeps(record)}
        assert kept & {record.id for record in part} <= {r.id for r in part if seen.keeps(r)}, seed
