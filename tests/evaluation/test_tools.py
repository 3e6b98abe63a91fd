"""The tools of comparisons are kept with a run, and other tools are other comparisons."""

import pytest

import longrm
from longrm.errors import DataError
from longrm.jsonl import json_text
from longrm.runs.logs import EXAMPLES, Log
from longrm.runs.records import ExampleRecord
from tests.data.trajectories import ANSWERED, PLAIN, PROMPT, TOOLS

SETTINGS = {"judging.resamples": 100}


def test_a_run_keeps_tools_and_does_not_go_on_with_others(tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "run"

    def put(tools):
        row = {"prompt": [*PROMPT], "chosen": [*PLAIN], "rejected": [*ANSWERED], "tools": tools}
        rows.write_text("".join(json_text(row | {"id": name}) + "\n" for name in "ab"), encoding="utf-8")
        return longrm.evaluate("baseline:longest", f"file:{rows}", out, SETTINGS)

    put([*TOOLS])
    kept = list(Log(out / EXAMPLES, ExampleRecord))
    assert [one.tools for one in kept] == [TOOLS] * 2
    assert kept[0].responses == (PLAIN, ANSWERED)
    put([*TOOLS])
    with pytest.raises(DataError, match="the text of 'a' has changed"):
        put([TOOLS[0]])
