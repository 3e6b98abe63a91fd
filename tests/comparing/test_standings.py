from collections import Counter

import pytest

from longrm.benchmarks import Probe, ProbeCell
from longrm.comparing import compare
from longrm.comparing.standings import standings
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.report.leaderboard import leaderboard
from longrm.report.run_listing import listed_runs


def evaluated(folder, model, lengths=(128, 256)):
    probe = Probe(cells=(ProbeCell(lengths=lengths, groups=12, per_group=2),))
    run_evaluation(
        Evaluation(model=model, bench="probe", probe=probe, judging=JudgingSettings(resamples=100)), folder
    )
    return folder


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    top = tmp_path_factory.mktemp("standings")
    evaluated(top / "weak", "simulated:0.45")
    evaluated(top / "good", "simulated:0.02")
    evaluated(top / "twin", "simulated:error=0.02")
    evaluated(top / "near", "simulated:0.05")
    evaluated(top / "elsewhere", "simulated:0.2", lengths=(512,))
    return top


def test_runs_are_ranked_by_their_figure_and_told_apart_as_compare_does(top):
    (found, other), left_out = standings(
        [top / name for name in ("weak", "good", "twin", "near", "elsewhere")]
    )
    assert left_out == {}
    assert [run.folder.name for run in other.runs] == ["elsewhere"]
    rows = {run.folder.name: run for run in found.runs}
    figures = [run.figure.value for run in found.runs]
    assert figures == sorted(figures, reverse=True)
    counts = Counter(figures)  # competition ranks, counted without any comparison
    assert [run.rank for run in found.runs] == [figures.index(value) + 1 for value in figures]
    assert (rows["good"].rank, rows["twin"].rank, counts[figures[0]]) == (1, 1, 2)
    first, *others = found.runs
    assert (first.folder.name, first.against_first, first.apart) == ("good", None, False)
    told = {run.folder.name: compare(first.folder, run.folder).overall for run in others}
    largest = sorted((part.p, name) for name, part in told.items())
    adjusted, highest = {}, 0.0
    for place, (p, name) in enumerate(largest):  # Holm by hand
        adjusted[name] = highest = max(highest, min(1.0, p * (len(largest) - place)))
    for run in others:
        name, part = run.folder.name, run.against_first
        assert part.difference == told[name].difference
        assert part.p_holm == pytest.approx(adjusted[name])
        assert run.apart == (adjusted[name] < 0.05)
    assert rows["weak"].apart
    assert not rows["twin"].apart


def test_the_page_names_what_is_not_ranked_and_keeps_hostile_names_inert(top, tmp_path):
    hostile = "simulated:0.1"
    folder = evaluated(tmp_path / "runs/hostile", hostile)
    text = (folder / "summary.json").read_text()
    name = "<script>alert(1)</script>\\u202e" + "x" * 60
    (folder / "summary.json").write_text(text.replace(f'"{hostile}"', f'"{name}"'))
    (tmp_path / "runs/good").symlink_to(top / "good")
    evaluated(tmp_path / "runs/half", "baseline:first")
    (tmp_path / "runs/half/summary.json").unlink()
    evaluated(tmp_path / "runs/broken", "baseline:last")
    (tmp_path / "runs/broken/summary.json").write_text("{")
    evaluated(tmp_path / "runs/rule", "baseline:longest")
    page = leaderboard(tmp_path / "runs", listed_runs(tmp_path / "runs"))
    assert page == leaderboard(tmp_path / "runs", listed_runs(tmp_path / "runs"))
    ranked, _, rest = page.partition("Not ranked")
    assert "<script" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in ranked
    assert f"{'x' * 17}</span>" in ranked  # the name is cut in the middle
    assert '<tr class="baseline">' in ranked
    assert "runs/half" not in ranked
    assert "is not finished" in rest
    assert "not valid JSON" in rest


def test_two_runs_of_one_model_are_told_apart_by_their_folders(top, tmp_path):
    for name in ("one", "two"):
        evaluated(tmp_path / name, "simulated:0.1")
    page = leaderboard(tmp_path, listed_runs(tmp_path))
    assert "simulated:0.1 (one) is first, but not told apart from simulated:0.1 (two)." in page


def test_a_damaged_log_has_no_rank_and_keeps_nobody_from_one(top, tmp_path):
    folder = evaluated(tmp_path / "bad", "simulated:0.3")
    (folder / "judgments.jsonl").write_text("{\n" + (folder / "judgments.jsonl").read_text())
    (found,), left_out = standings([folder, top / "good"])
    assert [run.folder.name for run in found.runs] == ["good"]
    assert "judgments.jsonl" in left_out[folder]
