"""`model_args.device` and `model_args.dtype`: where models of this machine run, and in which type."""

import pytest
import torch

import longrm
from longrm.data import read, write
from longrm.errors import ConfigError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.folder import read_manifest
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(layers=1)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "scorer"
    save(new_scorer(SHAPE, words_tokenizer(), seed=0), folder)
    return str(folder)


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "writer"
    save(new_language_model(SHAPE, words_tokenizer(), seed=0), folder)
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 128), 4, words_tokenizer()))
    return path


def scores(model, data, **settings):
    row = next(iter(read(data))).comparison
    answers = [response[0]["content"] for response in row.responses]
    return longrm.load(model, model_args={"device": "cpu", **settings}).score(row.prompt, answers)


def test_the_dtype_is_that_of_the_weights_and_changes_scores(scorer, data):
    exact, rounded = scores(scorer, data, dtype="float32"), scores(scorer, data, dtype="bfloat16")
    assert scores(scorer, data) == exact, "auto keeps the checkpoint's"
    assert rounded != exact
    assert rounded == pytest.approx(exact, abs=0.02 * max(map(abs, exact)) + 1e-3)


@pytest.mark.parametrize("kind", ["", "likelihood:", "tokens:"])
def test_every_kind_of_local_model_takes_a_dtype(kind, writer, tmp_path):
    judge = {}
    if kind == "tokens:":
        (tmp_path / "template.jinja").write_text("{% for r in responses %}{{ r }}{% endfor %}")
        judge = {
            "tokens": ["bucket", "turtle"],
            "format": "pairwise",
            "template": str(tmp_path / "template.jinja"),
        }
    model = longrm.load(kind + writer, model_args={"dtype": "bfloat16"}, judge=judge)
    assert model.provenance["dtype"] == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_refused(scorer):
    with pytest.raises(ConfigError, match="cuda"):
        longrm.load(scorer, model_args={"device": "cuda"})
    with pytest.raises(ConfigError, match="nonsense"):
        longrm.load(scorer, model_args={"device": "nonsense"})


def test_a_run_keeps_its_dtype_and_may_change_its_device(scorer, data, tmp_path):
    def run(**model_args):
        settings = Evaluation(model=scorer, bench=f"file:{data}", model_args=model_args)
        return run_evaluation(settings, tmp_path / "run").to_dict()

    run(dtype="bfloat16")
    assert read_manifest(tmp_path / "run")["model"]["dtype"] == "bfloat16"
    run(dtype="bfloat16", device="cpu")
    with pytest.raises(longrm.errors.RunError, match="model_args.dtype"):
        run(dtype="float32")
