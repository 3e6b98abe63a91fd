"""A run folder whose run failed before its first result takes corrected settings."""

import pytest

from longrm.data import write
from longrm.errors import ModelError, RunError
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.synthesis.recipes import questions
from longrm.worlds import WorldPlan, generate, words_tokenizer

NOBODY = "openai:http://127.0.0.1:9/v1#model"


def test_an_evaluation_whose_server_was_down(tmp_path):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64, per_group=1), 2, words_tokenizer()))
    bench, out = f"file:{tmp_path / 'pairs.jsonl'}", tmp_path / "run"
    wrong = Evaluation.resolve(None, {"model": NOBODY, "bench": bench})
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9"):
        run_evaluation(wrong, out)
    corrected = Evaluation(model="baseline:longest", bench=bench)
    assert run_evaluation(corrected, out).to_dict()["counts"]["comparisons"] == 2
    with pytest.raises(RunError, match="other settings"):
        run_evaluation(Evaluation(model="baseline:shortest", bench=bench), out)


def test_a_synthesis_whose_server_was_down(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/text.txt").write_text("Ann has a cat. Bob has a dog. " * 40)

    def recipe(model):
        documents = {"path": str(tmp_path / "texts")}
        return questions.RECIPE.model_validate({"documents": documents, "writer": {"model": model}})

    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9"):
        questions.synthesize(recipe(NOBODY), tmp_path / "run")
    assert questions.synthesize(recipe("simulated:0"), tmp_path / "run")["counts"]["inputs"] == 1
    with pytest.raises(RunError, match="other settings"):
        questions.synthesize(recipe("simulated:0.5"), tmp_path / "run")
