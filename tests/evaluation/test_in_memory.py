"""Models, data and runs in memory give what names, files and folders give."""

import gc
import re
import sys

import datasets
import pandas as pd
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.data import read
from longrm.data.formats import to_native_row
from longrm.errors import ConfigError, DataError, RunError
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

SETTINGS = {"judging.resamples": 100}


@pytest.fixture(scope="module")
def rows():
    plans = [WorldPlan("records", length, responses=2) for length in (64, 128)]
    found = [to_native_row(row) for plan in plans for row in generate(plan, 6, words_tokenizer())]
    return [row | {"id": f"{number}-{row['id']}"} for number, row in enumerate(found)]


@pytest.fixture(scope="module")
def file(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    longrm.data.write_rows(path, rows)
    return path


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("models") / "scorer")


@pytest.fixture
def in_memory(scorer):
    return AutoModelForSequenceClassification.from_pretrained(scorer), AutoTokenizer.from_pretrained(scorer)


def _judgments(run):
    return [(one.id, one.trials, one.ranks) for one in run.judgments]


def test_the_same_rows_give_the_same_judgments(rows, file, scorer, in_memory):
    model, tokenizer = in_memory
    named = longrm.evaluate(str(scorer), file, settings=SETTINGS)
    runs = [
        longrm.evaluate(model, data, settings=SETTINGS, tokenizer=tokenizer)
        for data in (file, rows, pd.DataFrame(rows), datasets.Dataset.from_list(rows))
    ]
    for run in runs:
        assert _judgments(run) == _judgments(named)
        assert run.summary.metrics == named.summary.metrics
    benches = [run.settings["bench"] for run in runs]
    assert benches[1] == benches[2] == benches[3] == f"file:{read(rows).path}"
    assert named.name == "scorer"
    assert re.fullmatch(r"scorer \(in memory, \w{8}\)", runs[0].name)


def test_a_run_on_an_object_continues_and_knows_other_rows_and_weights(rows, in_memory, tmp_path):
    model, tokenizer = in_memory
    first = longrm.evaluate(model, rows, tmp_path / "run", SETTINGS, tokenizer=tokenizer)
    log = tmp_path / "run/judgments.jsonl"
    whole = log.read_bytes()
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    again = longrm.evaluate(model, pd.DataFrame(rows), tmp_path / "run", SETTINGS, tokenizer=tokenizer)
    assert log.read_bytes() == whole
    assert again.summary == first.summary
    with pytest.raises(RunError, match="bench"):
        longrm.evaluate(model, rows[1:], tmp_path / "run", SETTINGS, tokenizer=tokenizer)
    model.score.weight.data.add_(1e-3)
    with pytest.raises(RunError, match="model"):
        longrm.evaluate(model, rows, tmp_path / "run", SETTINGS, tokenizer=tokenizer)


def test_a_bad_row_is_named(rows):
    bad = [*rows[:2], rows[2] | {"ranks": [1]}]
    with pytest.raises(DataError, match="row 3 of the list, field 'ranks'"):
        longrm.evaluate("baseline:longest", bad)
    with pytest.raises(DataError, match="row 3 of the DataFrame, field 'ranks'"):
        longrm.score("baseline:longest", pd.DataFrame(bad))
    audited = longrm.audit(bad)
    assert "row 3 of the list" in audited.findings["unreadable_rows"].examples[0]
    assert audited.rows == 2


def test_an_audit_of_an_object_is_that_of_the_file(rows, file):
    one, other = longrm.audit(rows).as_dict(), longrm.audit(file).as_dict()
    assert one.pop("path") != other.pop("path")
    assert one == other


def test_scores_of_an_object_are_those_of_the_file(rows, file, scorer, in_memory, tmp_path):
    model, tokenizer = in_memory
    named = longrm.score(str(scorer), file, tmp_path / "scored.jsonl")
    assert [row.source["scores"] for row in read(tmp_path / "scored.jsonl")] == named["scores"].tolist()
    frame = pd.DataFrame(rows)
    found = longrm.score(model, frame, tokenizer=tokenizer)
    assert list(found) == ["scores", "scores_outcome", "scores_by"]
    assert found["scores"].tolist() == named["scores"].tolist()
    assert found["scores_by"].unique().tolist() == [longrm.load(model, tokenizer).name]
    assert frame.join(found)["scores_outcome"].tolist() == ["answered"] * len(rows)
    renamed = [{"answers": row["responses"], "question": row["prompt"]} for row in rows]
    columns = {"prompt": "question", "responses": "answers"}
    other = longrm.score(model, renamed, tmp_path / "own.jsonl", tokenizer=tokenizer, columns=columns)
    assert other["scores"].tolist() == found["scores"].tolist()
    asked = [[row["prompt"] for row in rows], [row["responses"] for row in rows]]
    assert longrm.load(model, tokenizer).score(*asked) == found["scores"].tolist()
    model.score.weight.data.add_(1e-3)
    with pytest.raises(DataError):  # the scores of other weights are not overwritten
        longrm.score(model, renamed, tmp_path / "own.jsonl", tokenizer=tokenizer, columns=columns)


def test_a_probe_measures_lengths_in_tokens_of_the_model(in_memory, scorer, tmp_path):
    model, tokenizer = in_memory
    options = {"lengths": [64, 128], "tasks": ["records"], "n": 4, "settings": SETTINGS}
    run = longrm.probe(model, tokenizer=tokenizer, **options)
    named = longrm.probe(str(scorer), **options)
    assert run.summary.metrics == named.summary.metrics
    assert run.summary.measured.tokenizer_digest == named.summary.measured.tokenizer_digest
    room = SETTINGS | {"judge.max_tokens": 8}
    assert longrm.probe(model, tokenizer=tokenizer, n=4, settings=room).summary.counts.comparisons


def test_runs_are_compared_and_read_as_they_are_returned(rows, tmp_path):
    one, other = (
        longrm.evaluate(f"baseline:{name}", rows, settings=SETTINGS) for name in ("longest", "overlap")
    )
    found = longrm.compare(one, other)
    assert found.first.name == "baseline:longest"
    assert found.overall == longrm.compare(one.path, other.path).overall
    pd.testing.assert_frame_equal(longrm.read_run(one), longrm.read_run(one.path))
    longrm.report([one, other], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in ("baseline:longest", "baseline:overlap"))
    longrm.report(one, str(tmp_path / "one.html"))
    same = longrm.compare(one, longrm.evaluate("baseline:longest", rows, settings=SETTINGS))
    assert same.first.name != same.second.name


def test_a_run_shows_its_curve_and_its_table(rows):
    import longrm.reporting

    page = longrm.evaluate("baseline:longest", rows, settings=SETTINGS)._repr_html_()
    assert "<svg" in page
    assert "<table" in page
    assert "<a " not in page  # links into the report, which is not here


def test_progress_is_a_bar_where_it_is_seen(rows, monkeypatch, capsys):
    longrm.evaluate("baseline:longest", rows, settings=SETTINGS)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    longrm.evaluate("baseline:longest", rows, settings=SETTINGS)
    assert "judging file:rows-" in capsys.readouterr().err


def test_a_temporary_run_is_removed_with_its_last_user(rows):
    run = longrm.evaluate("baseline:longest", rows, settings=SETTINGS)
    path, found = run.path, longrm.compare(run, run)
    del run
    gc.collect()
    assert len(found.first.judgments) == len(rows)
    del found
    gc.collect()
    assert not path.exists()


def test_a_tokenizer_is_only_for_a_model_in_memory(rows):
    with pytest.raises(ConfigError, match="tokenizer"):
        longrm.evaluate("baseline:longest", rows, tokenizer="words")
