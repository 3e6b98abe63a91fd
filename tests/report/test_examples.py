"""The browser's JSON: verdicts by hand, exact cuts, safe inside a script element."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from longrm.report import examples
from longrm.report.examples import browser
from longrm.report.load import EvaluatedModel, load_report
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord, JudgmentRecord
from longrm.types import Outcome, Span


def stage_with(
    synthetic: ModuleType, folder: Path, *kept: ExampleRecord, lengths: tuple[int, ...] = (128,)
) -> tuple[EvaluatedModel, ...]:
    """A run that judged these examples, the first response always best."""
    synthetic.write_evaluation(
        folder,
        [
            JudgmentRecord(example.id, "g", Outcome.ANSWERED, (1, 2), (1, 0), (1.0, 0.0), length=length)
            for example, length in zip(kept, lengths * len(kept), strict=False)
        ],
        kept=0,
    )
    with Log(folder / "examples.jsonl", ExampleRecord) as log:
        log.append(*kept)
    return load_report([folder]).stages


def example(name: str, text: str, **spans: object) -> ExampleRecord:
    answers = tuple(({"role": "assistant", "content": word},) for word in ("yes", "no"))
    return ExampleRecord(name, ({"role": "user", "content": text},), answers, **spans)  # type: ignore[arg-type]


def test_marks_cut_the_text_exactly_beyond_the_basic_plane(synthetic: ModuleType, tmp_path: Path) -> None:
    text = "𝒜𝒷 before FACT after 🎈 Why?"
    fact, why = text.index("FACT"), text.index("Why?")
    shown = browser(
        stage_with(
            synthetic,
            tmp_path / "run",
            example(
                "a",
                text,
                evidence=(Span(0, fact, fact + 4), Span(0, fact, fact + 4)),
                question=Span(0, why, why + 4),
            ),
        )
    )
    assert shown is not None
    parts = json.loads(shown.payload)["comparisons"][0]["messages"][0]["parts"]
    assert parts == [
        ["plain", "𝒜𝒷 before "],
        ["evidence", "FACT"],
        ["plain", " after 🎈 "],
        ["question", "Why?"],
    ]


def test_what_is_too_long_is_cut_away_from_the_evidence_and_said(
    synthetic: ModuleType, tmp_path: Path
) -> None:
    text = "x" * 40_000 + "FACT" + "y" * 100
    shown = browser(
        stage_with(synthetic, tmp_path / "run", example("a", text, evidence=(Span(0, 40_000, 40_004),)))
    )
    assert shown is not None
    parts = json.loads(shown.payload)["comparisons"][0]["messages"][0]["parts"]
    assert [kind for kind, _ in parts] == ["plain", "cut", "plain", "evidence", "plain"]
    assert parts[1][1] == "28,000"
    assert len(parts[0][1]) + len(parts[2][1]) == 12_000


def test_what_does_not_fit_is_counted_and_every_length_is_kept(
    synthetic: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "_BUDGET", 6_500)
    kept = [example(f"{number}", "word " * 200) for number in range(12)]
    shown = browser(stage_with(synthetic, tmp_path / "run", *kept, lengths=(128, 128, 4096)))
    assert shown is not None
    lengths = [entry["length"] for entry in json.loads(shown.payload)["comparisons"]]
    assert shown.shown + shown.left_out == 12
    assert shown.shown == len(lengths) == 4
    assert lengths == [128, 128, 4096, 4096]


def test_no_text_can_end_the_script_element(synthetic: ModuleType, tmp_path: Path) -> None:
    hostile = synthetic.HOSTILE + "<!--<script>"
    shown = browser(stage_with(synthetic, tmp_path / "run", example("a", hostile)))
    assert shown is not None
    assert not set("<>&\u2028\u2029") & set(shown.payload)
    entry = json.loads(shown.payload)["comparisons"][0]
    assert entry["messages"][0]["parts"] == [["plain", hostile]]


def test_a_comparison_that_was_judged_again_has_its_last_record(
    synthetic: ModuleType, tmp_path: Path
) -> None:
    stages = stage_with(synthetic, tmp_path / "run", example("a", "text"))
    with Log(tmp_path / "run" / "judgments.jsonl", JudgmentRecord) as log:
        log.append(JudgmentRecord("a", "g", Outcome.ANSWERED, (1, 2), (0, 1), (0.0, 5.0)))
    shown = browser(stages)
    assert shown is not None
    assert json.loads(shown.payload)["comparisons"][0]["judged"]["0"]["verdict"] == "wrong"


def test_stages_share_their_comparisons(demo: Path) -> None:
    material = load_report([demo])
    shown = browser([*material.stages, *material.best_of])
    assert shown is not None
    data = json.loads(shown.payload)
    assert [stage["label"] for stage in data["stages"]] == ["untrained", "short", "control", "long"]
    assert len(data["comparisons"]) == 6 * 3 + 6
    assert all(set(entry["judged"]) == {"0", "1", "2", "3"} for entry in data["comparisons"])


def test_messages_without_text_are_shown_as_json(synthetic: ModuleType, tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    answers = ((call,), ({"role": "assistant", "content": "no"},))
    shown = browser(stage_with(synthetic, tmp_path / "run", ExampleRecord("a", (call,), answers)))
    assert shown is not None
    entry = json.loads(shown.payload)["comparisons"][0]
    assert '"tool_calls": [{"name": "look"}]' in entry["messages"][0]["parts"][0][1]
    assert '"name": "look"' in entry["responses"][0]


def test_every_trial_is_shown_with_what_was_written_and_cut(synthetic: ModuleType, tmp_path: Path) -> None:
    records = synthetic.written(1, votes=2, lengths=(128,))
    synthetic.write_evaluation(tmp_path / "run", records, scale="verdict", kept=10)
    shown = browser(load_report([tmp_path / "run"]).stages)
    assert shown is not None
    judged = {entry["id"]: entry["judged"]["0"] for entry in json.loads(shown.payload)["comparisons"]}
    assert len(judged) == 10
    for record in records[:10]:
        entry = judged[record.id]
        assert entry["cut"] == (["middle", 303] if record.cut else None)
        assert entry["check"] == record.context_check
        assert [trial["order"] for trial in entry["trials"]] == [[1, 0], [1, 0], [0, 1], [0, 1]]
        for held, trial in zip(entry["trials"], record.trials, strict=True):
            assert held["explanation"] == trial.explanation
            assert held["explanation"].startswith("<think>")
            assert (held["outcome"], held["scores"]) == (trial.outcome.value, list(trial.scores))
            assert (held["attempts"], held["detail"]) == (trial.attempts, trial.detail)
            assert held["contradicted"] is bool(trial.contradicted)
    assert {entry["verdict"] for entry in judged.values()} >= {"right", "no answer"}


def test_a_single_trial_is_shown_as_such(synthetic: ModuleType, tmp_path: Path) -> None:
    shown = browser(stage_with(synthetic, tmp_path / "run", example("a", "text")))
    assert shown is not None
    (trial,) = json.loads(shown.payload)["comparisons"][0]["judged"]["0"]["trials"]
    assert (trial["order"], trial["scores"], trial["explanation"]) == ([1, 0], [1.0, 0.0], "")
