import pytest

from longrm.errors import RunError
from longrm.runs.logs import GOLD, JUDGMENTS, Log, read_judgments
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Outcome


def test_judgments_come_back_with_their_gold_and_the_last_one_counts(tmp_path):
    with Log(tmp_path / JUDGMENTS, JudgmentRecord) as log:
        log.append(
            JudgmentRecord(id="a", group="g", outcome=Outcome.ERROR),
            JudgmentRecord(id="b", group="g", outcome=Outcome.ANSWERED),
        )
        log.append(JudgmentRecord(id="a", group="g", outcome=Outcome.ANSWERED, scores=(1.0, 0.0)))
    with Log(tmp_path / GOLD, GoldRecord) as gold:
        gold.append(GoldRecord("b", None), GoldRecord("a", (2, 1)))
    assert [(r.id, r.outcome, r.ranks) for r in read_judgments(tmp_path)] == [
        ("a", Outcome.ANSWERED, (2, 1)),
        ("b", Outcome.ANSWERED, None),
    ]
    assert b"ranks" not in (tmp_path / JUDGMENTS).read_bytes()


def test_a_judgment_that_does_not_fit_its_gold_is_named(tmp_path):
    with Log(tmp_path / "judgments.jsonl", JudgmentRecord) as log:
        log.append(
            JudgmentRecord(id="a", group="g", outcome=Outcome.ANSWERED, order=(0, 1), scores=(0.5, 1.0))
        )
    with Log(tmp_path / "gold.jsonl", GoldRecord) as log:
        log.append(GoldRecord("a", (1, 2, 3)))
    with pytest.raises(RunError, match=r"judgments\.jsonl.*'?a'?"):
        read_judgments(tmp_path)
