"""`longrm probe`: lengths in the model's own tokens, in a run folder like any other."""

import json
import re
import shutil
import tomllib

import pytest
from click.testing import CliRunner

from longrm.benchmarks import Probe, ProbeCell
from longrm.cli.commands import cli
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, LongRMError, ModelError
from longrm.runs.judgments import Judgments
from longrm.types import text_of
from tests.reward_models.tiny_models import make_model, make_scorer
from tests.worlds.prose.prose_tokenizer import prose_tokenizer


def longrm(*arguments):
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model that reads prose, and one of the words tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    make_scorer(folder / "prose", positions=4096, tokenizer=prose_tokenizer())
    make_scorer(folder / "plain", positions=4096)
    return folder


SMALL = ("--lengths", "512,1k", "--depths", "0,1", "--n", 4, "--set", "judging.resamples=100", "--set",
         "judging.examples=100")  # fmt: skip


def test_lengths_count_in_the_models_own_tokens(models, tmp_path):
    out = tmp_path / "run"
    done = longrm("probe", models / "prose", *SMALL, "--tasks", "single-fact,two-hops", "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    digest = summary["measured"].pop("tokenizer_digest")
    assert summary["measured"] == {
        "tokenizer": str(models / "prose"),
        "worlds": ["single-fact", "two-hops"],
        "depths": [0.0, 1.0],
    }
    worlds = Probe(cells=(ProbeCell(worlds=("records",)),))
    digests = {
        name: worlds.measured(name, Tokenizer.load(models / name))["tokenizer_digest"]
        for name in ("prose", "plain")
    }
    assert digests["prose"] == digest != digests["plain"]
    assert json.loads((out / "manifest.json").read_text())["bench"] == {"tokenizer": str(models / "prose")}
    lengths = {record.id: record.length for record in Judgments(out)}
    tokenizer, other = Tokenizer.load(models / "prose"), Tokenizer.load(models / "plain")
    counted = {
        one["id"]: (tokenizer.count(text), other.count(text))
        for one in map(json.loads, (out / "examples.jsonl").read_text().splitlines())
        for text in [text_of(one["prompt"])]
    }
    assert {*lengths.values()} == {512, 1024}
    assert len(counted) == len(lengths) == 32
    for name, (own, words) in counted.items():
        assert 0.9 * lengths[name] < own <= lengths[name]
        assert words < 0.9 * lengths[name]  # control: another tokenizer counts otherwise
    assert "32 comparisons, 32 contexts of 512 and 1,024 tokens, 24,576 in all" in done.stderr
    measured = (
        r"Lengths in tokens of \S+/prose; worlds single-fact and two-hops; evidence at\s+depth 0 and 1\."
    )
    assert len(re.findall(measured, done.output)) == 2  # before and after


def test_it_is_an_evaluation_that_continues_and_repeats(models, tmp_path):
    out = tmp_path / "run"
    arguments = ("probe", models / "plain", *SMALL, "--out", out)
    longrm(*arguments)
    before = (out / "judgments.jsonl").read_bytes()
    (out / "judgments.jsonl").write_bytes(before[: len(before) // 2])
    (out / "summary.json").unlink()
    longrm(*arguments)
    assert (out / "judgments.jsonl").read_bytes() == before
    again = tmp_path / "again"
    longrm("evaluate", "--config", out / "config.toml", "--out", again)
    for name in ("judgments.jsonl", "gold.jsonl", "summary.json", "config.toml"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    settings = tomllib.loads((out / "config.toml").read_text())
    assert settings["probe"]["cells"] == [
        {"lengths": [512, 1024], "depths": [0.0, 1.0], "worlds": ["records"], "groups": 4, "per_group": 1}
    ]
    with pytest.raises(LongRMError):
        longrm("probe", models / "plain", *SMALL, "--seed", 3, "--out", out)


def test_defaults_fit_the_model(models, tmp_path):
    few = ("--n", 2, "--limit", 12, "--set", "judging.resamples=100")
    for name, worlds in (("prose", ["exchange", "joined-facts", "dated-update"]), ("plain", ["records"])):
        done = longrm("probe", models / name, *few, "--out", tmp_path / name, "--json")
        summary = json.loads(done.stdout)
        assert summary["measured"]["worlds"] == worlds
        assert summary["measured"]["depths"] == ["uniform"]
        lengths = ["512", "1024", "2048"] if name == "prose" else ["256", "512", "1024", "2048"]
        assert [*summary["metrics"]["by_length"]] == lengths
        assert summary["counts"]["outcomes"]["answered"] == (12 if name == "prose" else 8)
        assert summary["counts"].get("sampled_from") == (18 if name == "prose" else None)


def without_weights(folder, copy):
    """A copy of a model that is known by its config, but cannot be loaded."""
    shutil.copytree(folder, copy)
    for file in ("model.safetensors", "files.json"):  # and the list of its files
        (copy / file).unlink(missing_ok=True)
    return copy


def test_a_model_that_writes_is_announced_with_faster_ways_before_it_is_loaded(models, tmp_path, monkeypatch):
    class LoadedError(Exception):
        pass

    def load(*_, **__):
        raise LoadedError

    make_model(tmp_path / "writer")
    monkeypatch.setattr("longrm.modeling.local_generator.LocalTextGenerator.load", load)
    monkeypatch.setattr("longrm.reward_models.packed.DiscriminativeRewardModel.load", load)
    for model, announced in ((tmp_path / "writer", True), (models / "plain", False)):
        few = ("--lengths", "1k", "--tasks", "records", "--tokenizer", "words", "--n", 1)
        done = CliRunner().invoke(cli, [*map(str, ("probe", model, *few, "--out", tmp_path / "run"))])
        assert isinstance(done.exception, LoadedError)
        assert (f"likelihood:{model}, --limit 96, fewer --lengths" in done.stderr) == announced


def test_invalid_settings_are_errors_before_any_work(tmp_path):
    for arguments, named in (
        ((), "--lengths"),
        (("--lengths", "1k", "--tasks", "single-fakt"), "single-fakt"),
        (("--lengths", "1m"), "--lengths"),
        (("--lengths", "1k", "--shard", "3/2"), "shard"),
        (("--lengths", "1k", "--tokenizer", "nowhere.json"), "nowhere.json"),
    ):
        with pytest.raises(LongRMError, match=named):
            longrm("probe", "baseline:longest", *arguments, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lengths_beyond_the_models_window_are_errors_before_any_work(models, tmp_path):
    plain = without_weights(models / "plain", tmp_path / "plain")
    out = tmp_path / "run"
    probe = ("probe", plain, "--tasks", "records", "--n", 1, "--out", out)
    with pytest.raises(ConfigError, match=r"4,096.*4,096, 16,384") as caught:
        longrm(*probe, "--lengths", "2k,4k,16k")
    assert "2,048" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"1,000.*1,024"):
        longrm(*probe, "--lengths", "512,1k", "--set", "model_args.max_length=1000")
    grid = 'probe.cells=[{lengths=[8192], worlds=["records"], groups=1, per_group=1}]'
    with pytest.raises(ConfigError, match="8,192"):
        longrm("evaluate", "--model", plain, "--bench", "probe", "--set", grid, "--out", tmp_path)
    assert not out.exists()
    # Controls: what fits, what is cut to fit, and lengths in other tokens come as far as the model.
    for given in (("2k",), ("16k", "--set", "model_args.cut=middle"), ("16k", "--tokenizer", "approximate")):
        with pytest.raises(ModelError):
            longrm(*probe, "--lengths", *given)
