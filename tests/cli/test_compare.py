"""`longrm compare`: what it prints, in a narrow terminal too, and how it ends."""

import json
import subprocess
import sys

import pytest

from longrm.cli.commands import cli

SMALL = "probe.cells=[{lengths=[64, 128], groups=12, per_group=2}]"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    for name, rate in (("base", 0.45), ("trained", 0.02)):
        arguments = ["--model", f"simulated:{rate}", "--bench", "probe", "--out", str(folder / name)]
        cli.main(["evaluate", *arguments, "--set", SMALL, "--seed", str(len(name))], standalone_mode=False)
    return folder / "base", folder / "trained"


def printed(capsys, *arguments):
    capsys.readouterr()
    cli.main(["compare", *map(str, arguments)], standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 100])
def test_every_line_fits_and_says_what_was_found(capsys, monkeypatch, runs, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(capsys, *runs)
    paths = [word for word in out.split() if "/" in word]
    assert all(len(line) <= columns for line in out.splitlines() if not any(path in line for path in paths))
    words = " ".join(out.split())
    for said in (
        "trained is right more often than base: ",
        "on the same 48 comparisons, +",
        "length first second difference p n",
        "depth first second difference p n",
        "sign-flip test over 24 groups, Holm-adjusted in each table. McNemar's exact test,",
        "† from fewer than 10 groups: a rough interval, most often too narrow. Read p.",
        "Won by base alone: ",
        "Won by trained alone: ",
        "The runs differ in: judging.seed: 4 -> 7",
    ):
        assert said in words, said
    assert "Left out" not in words


def test_the_json_is_the_comparison_and_the_text_its_figures(capsys, runs):
    held = json.loads(printed(capsys, *runs, "--json"))
    assert held.keys() >= {
        "overall",
        "by_length",
        "by_depth",
        "by_task",
        "left_out",
        "differs_in",
        "wins",
        "others",
    }
    assert held["by_length"].keys() == {"64", "128"}
    part = held["by_length"]["64"]
    assert part.keys() >= {"difference", "n", "groups", "mcnemar", "p", "p_holm"}
    assert part["difference"].keys() >= {"value", "low", "high"}
    assert part["mcnemar"].keys() == {"only_first", "only_second", "p"}
    assert len(held["wins"]["second"]) == held["overall"]["mcnemar"]["only_second"]
    out = printed(capsys, *runs)
    assert " ".join(out.split()).startswith(held["sentence"])
    assert f"{100 * part['difference']['value']:+.1f} [".replace("-", "−") in out


def test_what_is_left_out_is_said(capsys, runs, tmp_path):
    for file in runs[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("gold.jsonl", "judgments.jsonl"):
        lines = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:-3]))
    assert "Left out: 3 only base holds." in " ".join(printed(capsys, runs[0], tmp_path).split())


def test_exit_codes(runs, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "longrm", "compare", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True)

    assert run(*runs).returncode == 0
    for wrong in ((runs[0],), (runs[0], tmp_path), (*runs, "--metric", "auc_margin")):
        done = run(*wrong)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("longrm: error: ")
        assert len(done.stderr.splitlines()) == 1
    assert run().returncode == 2
