"""`longrm compare`: its output, in a narrow terminal too, and its exit status."""

import json

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
def test_every_line_fits(capsys, monkeypatch, runs, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = printed(capsys, *runs)
    paths = [word for word in out.split() if "/" in word]
    assert all(len(line) <= columns for line in out.splitlines() if not any(path in line for path in paths))
    words = " ".join(out.split())
    for text in (
        "trained minus base: pair accuracy +",
        "length first second difference p n",
        "sign-flip test over 24 groups,",
        "Won by trained only: ",
        "Settings that differ: judging.seed: 4 -> 7",
    ):
        assert text in words, text
    assert "Left out" not in words


def test_the_json_and_the_text_have_the_same_numbers(capsys, runs):
    found = json.loads(printed(capsys, *runs, "--json"))
    assert found["by_length"].keys() == {"64", "128"}
    part = found["by_length"]["64"]
    assert part.keys() >= {"difference", "n", "groups", "mcnemar", "p", "p_holm"}
    assert part["difference"].keys() >= {"value", "low", "high"}
    assert part["mcnemar"].keys() == {"only_first", "only_second", "p"}
    assert len(found["wins"]["second"]) == found["overall"]["mcnemar"]["only_second"]
    out = printed(capsys, *runs)
    assert f"{100 * part['difference']['value']:+.1f} [".replace("-", "−") in out


def test_what_is_left_out_is_counted(capsys, runs, tmp_path):
    for file in runs[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("gold.jsonl", "judgments.jsonl"):
        lines = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:-3]))
    assert "Left out: 3 " in " ".join(printed(capsys, runs[0], tmp_path).split())


def test_exit_codes(longrm, runs, tmp_path):
    assert longrm("compare", *runs).status == 0
    for wrong in ((runs[0],), (runs[0], tmp_path), (*runs, "--metric", "auc_margin")):
        done = longrm("compare", *wrong)
        assert (done.status, done.out) == (1, "")
        assert done.error
    assert longrm("compare").status == 2
