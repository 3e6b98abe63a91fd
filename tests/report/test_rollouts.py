"""The section on reinforcement: numbers of the logs, judgments at fixed steps, and a log larger than memory."""

import tracemalloc
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

import longrm
from longrm.reporting.load import load_report
from longrm.reporting.sections.rollouts import rollouts
from longrm.runs.folder import RunFolder
from longrm.runs.logs import ROLLOUTS, Log
from longrm.runs.records import RolloutRecord, StepRecord
from longrm.training.settings import TrainingSettings

from .pages import anchors, tables, words

STEPS = 90


def metrics(step: int) -> dict[str, float]:
    share = step / STEPS
    return {
        "reward": 1.1 * share,
        "format": 0.5 + share / 2,
        "unparsed": 0.4 * (1 - share),
        "constant_groups": share**2,
        "first_share": 1.0 - share / 2,
        "replaced_groups": share / 3,
        "entropy": 2.0 - share,
        "judgment_tokens": 100 - 50 * share,
        "clipped": 0.01,
        "kl": share / 100,
    }


def group(step: int, number: int, rewards: tuple[float, ...], text: str = "") -> RolloutRecord:
    """The judgments of a prompt; the reward is part of each text."""
    return RolloutRecord(
        step=step,
        id=f"prompt-{step}-{number}",
        gold="B",
        length=1000,
        tokens=tuple((5, 6, 7) for _ in rewards),
        texts=tuple(f"{text}[[{'AB'[reward > 0.5]}]] because {reward:.2f}" for reward in rewards),
        outcomes=("answered",) * len(rewards),
        rewards=rewards,
        advantages=tuple(reward - fmean(rewards) for reward in rewards),
        terms=tuple({"correct": reward, "format": 1.0} for reward in rewards),
        entropies=(0.5,) * len(rewards),
    )


def write_grpo(folder: Path, synthetic: ModuleType, *, iterations: int = 1, text: str = "") -> None:
    """A training of 90 steps; in every rollout the rewards of the first prompt are equal."""
    settings: dict[str, Any] = {
        "objective": "grpo",
        "model": {"path": "acme/judge"},
        "data": {"path": "prompts.jsonl"},
        "rollouts": {
            "num_generations": 3,
            "num_iterations": iterations,
            "reward_weights": {"correct": 1.0, "format": 0.1},
        },
    }
    with RunFolder(folder, "training", TrainingSettings.model_validate(settings)) as run:
        with Log(folder / "steps.jsonl", StepRecord) as log:
            for step in range(1, STEPS + 1):
                log.append(StepRecord(step, 0.0, step / STEPS, 1.0, 1e-5, 1000, 5000, metrics(step)))
        with Log(folder / ROLLOUTS, RolloutRecord) as rolled:
            for step in range(1, STEPS + 1, iterations):
                rolled.append(
                    group(step, 0, (1.0, 1.0, 1.0)), group(step, 1, (0.6, 1.0 + step / 1000, 0.1), text)
                )
        evaluations = {"metric": "pair_accuracy", "values": {"30": 0.5, "60": 0.7}, "best": 60}
        run.write_summary(
            synthetic.training_summary(STEPS) | {"objective": "grpo", "evaluations": evaluations}
        )


def test_numbers_are_means_over_the_first_middle_and_last_steps(
    synthetic: ModuleType, tmp_path: Path
) -> None:
    write_grpo(tmp_path / "judge", synthetic)
    longrm.report([tmp_path / "judge"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "rollouts" in anchors(text)
    found = next(table for caption, table in tables(text).items() if caption.startswith("Means over steps"))
    parts = {"1–20": range(1, 21), "36–55": range(36, 56), "71–90": range(71, 91)}
    for head, steps in parts.items():
        mean = {name: fmean(metrics(step)[name] for step in steps) for name in metrics(1)}
        assert {name: row[head] for name, row in found.items()} == {
            "reward": f"{mean['reward']:.2f}",
            "correct × 1": f"{fmean(step / STEPS for step in steps):.2f}",
            "format × 0.1": f"{mean['format']:.2f}",
            "without a verdict": f"{100 * mean['unparsed']:.1f}%",
            "groups without an advantage": f"{100 * mean['constant_groups']:.1f}%",
            "verdicts for the first response": f"{100 * mean['first_share']:.1f}%",
            "groups replaced": f"{100 * mean['replaced_groups']:.1f}%",
            "tokens of a judgment": f"{mean['judgment_tokens']:.1f}",
            "entropy of a token, nats": f"{mean['entropy']:.3f}",
            "clipped tokens": "1.0%",
            "divergence from the start": f"{mean['kl']:.4f}",
        }
    for name, curves in (("reward", 3), ("shares", 4), ("judgment", 1), ("entropy", 1)):
        drawn = (tmp_path / f"report-figures/rollouts-{name}.svg").read_text()
        assert drawn.count('aria-roledescription="line mark"') == curves
    assert (tmp_path / "report-figures/held-out-pair-accuracy-rollouts.svg").is_file()


@pytest.mark.parametrize(("iterations", "steps"), [(1, (1, 46, 90)), (4, (1, 45, 89))])
def test_the_best_and_the_worst_judgment_at_fixed_steps(
    synthetic: ModuleType, tmp_path: Path, iterations: int, steps: tuple[int, ...]
) -> None:
    write_grpo(tmp_path / "judge", synthetic, iterations=iterations)
    section = rollouts(load_report([tmp_path / "judge"]))
    assert section is not None
    for passage, step in zip(section.passages, steps, strict=True):
        assert passage.title == f"Step {step}: gold B, prompt-{step}-1"  # the rewards of prompt 0 are equal
        (best, first), (worst, last) = passage.texts
        assert (first, last) == (f"[[B]] because {1 + step / 1000:.2f}", "[[A]] because 0.10")
        assert best.startswith(f"Reward {1 + step / 1000:.2f} (correct {1 + step / 1000:.2f}, format 1.00)")
        assert worst.startswith("Reward 0.10 (correct 0.10")


def test_hostile_judgments_stay_text(synthetic: ModuleType, tmp_path: Path) -> None:
    write_grpo(tmp_path / "judge", synthetic, text=synthetic.HOSTILE)
    longrm.report([tmp_path / "judge"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert words(text).count("alert(1)") == 6


def test_several_runs_and_other_objectives(synthetic: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_grpo(tmp_path / name, synthetic)
    synthetic.write_training(tmp_path / "pairs", steps=30)
    longrm.report([tmp_path / "one", tmp_path / "two", tmp_path / "pairs"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert sum("means over steps" in caption for caption in tables(text)) == 2
    assert "one, step 46: gold B" in words(text)
    longrm.report([tmp_path / "pairs"], tmp_path / "other.html")
    assert "rollouts" not in anchors((tmp_path / "other.html").read_text())


def test_a_log_without_judgments_and_a_short_run(synthetic: ModuleType, tmp_path: Path) -> None:
    write_grpo(tmp_path / "judge", synthetic)
    (tmp_path / "judge" / ROLLOUTS).unlink()
    lines = (tmp_path / "judge" / "steps.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "judge" / "steps.jsonl").write_text("".join(lines[:1]))
    section = rollouts(load_report([tmp_path / "judge"]))
    assert section is not None
    assert not section.passages
    assert list(section.tables[0].columns) == ["steps", "1"]


def test_the_log_is_not_held_in_memory(synthetic: ModuleType, tmp_path: Path) -> None:
    write_grpo(tmp_path / "judge", synthetic)
    with Log(tmp_path / "judge" / ROLLOUTS, RolloutRecord) as log:
        for _ in range(200):
            log.append(group(STEPS, 2, (0.0, 1.0), "long " * 10_000))
    size = (tmp_path / "judge" / ROLLOUTS).stat().st_size
    data = load_report([tmp_path / "judge"])
    tracemalloc.start()
    section = rollouts(data)
    _, peak = tracemalloc.get_traced_memory()
    list(Log(tmp_path / "judge" / ROLLOUTS, RolloutRecord))  # negative control
    _, whole = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert section is not None
    assert size > 15_000_000
    assert peak < 5_000_000 < 15_000_000 < whole
