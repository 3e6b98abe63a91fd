import json
from pathlib import Path

import pytest

from longrm.errors import RunError
from longrm.runs import logs
from longrm.runs.judgments import Judgments
from longrm.runs.logs import GOLD, JUDGMENTS, Log, to_line
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord, StepRecord
from longrm.types import Cut, Outcome, Span, Trial


def judgment(name="a", outcome=Outcome.ANSWERED, **fields):
    return JudgmentRecord(id=name, group="g", outcome=outcome, **fields)


VOTES = (
    Trial(order=(1, 0), outcome=Outcome.ANSWERED, scores=(1.0, 0.0), explanation="[[B]]", contradicted=False),
    Trial(order=(0, 1), outcome=Outcome.ANSWERED, scores=(0.0, 1.0), attempts=2),
)
RECORDS = [
    judgment("a", ranks=(1, 2), order=(1, 0), scores=(0.1 + 0.2, -1e-17), length=128, depth=0.5),
    judgment("ü\n\u2028b", Outcome.TOO_LONG, ranks=None, order=(0, 1, 2), detail='say "no"'),
    judgment("c", Outcome.UNPARSED, ranks=(2, 1), order=(0, 1), explanation="…", ranking=(1, 0)),
    judgment(
        "d",
        order=(1, 0),
        scores=(0.5, 0.5),
        cut=Cut("middle", 7),
        trials=VOTES,
        baselines={"longest": (3.0, 4.0)},
    ),
]


def write(path, records):
    with Log(path, type(records[0])) as log:
        log.append(*records)


def test_records_come_back_equal_to_the_last_digit(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, RECORDS)
    assert list(Log(path, JudgmentRecord)) == RECORDS


def test_every_record_type_survives_the_round_trip(tmp_path):
    example = ExampleRecord(
        "a",
        ({"role": "user", "content": [{"type": "text", "text": "x"}], "name": None},),
        (({"role": "assistant", "content": "</script>"},), ({"role": "assistant", "content": ""},)),
        (Span(0, 1, 2),),
        evidence=(Span(0, 0, 1),),
    )
    step = StepRecord(1, 0.5, 0.25, 1.0, 1e-3, 128, 4096, {"nll": 2.0})
    for index, record in enumerate((example, step)):
        path = tmp_path / f"{index}.jsonl"
        write(path, [record])
        assert list(Log(path, type(record))) == [record]


def test_a_log_cut_at_any_byte_of_its_last_record_keeps_the_others_and_continues_equal(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, RECORDS)
    whole = path.read_bytes()
    last = len(to_line(RECORDS[-1]))
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        assert list(Log(path, JudgmentRecord)) == RECORDS[:-1], f"{cut} bytes missing"
        write(path, [RECORDS[-1]])
        assert path.read_bytes() == whole


def test_a_full_disk_is_an_error(monkeypatch):
    monkeypatch.setattr(logs, "cut_unfinished_line", lambda _: None)  # a device cannot seek to its end
    full = Log(Path("/dev/full"), JudgmentRecord)
    with pytest.raises(RunError, match="/dev/full"), full as log:
        log.append(*RECORDS)


def test_nan_is_never_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line(StepRecord(1, float("nan"), 0.0, 0.0, 0.0, 1, 1))


def test_a_line_is_plain_json_without_defaults():
    assert json.loads(to_line(RECORDS[1])) == {
        "id": "ü\n\u2028b",
        "group": "g",
        "outcome": "too_long",
        "order": [0, 1, 2],
        "detail": 'say "no"',
    }


@pytest.mark.parametrize(
    "change",
    [
        {"order": [0, 0]},
        {"scores": [0.5]},
        {"outcome": "maybe"},
        {"trials": [{"order": [0, 1], "outcome": "answered", "scores": [1.0]}] * 2},
    ],
)
def test_a_wrong_record_is_an_error_with_its_line(change, tmp_path):
    path = tmp_path / "log.jsonl"
    line = json.loads(to_line(RECORDS[0]))
    path.write_bytes(to_line(RECORDS[0]) + json.dumps(line | change).encode() + b"\n")
    with pytest.raises(RunError, match=r"log\.jsonl, line 2"):
        list(Log(path, JudgmentRecord))


def test_judgments_come_back_with_their_gold_and_the_last_one_counts(tmp_path):
    write(
        tmp_path / JUDGMENTS, [judgment("a", Outcome.ERROR), judgment("b"), judgment("a", scores=(1.0, 0.0))]
    )
    write(tmp_path / GOLD, [GoldRecord("b", None), GoldRecord("a", (2, 1))])
    assert [(r.id, r.outcome, r.ranks) for r in Judgments(tmp_path)] == [
        ("a", Outcome.ANSWERED, (2, 1)),
        ("b", Outcome.ANSWERED, None),
    ]
    assert b"ranks" not in (tmp_path / JUDGMENTS).read_bytes()


def test_a_judgment_that_does_not_fit_its_gold_is_named(tmp_path):
    write(tmp_path / JUDGMENTS, [judgment("a", order=(0, 1), scores=(0.5, 1.0))])
    write(tmp_path / GOLD, [GoldRecord("a", (1, 2, 3))])
    with pytest.raises(RunError, match=r"judgments\.jsonl.*'?a'?"):
        list(Judgments(tmp_path))
