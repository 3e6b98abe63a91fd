import json
import os
import resource
import subprocess
import sys

import pytest

from longrm.cli.commands import COMMANDS
from longrm.data import read, write
from longrm.data.chunking import approximate_tokens
from longrm.worlds import WorldPlan, generate, words_tokenizer

from ..worlds.prose.prose_tokenizer import prose_tokenizer


def longrm(*arguments, columns=80, limit=None):
    def limited():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "longrm", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": str(columns), "OMP_NUM_THREADS": "1"},
        preexec_fn=limited,
    )


def refused(*arguments, status=1, **options):
    """Runs a command that must fail with one clear line, and returns the line."""
    done = longrm(*arguments, **options)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("longrm: error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, per_group=2), 12, words_tokenizer()))
    return path


TRAINING = ("sft", "preference", "bradley-terry")


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), *(["train", name] for name in TRAINING)]
)
@pytest.mark.parametrize("columns", [80, 50])
def test_help_fits_the_terminal(command, columns):
    done = longrm(*command, "--help", columns=columns)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: longrm")
    examples = [line for line in done.stdout.splitlines() if line.strip().startswith("longrm ")]
    prose = [line for line in done.stdout.splitlines() if line not in examples]
    assert max(map(len, prose)) <= columns


def test_an_evaluation_without_a_local_model_loads_no_torch(tmp_path, pairs):
    probe = (
        "import sys\nfrom longrm.cli.commands import cli\n"
        f"cli.main(['evaluate', '--model', 'baseline:longest', '--bench', 'file:{pairs}', '--out', "
        f"'{tmp_path / 'run'}'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wrong_words_get_the_nearest_right_one():
    assert "No such command 'evalute'. Did you mean 'evaluate'?" in refused("evalute", status=2)
    line = refused("evaluate", "--modle", "x", status=2)
    assert "No such option '--modle'. (Did you mean one of: '--model'" in line
    assert "Missing option '--out'" in refused("evaluate", status=2)


def evaluate(tmp_path, bench, *more, model="baseline:first"):
    return ["evaluate", "--model", model, "--bench", bench, "--out", tmp_path / "run", *more]


def test_unknown_keys_and_wrong_values_are_refused_before_any_work(tmp_path, pairs):
    bench = f"file:{pairs}"
    assert "unknown key 'judging.sede'; did you mean 'judging.seed'?" in refused(
        *evaluate(tmp_path, bench, "--set", "judging.sede=1")
    )
    assert "wrong value for 'judging.seed'" in refused(*evaluate(tmp_path, bench, "--set", "judging.seed=x"))
    assert "no benchmark 'prob'" in refused(*evaluate(tmp_path, "prob"))
    assert "no baseline 'frist'" in refused(*evaluate(tmp_path, bench, model="baseline:frist"))
    assert "there is no such model folder" in refused(*evaluate(tmp_path, bench, model="./nowhere"))


def test_bad_files_are_named_with_row_and_field(tmp_path, pairs):
    assert "nothing.jsonl" in refused(*evaluate(tmp_path, f"file:{tmp_path}/nothing.jsonl"))
    rows = pairs.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"

    def broken(change):
        row = json.loads(rows[3])
        change(row)
        bad.write_text("\n".join([*rows[:3], json.dumps(row), *rows[4:]]) + "\n")
        return refused(*evaluate(tmp_path, f"file:{bad}"))

    bad.write_text("\n".join([*rows[:3], rows[3][:50]]) + "\n")
    assert "bad.jsonl" in refused(*evaluate(tmp_path, f"file:{bad}"))
    for change, field in [
        (lambda row: row.pop("responses"), "responses"),
        (lambda row: row.update(ranks=[1, 2, 3]), "ranks"),
        (lambda row: row.update(prompt=[]), "prompt"),
        (lambda row: row.update(context=[[0, 5, 5]]), "context"),
        (lambda row: row["metadata"].update(length=True), "length"),
        (lambda row: row["metadata"].update(depth=50), "depth"),
    ]:
        line = broken(change)
        assert field in line
        assert "4" in line.split("bad.jsonl", 1)[1][:12], line
        assert not (tmp_path / "run").exists(), "nothing was judged"
    done = longrm(*evaluate(tmp_path, f"file:{bad}", "--on-bad-row", "skip", "--json"))
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert (counts["comparisons"], counts["skipped_rows"]) == (11, 1)


def test_outputs_that_cannot_be_written_are_one_line(tmp_path, pairs):
    (tmp_path / "file").write_text("")
    bench = f"file:{pairs}"
    under = ["evaluate", "--model", "baseline:first", "--bench", bench, "--out", tmp_path / "file" / "run"]
    assert "Not a directory" in refused(*under)
    assert "cannot" in refused(
        "world", "records", "--length", 64, "--n", 3, "--out", tmp_path / "file" / "w.jsonl"
    )
    full = refused(
        "world", "records", "--length", 64, "--n", 300, "--out", tmp_path / "w.jsonl", limit=20_000
    )
    assert "w.jsonl" in full
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"], "nothing half-written stays"
    full = refused(*evaluate(tmp_path, bench), limit=1_000)
    assert "File too large" in full
    again = longrm(*evaluate(tmp_path, bench))
    assert again.returncode == 0, again.stderr


def test_worlds_of_plain_prose_are_measured_without_a_tokenizer(tmp_path):
    for world in ("checklist", "records"):
        out = tmp_path / f"{world}.jsonl"
        made = longrm("world", world, "--length", 256, "--n", 2, "--out", out)
        assert made.returncode == 0, made.stderr
        texts = [row.comparison.prompt[0]["content"] for row in read(out)]
        assert all(200 < approximate_tokens(text) <= 256 for text in texts)


def test_a_run_repeats_from_its_own_configuration(tmp_path, pairs):
    first = longrm(*evaluate(tmp_path, f"file:{pairs}", "--seed", 7, "--json"))
    repeat = ["evaluate", "--config", tmp_path / "run/config.toml", "--out", tmp_path / "again", "--json"]
    assert longrm(*repeat).stdout == first.stdout
    line = refused(*evaluate(tmp_path, f"file:{pairs}", "--seed", 8))
    assert "judging.seed: 7 -> 8" in line


def test_scoring_writes_the_same_rows_and_their_scores(tmp_path, pairs):
    out = tmp_path / "scored.jsonl"
    done = longrm("score", "--model", "baseline:shortest", "--data", pairs, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "in the format 'longrm', recognized from its columns" in done.stderr
    before = [json.loads(line) for line in pairs.read_text().splitlines()]
    after = [json.loads(line) for line in out.read_text().splitlines()]
    for old, new in zip(before, after, strict=True):
        lengths = [-float(len(response[0]["content"])) for response in old["responses"]]
        said = {"scores": lengths, "scores_outcome": "answered", "scores_by": "baseline:shortest"}
        assert new == old | said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["scored.jsonl"]
    again = longrm("score", "--model", "baseline:longest", "--data", out, "--out", tmp_path / "twice.jsonl")
    assert "the rows have a column 'scores' already; the scores go to 'model_scores'" in again.stderr
    twice = [json.loads(line) for line in (tmp_path / "twice.jsonl").read_text().splitlines()]
    assert [row["scores"] for row in twice] == [row["scores"] for row in after]
    taken = [
        "score",
        "--model",
        "baseline:first",
        "--data",
        out,
        "--out",
        tmp_path / "x.jsonl",
        "--column",
        "scores",
    ]
    assert "name another with --column" in refused(*taken)


def test_a_depth_outside_the_context_is_refused(tmp_path):
    line = refused(
        "world", "records", "--length", 64, "--n", 1, "--depth", 2, "--out", tmp_path / "x", status=2
    )
    assert "needs a number from 0 (start) to 1 (end), or 'uniform'" in line


def test_the_module_is_the_command():
    assert longrm("--version").stdout.startswith("longrm, version 0.")


@pytest.mark.parametrize("command", [[], ["train"]])
def test_a_command_alone_shows_its_help(command):
    done = longrm(*command)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: longrm")
    assert not done.stderr


def test_examples_in_the_help_stand_on_their_own_lines():
    lines = [line.strip() for line in longrm("world", "--help").stdout.splitlines()]
    assert "longrm world records --length 4096 --n 100 --out records.jsonl" in lines
    assert not any("\\b" in line or "\b" in line for line in lines)


def test_worlds_and_kinds_of_text_are_listed():
    listed = longrm("world", "--list", columns=120).stdout.splitlines()
    assert any(line.startswith("two-hops") and "RULER variable tracking" in line for line in listed)
    assert any(line.startswith("minutes") for line in listed)


def test_a_world_in_prose_is_refused_without_a_tokenizer_that_knows_it(tmp_path):
    asked = ("world", "single-fact", "--length", 400, "--n", 1, "--out", tmp_path / "x.jsonl")
    line = refused(*asked, "--tokenizer", "words")
    assert "name your model's, such as --tokenizer MODEL" in line
    assert "did you mean 'mail'" in refused(*asked, "--text", "mial")
    assert not (tmp_path / "x.jsonl").exists()


def test_questions_that_a_short_context_repeats_are_counted(tmp_path):
    prose_tokenizer().save(tmp_path / "tokenizer")
    out = tmp_path / "updates.jsonl"
    flags = ("--n", 24, "--per-group", 8, "--tokenizer", tmp_path / "tokenizer", "--out", out)
    said = longrm("world", "latest-update", "--length", 300, *flags).stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    different = {
        (row["prompt"][0]["content"], *sorted(each[0]["content"] for each in row["responses"]))
        for row in rows
    }
    assert len(different) < 24
    assert said.startswith(f"{24 - len(different)} of them repeat a question with its responses")
    assert not longrm("world", "latest-update", "--length", 3000, *flags).stderr


def test_a_world_in_prose_stands_between_the_paragraphs_of_a_haystack(tmp_path):
    prose_tokenizer().save(tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"body": "Row {n} has its number."}}\n' for n in range(200))
    )
    flags = (
        "--length",
        900,
        "--n",
        2,
        "--tokenizer",
        tmp_path / "tokenizer",
        "--haystack",
        tmp_path / "rows.jsonl",
    )
    out = tmp_path / "facts.jsonl"
    assert longrm("world", "citation", *flags, "--haystack-column", "body", "--out", out).returncode == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all("has its number." in row["prompt"][0]["content"] for row in rows)


def test_numbers_out_of_range_are_refused_before_any_work(tmp_path, pairs):
    for setting in ("judging.seed=-1", "judging.resamples=0", "judging.accuracy_threshold=2"):
        line = refused(*evaluate(tmp_path, f"file:{pairs}", "--set", setting))
        assert f"wrong value for '{setting.split('=')[0]}'" in line


def test_a_score_file_is_checked_before_the_model_is_loaded(tmp_path, pairs):
    score = ["score", "--model", "baseline:first", "--data", pairs, "--out"]
    assert "is the data itself" in refused(*score, pairs)
    assert "cannot write this kind of file" in refused(*score, tmp_path / "z.txt")
    assert "is a folder" in refused(*score, tmp_path)
    assert not list(tmp_path.iterdir())


def test_skipped_rows_are_told_with_their_reason(tmp_path, pairs):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(pairs.read_text() + '{"half": ')
    done = longrm(*evaluate(tmp_path, f"file:{bad}", "--on-bad-row", "skip"))
    assert done.returncode == 0
    assert "skipped" in done.stderr
    assert "bad.jsonl" in done.stderr.split("skipped")[1]


def test_one_of_several_processes_of_a_machine_says_what_all_find(monkeypatch, tmp_path):
    missing = (
        "evaluate",
        "--model",
        "baseline:longest",
        "--bench",
        "file:/none.jsonl",
        "--out",
        tmp_path / "out",
    )
    monkeypatch.setenv("RANK", "3")  # left over, with no word of several processes
    assert "none.jsonl" in refused(*missing)
    for rank, lines in ((0, 1), (1, 0)):  # of the second machine
        for name, value in {"WORLD_SIZE": 4, "RANK": 2 + rank, "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, str(value))
        done = longrm("evaluate", "--nonsense")
        assert (done.returncode, done.stderr.count("longrm: error:")) == (2, lines)


def test_commands_that_share_nothing_are_refused_to_several_processes(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "leave torchrun away" in refused("merge", tmp_path, "--out", tmp_path / "out")
