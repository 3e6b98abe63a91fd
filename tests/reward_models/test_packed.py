"""Models that compute what is no number, or run out of memory, over some of what they are asked: the rest goes on."""

import json
import math
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from longrm import reward_models
from longrm.benchmarks import LoadedBenchmark
from longrm.cli.score import command
from longrm.data import write
from longrm.errors import DataError, ModelError, RunError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.trials import JudgingSettings
from longrm.modeling import attention, loading
from longrm.modeling.attention_cuda import sees_of
from longrm.modeling.loading import new_scorer
from longrm.modeling.shapes import ModelShape, build_trees
from longrm.reward_models import ModelSettings
from longrm.reward_models import packed as scoring
from longrm.reward_models.packed import DiscriminativeRewardModel
from longrm.runs.judgments import Judgments
from longrm.types import Outcome, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(hidden=32, init_std=0.3)
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
)


@pytest.fixture
def scorer():
    return new_scorer(SHAPE, words_tokenizer(), seed=0)


@pytest.fixture
def model(scorer):
    return DiscriminativeRewardModel(scorer, "tiny", ModelSettings(max_length=4000))


def comparisons(n=12, length=64, responses=2):
    """Neighbors that share a context, which are read as one tree."""
    return list(
        generate(WorldPlan("records", length, responses=responses, per_group=3), n, words_tokenizer())
    )


def queries(rows):
    return [query_of(row, range(len(row.responses))) for row in rows]


def poison(scorer, rows, at, response):
    """Makes the numbers of one word none, and puts it into one response."""
    word = next(
        token
        for token in range(scorer.tokenizer.vocab_size)
        if scorer.tokenizer.decode([token]).isalpha()
        and all(
            scorer.tokenizer.decode([token]) not in json.dumps([row.prompt, row.responses]) for row in rows
        )
    )
    text = scorer.tokenizer.decode([word])
    with torch.no_grad():
        scorer.model.get_input_embeddings().weight[word] = math.nan
    row = rows[at]
    answers = list(row.responses)
    answers[response] = ({"role": "assistant", "content": f"It is {text} now."},)
    return [*rows[:at], replace(row, responses=tuple(answers)), *rows[at + 1 :]]


@pytest.mark.parametrize("response", [0, 1])
def test_a_number_that_is_none_is_that_of_its_response_alone(scorer, model, response, monkeypatch):
    def masked(q, k, v, layout, spec, _):
        """As kernels with masks compute it."""
        tokens = torch.arange(layout.tokens)
        sees = sees_of(layout, tokens.device)(tokens, tokens, tokens[:, None], tokens)
        return attention.sdpa(q, k, v, spec.scale, attn_mask=sees).transpose(1, 2)

    monkeypatch.setattr(attention, "packed_attention", masked)
    rows = comparisons(responses=3)
    plain = model.judge(queries(rows))
    poisoned = poison(scorer, rows, 4, response)
    asked = queries(poisoned)
    items = [item for query in asked for item in model._items(query)]
    together = model._forward(items, build_trees(items))
    assert sum(not math.isfinite(value) for (value,), _ in together) > 1, (
        "the control: a mask does not keep it away"
    )
    trials = model.judge_in_all_orders(asked)
    assert [trial.outcome for trial in trials].count(Outcome.UNPARSED) == 1
    assert trials[4].outcome is Outcome.UNPARSED
    assert trials[4].detail == f"the score of response {response + 1} of 3 is nan"
    assert trials[4].scores == ()
    for place, (trial, judgment) in enumerate(zip(trials, plain, strict=True)):
        if place != 4:
            assert trial.scores == pytest.approx(judgment.scores, abs=1e-5)
    with pytest.raises(
        DataError, match=rf"tiny gave no scores \(unparsed\): the score of response {response + 1} of 3"
    ):
        model.score(poisoned[4].prompt, poisoned[4].responses)


def judged(rows, model, path, **judging):
    settings = Evaluation(model="x", bench="x", judging=JudgingSettings(resamples=100, **judging))
    return run_evaluation(settings, path, bench=LoadedBenchmark("test", rows), model=model).to_dict()


@pytest.fixture
def limited(monkeypatch):
    """Has memory run out over more tokens at once than there is room for; with another error, something else."""
    real = scoring.scores
    read = []

    def limit(room, error=OUT_OF_MEMORY[0]):
        def scores(model, packed):
            read.append(packed.layout.tokens)
            if packed.layout.tokens > room:
                raise error
            return real(model, packed)

        monkeypatch.setattr(scoring, "scores", scores)
        return read

    return limit


def sizes(model, asked):
    return [item.size for query in asked for item in model._items(query)]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["class", "CUDA", "CUBLAS", "CPU"])
def test_a_batch_that_does_not_fit_is_read_one_by_one(model, limited, error):
    asked = queries([*comparisons(6), *comparisons(1, length=300), *comparisons(2, length=120)])
    plain = model.judge(asked)
    every = sizes(model, asked)
    assert sorted(every)[-2] < 300 < max(every)
    read = limited(300, error)
    found = model.judge(asked)
    for judgment, truth, size in zip(found, plain, every, strict=True):
        if size > 300:
            assert judgment.outcome is Outcome.ERROR
            assert f"{size} tokens" in judgment.detail
            assert judgment.prompt_tokens == truth.prompt_tokens
        else:
            assert judgment.scores == pytest.approx(truth.scores, abs=1e-5)
    assert [judgment.outcome for judgment in found].count(Outcome.ERROR) == 1
    assert read[0] > 300, "the control: together they did not fit"
    with pytest.raises(DataError, match="out of memory"):
        model.score(asked[6].prompt, asked[6].responses)


def test_what_several_processes_compute_together_is_not_retried_by_one(scorer, model, limited):
    """The others would wait for ever, in the middle of a layer, for one that begins anew."""
    limited(0)
    scorer.model.longrm_sharded = None  # as of a model whose weights are sharded
    with pytest.raises(torch.OutOfMemoryError):
        model.judge(queries(comparisons(3)))


def test_an_evaluation_without_memory_goes_on_and_is_continued_with_more(
    model, limited, monkeypatch, tmp_path
):
    rows = [*comparisons(6), *(replace(row, id=f"long {row.id}") for row in comparisons(2, length=300))]
    clean = judged(rows, model, tmp_path / "clean")
    with monkeypatch.context() as patched:
        limited(300)
        summary = judged(rows, model, tmp_path / "run")
        assert summary["counts"]["outcomes"]["error"] == 2
        assert not summary["complete"]
        with pytest.raises(DataError, match="'test'.*out of memory"):
            judged(rows[6:], model, tmp_path / "none")
        patched.undo()
    monkeypatch.undo()
    summary = judged(rows, model, tmp_path / "run")
    assert summary["complete"]
    assert summary["metrics"] == clean["metrics"]
    pairs = zip(*(Judgments(tmp_path / name) for name in ("run", "clean")), strict=True)
    for found, truth in pairs:  # what was read one by one is rounded in another way
        assert (found.id, found.outcome) == (truth.id, truth.outcome)
        assert found.scores == pytest.approx(truth.scores, abs=1e-5)


@pytest.fixture
def scored(model, monkeypatch, tmp_path):
    """Scores the rows of a file by the model at hand; returns the rows of what is written."""
    monkeypatch.setattr(reward_models, "load", lambda *_, **__: model)

    def score(rows, name):
        write(tmp_path / "data.jsonl", rows)
        out = tmp_path / name
        result = CliRunner().invoke(
            command, ["--model", "x", "--data", str(tmp_path / "data.jsonl"), "--out", str(out)]
        )
        return result, [json.loads(line) for line in out.read_text().splitlines()]

    return score


def test_rows_that_memory_does_not_do_for_are_tried_again(scored, limited, monkeypatch, tmp_path):
    rows = [*comparisons(18), *(replace(row, id=f"long {row.id}") for row in comparisons(1, length=300))]
    real = scoring.scores
    clean, truth = scored(rows, "clean.jsonl")
    assert clean.exit_code == 0
    limited(300)
    result, found = scored(rows, "out.jsonl")
    assert isinstance(result.exception, RunError)
    assert str(result.exception) == "1 of 19 rows ended in errors; the same command retries them"
    assert (found[18]["scores"], found[18]["scores_outcome"]) == (None, "error")
    for row, old in zip(
        found[:18], truth[:18], strict=True
    ):  # what was read one by one is rounded in another way
        assert row["scores"] == pytest.approx(old["scores"], abs=1e-5)
    monkeypatch.setattr(scoring, "scores", real)
    result, again = scored(rows, "out.jsonl")
    assert result.exit_code == 0
    assert again[:18] == found[:18], "and no other is"
    assert again[18] == truth[18]
    assert not (tmp_path / "out.jsonl.partial").exists()


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_a_model_that_does_not_fit_is_one_line(error):
    with (
        pytest.raises(ModelError, match="x: its weights do not fit into the memory of cuda"),
        loading.weights_fit("x", "cuda"),
    ):
        raise error
