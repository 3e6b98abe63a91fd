"""The command line as a whole: help, errors in one line, and the commands that no other file covers."""

import contextlib
import json
import os
import re
import shlex

import click
import pytest

from longrm.cli.commands import COMMANDS, cli
from longrm.cli.main import main
from longrm.data import read, write
from longrm.data.chunking import approximate_tokens
from longrm.reward_models.baselines import BASELINES, BaselineRule
from longrm.types import text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.cli.conftest import parse


def every_command(command=cli, words=()):
    """All commands and subcommands, by their words."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), (*words, name))


def test_every_help_fits_on_a_screen_and_help_all_has_every_option(longrm):
    names = list(every_command())
    assert len(names) > len(COMMANDS) + 10
    for words in names:
        command = cli
        for word in words:
            command = command.get_command(click.Context(command), word)
        short, whole = (longrm(*words, flag) for flag in ("--help", "--help-all"))
        assert short.status == whole.status == 0
        lines = short.out.splitlines()
        assert len(lines) <= 40, (words, len(lines))
        assert max(map(len, [*lines, *whole.out.splitlines()])) <= 80, words
        assert lines[0].startswith("Usage: longrm")
        assert not {"\b", "\f"} & {*short.out, *whole.out}
        examples = "".join(re.findall(r"\n\n((?:  longrm .+\n)+)", whole.out))
        assert isinstance(command, click.Group) or examples, words
        for example in re.findall(r"longrm [^<>|\n]+", examples):
            with contextlib.suppress(click.exceptions.Exit):  # of world --list
                parse(example.replace("mine.toml", "demo/short"))
        assert "..." not in short.out.partition("Commands:")[2], "a first sentence is cut"
        options = {param.opts[-1] for param in command.params if isinstance(param, click.Option)}
        listed = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", whole.out, re.MULTILINE))
        assert options | {"--help"} <= listed | ({"--help-all"} if not command.has_more else set()), words
        has_more = lines[-1] == f"More options and details: {' '.join(['longrm', *words])} --help-all"
        assert has_more == command.has_more == (short.out != whole.out)
    assert "--votes" not in longrm("evaluate", "--help").out  # control: rare options are only in --help-all
    assert "--votes" in longrm("evaluate", "--help-all").out
    assert longrm("evaluate", "--help", columns=50).status == 0
    with pytest.raises(click.UsageError):
        parse("longrm evaluate --no-such-option")


@pytest.mark.parametrize("command", [[], ["train"]])
def test_a_command_group_alone_prints_its_help(longrm, command):
    done = longrm(*command)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Usage: longrm")


def test_wrong_usage_exits_with_2_and_suggests(longrm, tmp_path):
    for arguments, named in (
        (["evalute"], "'evaluate'"),
        (["evaluate", "--modle", "x"], "'--model'"),
        (["evaluate"], "'--out'"),
        (["--quiet", "--verbose", "recipes"], "--verbose"),
        (["plan", "scale/8-a100", "--device", "h10-80gb"], "h100-80gb"),
        (["plan", "demo/shrt"], "demo/short"),
        (["report", "runs/x", "--out", tmp_path], str(tmp_path)),
        (["audit", "pairs.jsonl", "--html", tmp_path / "pairs.jsonl"], ".html"),
    ):
        done = longrm(*arguments)
        assert done.status == 2, arguments
        assert named in done.error


def evaluate(tmp_path, bench, *more, model="baseline:first"):
    return ["evaluate", "--model", model, "--bench", bench, "--out", tmp_path / "run", *more]


def test_invalid_settings_exit_with_1_before_any_work(longrm, tmp_path, pairs):
    bench = f"file:{pairs}"
    for arguments, named in (
        (evaluate(tmp_path, bench, "--set", "judging.sede=1"), "'judging.seed'"),
        (evaluate(tmp_path, bench, "--set", "judging.seed=-1"), "judging.seed"),
        (evaluate(tmp_path, "prob"), "prob"),
        (evaluate(tmp_path, bench, model="baseline:frist"), "frist"),
        (evaluate(tmp_path, f"file:{tmp_path}/nothing.jsonl"), "nothing.jsonl"),
    ):
        done = longrm(*arguments)
        assert done.status == 1
        assert named in done.error
        assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


def test_verbose_shows_the_traceback(longrm, tmp_path):
    command = ["score", "--model", "baseline:longest", "--data", tmp_path / "none.jsonl", "--out", "o.jsonl"]
    plain, loud = longrm(*command), longrm("--verbose", *command)
    assert plain.status == loud.status == 1
    assert len(plain.err.splitlines()) == 1
    assert "Traceback" in loud.err
    assert loud.error == plain.error


def test_a_bad_row_is_named_with_its_number_and_field(longrm, tmp_path, pairs):
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    del rows[3]["responses"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = longrm(*evaluate(tmp_path, f"file:{bad}")).error
    assert "responses" in line
    assert "4" in line.split("bad.jsonl", 1)[1][:12]
    assert not (tmp_path / "run").exists()
    done = longrm(*evaluate(tmp_path, f"file:{bad}", "--on-bad-row", "skip", "--json"))
    counts = json.loads(done.out)["counts"]
    assert (counts["comparisons"], counts["skipped_rows"]) == (11, 1)
    assert "bad.jsonl" in done.err.split("skipped")[1]
    again = ["evaluate", "--config", tmp_path / "run/config.toml", "--out", tmp_path / "run"]
    assert "could not be read; left out: 1" in " ".join(longrm(*again).out.split())


def test_a_run_repeats_from_its_own_configuration(longrm, tmp_path, pairs):
    first = longrm(*evaluate(tmp_path, f"file:{pairs}", "--seed", 7, "--json"))
    repeat = ["evaluate", "--config", tmp_path / "run/config.toml", "--out", tmp_path / "again", "--json"]
    assert longrm(*repeat).out == first.out
    assert "judging.seed: 7 -> 8" in longrm(*evaluate(tmp_path, f"file:{pairs}", "--seed", 8)).error


def test_scoring_writes_the_same_rows_and_their_scores(longrm, tmp_path, pairs):
    out = tmp_path / "scored.jsonl"
    assert longrm("score", "--model", "baseline:shortest", "--data", pairs, "--out", out).status == 0
    before = [json.loads(line) for line in pairs.read_text().splitlines()]
    after = [json.loads(line) for line in out.read_text().splitlines()]
    for old, new in zip(before, after, strict=True):
        lengths = [-float(len(response[0]["content"])) for response in old["responses"]]
        added = {"scores": lengths, "scores_outcome": "answered", "scores_by": "baseline:shortest"}
        assert new == old | added
    again = longrm("score", "--model", "baseline:longest", "--data", out, "--out", tmp_path / "twice.jsonl")
    assert "model_scores" in again.err
    assert (
        "pairs.jsonl" in longrm("score", "--model", "baseline:first", "--data", pairs, "--out", pairs).error
    )


@pytest.mark.parametrize(
    "command", [["score"], ["rank", "--best", "1"], ["filter", "--max-margin", "1000"]], ids=lambda c: c[0]
)
def test_standard_streams_have_the_same_rows_as_files(longrm, pairs, tmp_path, command):
    out = tmp_path / "out.jsonl"
    model = ["--model", "baseline:overlap"]
    assert longrm(*command, *model, "--data", pairs, "--out", out).status == 0
    piped = longrm(*command, *model, "--data", "-", "--out", "-", rows=pairs.read_bytes())
    assert piped.out == out.read_text()
    assert "to standard output" in piped.err
    quiet = longrm("--quiet", *command, *model, "--data", "-", "--out", "-", rows=pairs.read_bytes())
    assert quiet.out == piped.out
    assert "scoring" in piped.err
    assert "scoring" not in quiet.err
    empty = longrm(*command, *model, "--data", "-", "--out", "-")
    assert (empty.status, empty.out) == (1, "")


@pytest.mark.parametrize(
    ("out", "next_step"),
    [("out.jsonl", "continues where it stopped"), ("-", "starts again from the beginning")],
)
def test_ctrl_c_while_standard_input_is_scored(longrm, tmp_path, monkeypatch, out, next_step):
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", generate(WorldPlan("records", 64), 40, words_tokenizer()))
    rows = (tmp_path / "rows.jsonl").read_bytes()
    command = ["score", "--model", "baseline:interrupted", "--data", "-", "--out", out]
    read = []

    def interrupted(query):
        read.append(query.id)
        if len(read) == 40:
            raise KeyboardInterrupt
        return [float(len(text_of(response))) for response in query.responses]

    monkeypatch.setitem(BASELINES, "interrupted", BaselineRule(interrupted))
    with pytest.raises(KeyboardInterrupt, match=f"the same command {next_step}"):
        longrm(*command, rows=rows)
    again = longrm(*command, rows=rows)
    assert again.status == 0
    if out == "-":
        assert len(read) == 80
    else:
        assert 40 < len(read) < 60, "only the batch that was interrupted is scored again"
        assert (tmp_path / out).read_text() == longrm(*command[:-1], "-", rows=rows).out


def test_each_next_command_can_be_run(longrm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generate = ["world", "records", "--length", 128, "--n", 8, "--out", "w.jsonl"]
    seen = []
    for command in (
        generate,
        ["score", "--model", "baseline:longest", "--data", "w.jsonl", "--out", "s.jsonl"],
    ):
        while command:
            done = longrm(*command)
            assert done.status == 0, (command, done.err)
            seen.append(str(command[0]))
            (line,) = re.findall(r"^next: longrm (.+)$", done.out, re.MULTILINE) or [""]
            command = shlex.split(line.replace("MODEL", "baseline:overlap").replace("RUN", "run"))
            if command[:1] == ["train"]:
                break
    assert seen == ["world", "evaluate", "report", "score", "rank"]
    for arguments in (
        ["evaluate", "--config", "run/config.toml", "--out", "again", "--json"],
        ["compare", "run", "again", "--json"],
        ["audit", "w.jsonl", "--json"],
        ["runs", "list", ".", "--json"],
        ["recipes", "demo/short"],
        ["plan", "demo/short", "--device", "l4", "--json"],  # whose memory does not vary
    ):
        done, quiet = longrm(*arguments), longrm("--quiet", *arguments)
        assert "next: longrm " in done.err, arguments
        assert "next: " not in done.out + quiet.out + quiet.err
        assert done.out == quiet.out


def test_worlds_are_listed_and_generated(longrm, tmp_path):
    listed = longrm("world", "--list", columns=120).out.splitlines()
    assert any(line.startswith("two-hops") for line in listed)
    assert any(line.startswith("minutes") for line in listed)
    for world in ("checklist", "records"):
        out = tmp_path / f"{world}.jsonl"
        assert longrm("world", world, "--length", 256, "--n", 2, "--out", out).status == 0
        texts = [row.comparison.prompt[0]["content"] for row in read(out)]
        assert all(200 < approximate_tokens(text) <= 256 for text in texts)
    prose = ["world", "single-fact", "--length", 400, "--n", 1, "--out", tmp_path / "x.jsonl"]
    assert "tokenizer" in longrm(*prose, "--tokenizer", "words").error
    assert "'mail'" in longrm(*prose, "--text", "mial").error
    assert not (tmp_path / "x.jsonl").exists()


def test_recipes_are_listed_printed_and_found_by_name(longrm, tmp_path, monkeypatch):
    listed = longrm("recipes").out
    for name in ("paper/llama-3.1-8b/logo", "scale/8-a100", "demo/short", "data/vote"):
        assert name in listed
    printed = longrm("recipes", "scale/8-a100").out
    (tmp_path / "mine.toml").write_text(printed)
    plans = [
        longrm("plan", name, "--device", "a100-80gb", "--devices", "8").out
        for name in ("scale/8-a100", tmp_path / "mine.toml")
    ]
    assert plans[0] == plans[1] != ""


@pytest.mark.parametrize("own", ["", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_segments_of_gpu_memory_grow_unless_the_user_chose(monkeypatch, own):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    if own:
        monkeypatch.setenv(own, "max_split_size_mb:64")
    monkeypatch.setattr("sys.argv", ["longrm", "--version"])
    with pytest.raises(SystemExit):
        main()
    expected = (
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if not own else {own: "max_split_size_mb:64"}
    )
    assert {name: value for name, value in os.environ.items() if name.endswith("ALLOC_CONF")} == expected
