import pytest

from longrm.evaluation.rules import memrewardbench
from longrm.types import Outcome

AB, BA = (0, 1), (1, 0)
A, B, TIE, SILENT = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), ()
LONG, TALK = "Long-form_Generation", "Multi-turn_Dialogue_Understanding"


def test_pairs_count_alike_by_configuration_then_by_setting(asked, judgment):
    records = [
        asked("1", (AB, A), (BA, A), task=LONG, subtype="Drop"),
        asked("2", (AB, A), (BA, B), task=LONG, subtype="Drop"),
        asked("3", (AB, TIE), (BA, A), task=LONG, subtype="Noise"),
        asked("4", (AB, A), task=TALK, subtype="Drop"),
        asked("5", (AB, A), task=TALK, subtype="Drop", ranks=(2, 1)),
        asked("6", (AB, SILENT), task=TALK, subtype="Drop"),
        judgment("7", outcome=Outcome.ERROR, task=TALK),
    ]
    assert memrewardbench(records, "verdict") == {
        "overall_percent": pytest.approx(100 * (1 + 0.5 + 0.5 + 1) / 6),
        "by_configuration_percent": {LONG: pytest.approx(100 * 2 / 3), TALK: pytest.approx(100 / 3)},
        "by_setting_percent": {
            f"{LONG}/Drop": pytest.approx(75),
            f"{LONG}/Noise": pytest.approx(50),
            f"{TALK}/Drop": pytest.approx(100 / 3),
        },
        "pairs": 6,
        "left_out": 1,
    }
    assert memrewardbench([], "verdict")["overall_percent"] is None
