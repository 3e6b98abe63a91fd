"""The browser of comparisons, read back from its chunks: nothing is lost, positions are exact, the size is bounded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longrm.reporting import items
from longrm.reporting.items import browser
from longrm.reporting.load import ReportData, load_report
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord, GoldRecord
from longrm.types import Span

from .pages import Browser


@pytest.fixture
def opened() -> Any:
    return lambda data: Browser(browser(data))


def stage_with(
    synthetic: ModuleType, folder: Path, *kept: ExampleRecord, scores: tuple[float, ...] = (1.0, 0.0)
) -> ReportData:
    """A run that judged these examples, with these scores for the chosen and the rejected response."""
    records = [synthetic.answered(one.id, scores, order=(1, 0), length=128) for one in kept]
    synthetic.write_evaluation(folder, records, kept=0)
    with Log(folder / "examples.jsonl", ExampleRecord) as log:
        log.append(*kept)
    return load_report([folder])


def example(name: str, text: str, **spans: object) -> ExampleRecord:
    answers = tuple(({"role": "assistant", "content": word},) for word in ("yes", "no"))
    return ExampleRecord(name, ({"role": "user", "content": text},), answers, **spans)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "before", ["plain ", "\ufeff𝒜𝒷 ", "é\r\n\0\u2028\u202e", "<!--</script>" * 600, "🎈" * 5000]
)
def test_texts_and_marks_survive_packing(
    synthetic: ModuleType, tmp_path: Path, opened: Any, before: str
) -> None:
    """Also beyond the basic plane, where JavaScript counts two units a character."""
    text = f"{before}FACT after 🎈 {'x' * 9000}\n\nWhy?"
    fact, why = text.index("FACT"), text.index("Why?")
    spans = {
        "context": (Span(0, 0, why - 2),),
        "evidence": (Span(0, fact, fact + 4), Span(0, fact, fact + 4)),
        "question": Span(0, why, why + 4),
    }
    found = opened(stage_with(synthetic, tmp_path / "run", example("a", text, **spans)))
    (message,) = found.detail("a")["messages"]
    units = found.prompt(message)
    assert units.decode("utf-16-le") == text
    marked = [(units[2 * a : 2 * b].decode("utf-16-le"), kind) for a, b, kind in message["marks"]]
    assert marked == [("FACT", "evidence"), ("FACT", "evidence"), ("Why?", "question")]
    assert any(isinstance(part, int) for _, part in message["parts"]), "the long part is a chunk of its own"


def test_a_shared_context_is_packed_once(synthetic: ModuleType, tmp_path: Path, opened: Any) -> None:
    context = "word " * 4000
    kept = [
        example(str(number), f"{context}Question {number}?", context=(Span(0, 0, len(context)),))
        for number in range(20)
    ]
    found = opened(stage_with(synthetic, tmp_path / "run", *kept))
    numbers = {found.detail(str(number))["messages"][0]["parts"][0][1] for number in range(20)}
    assert len(numbers) == 1
    assert len(found.shown["chunks"]) == 1 + 20 + 1


def test_every_judged_comparison_is_listed_and_lost_ones_are_counted(
    synthetic: ModuleType, tmp_path: Path, opened: Any
) -> None:
    records = [
        replace(record, scores=(0.0, 1.0) if record.id.endswith("7") else (1.0, 0.0))
        for record in synthetic.judgments(synthetic.CURVES["long"], 1, groups=10)
    ]
    synthetic.write_evaluation(tmp_path / "run", records, kept=3)
    found = opened(load_report([tmp_path / "run"]))
    assert list(found.rows) == [record.id for record in records]
    for record in records:
        row = found.rows[record.id]
        assert (row["length"], row["depth"], row["task"]) == (record.length, record.depth, record.task)
        assert (row["subtype"], row["size"]) == (record.subtype, len(record.order))
    wrong = [record.id for record in records if record.scores == (0.0, 1.0)]
    assert (found.shown["judged"], found.shown["kept"], found.shown["lost"]) == (120, 18, len(wrong))
    assert {row["judged"]["0"][0] for key, row in found.rows.items() if key in wrong} == {"wrong"}


def judged_by(synthetic: ModuleType, folder: Path, digests: Sequence[str]) -> None:
    records = [synthetic.answered(str(number)) for number, _ in enumerate(digests)]
    synthetic.write_evaluation(folder, records, kept=0)
    (folder / "gold.jsonl").unlink()
    with Log(folder / "gold.jsonl", GoldRecord) as log:
        log.append(*(GoldRecord(str(number), (1, 2), digest) for number, digest in enumerate(digests)))


def test_runs_share_comparisons_of_the_same_texts_alone(
    synthetic: ModuleType, tmp_path: Path, opened: Any
) -> None:
    for name, digests in (("a", ("x", "y", "")), ("b", ("x", "z", ""))):
        judged_by(synthetic, tmp_path / name, digests)
    found = opened(load_report([tmp_path / "a", tmp_path / "b"]))
    models = {key: sorted(row["judged"]) for key, row in found.rows.items()}
    assert models == {"0": ["0", "1"], "1": ["0"], "2": ["0"], "1~2": ["1"], "2~2": ["1"]}


def test_texts_that_one_run_keeps_show_the_judgments_of_all_runs(
    synthetic: ModuleType, tmp_path: Path, opened: Any
) -> None:
    right = synthetic.judgments(synthetic.CURVES["long"], 1, groups=2)
    synthetic.write_evaluation(tmp_path / "a", right, kept=0)
    synthetic.write_evaluation(tmp_path / "b", [replace(r, scores=r.scores[::-1]) for r in right], kept=9)
    found = opened(load_report([tmp_path / "a", tmp_path / "b"]))
    for record in right:
        assert sorted(found.detail(record.id)["judged"]) == ["0", "1"]
        first, second = (found.rows[record.id]["judged"][number] for number in "01")
        assert first[2] == pytest.approx(record.scores[0] - record.scores[1])
        assert second[2] == pytest.approx(-first[2])


def test_the_margin_is_that_of_the_best_response_that_gold_ranks_best(
    synthetic: ModuleType, tmp_path: Path, opened: Any
) -> None:
    cases = {
        "two good": ((1, 1, 2), (3.0, 2.0, 0.5), (), 2.5),
        "one good misjudged": ((1, 1, 2), (3.0, 0.0, 0.5), (), 2.5),
        "two bad": ((2, 1, 2), (0.0, 3.0, 2.5), (), 0.5),
        "ranking": ((1, 2, 3), (), (0, 1, 2), None),
        "no gold": ((1, 1, 1), (3.0, 2.0, 1.0), (), None),
    }
    records = [
        synthetic.answered(name, scores, ranks=ranks, order=(0, 1, 2), ranking=ranking)
        for name, (ranks, scores, ranking, _) in cases.items()
    ]
    synthetic.write_evaluation(tmp_path / "run", records, kept=0)
    found = opened(load_report([tmp_path / "run"]))
    assert {key: row["judged"]["0"][2] for key, row in found.rows.items()} == {
        name: margin for name, (*_, margin) in cases.items()
    }


def test_trajectories_are_shown_turn_by_turn_after_the_tools(
    synthetic: ModuleType, tmp_path: Path, opened: Any
) -> None:
    asked = ({"role": "user", "content": "Is it warm in Oslo?"},)
    call = {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    trajectory = (
        {"role": "assistant", "content": "I ask.", "tool_calls": [call]},
        {"role": "tool", "name": "weather", "content": "21 degrees"},
        {"role": "assistant", "content": "Yes."},
    )
    tools = ({"type": "function", "function": {"name": "weather"}},)
    record = ExampleRecord("a", asked, (trajectory, trajectory[-1:]), question=Span(0, 3, 10), tools=tools)
    detail = opened(stage_with(synthetic, tmp_path / "run", record)).detail("a")
    assert [message["role"] for message in (*detail["tools"], *detail["messages"])] == ["tools", "user"]
    assert '"name": "weather"' in detail["tools"][0]["parts"][0][1]
    assert detail["messages"][0]["marks"] == [[3, 10, "question"]]
    assert detail["responses"] == [
        'assistant:\nI ask.\n[tool call] {"name": "weather", "arguments": {"city": "Oslo"}}\n\n'
        "tool weather:\n21 degrees\n\nassistant:\nYes.",
        "Yes.",
    ]


def test_every_trial_has_its_text_and_its_cut(synthetic: ModuleType, tmp_path: Path, opened: Any) -> None:
    records = synthetic.written(1, votes=2, lengths=(128,))
    synthetic.write_evaluation(tmp_path / "run", records, scale="verdict", kept=10)
    found = opened(load_report([tmp_path / "run"]))
    for record in records[:10]:
        entry = found.detail(record.id)["judged"]["0"]
        assert entry["cut"] == (["middle", record.cut.tokens] if record.cut else None)
        assert entry["check"] == record.context_check
        assert entry["committed"] == ["right" if record.committed.solved else "wrong", "amber"]
        for shown, trial in zip(entry["trials"], record.trials, strict=True):
            assert (shown["order"], shown["outcome"]) == (list(trial.order), trial.outcome.value)
            assert (shown["scores"], shown["ranking"]) == (list(trial.scores), list(trial.ranking))
            for name in ("explanation", "attempts", "detail", "contradicted"):
                assert shown[name] == getattr(trial, name) or not (shown[name] or getattr(trial, name))
    assert {row["judged"]["0"][0] for row in found.rows.values()} >= {"right", "no answer"}


def test_comparisons_that_do_not_fit_are_listed_and_counted(
    synthetic: ModuleType, tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "PAGE", 4_000)
    kept = [example(str(number), f"{number * 7919} word" * 100) for number in range(40)]
    found = opened(stage_with(synthetic, tmp_path / "run", *kept))
    chunks = [row["chunk"] for row in found.rows.values()]
    assert len(chunks) == 40
    assert 0 < found.shown["left_out"] == chunks.count(None) < 40
    assert found.shown["kept"] + found.shown["left_out"] == 40
