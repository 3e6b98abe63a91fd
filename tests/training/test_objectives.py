"""Bradley-Terry training end to end: on generated worlds and on files."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from longrm.data import read_demonstrations, write
from longrm.data.joining import Encoded, encode
from longrm.data.training_rows import Example
from longrm.errors import DataError, ModelError
from longrm.modeling import shared_prefix
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, build_trees
from longrm.modeling.shared_prefix import pack
from longrm.runs.logs import Log
from longrm.runs.records import ContextRecord
from longrm.training import losses
from longrm.training.batches import MicroBatch
from longrm.training.objectives import BradleyTerry, Preference
from longrm.training.settings import LossSettings, TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

TINY = {"layers": 2, "hidden": 16}
WORLD = {"name": "records", "responses": [2, 4], "tokens_per_step": 512, "responses_per_step": 12}


def settings(**changes):
    tree = {
        "objective": "bradley_terry",
        "model": {"new": TINY},
        "data": {"world": WORLD},
        "curriculum": {"lengths": [160, 200], "ramp": 0.5},
        "optimizer": {"max_steps": 8, "learning_rate": 3e-3},
        "checkpoint": {"save_steps": 3},
    }
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    return TrainingSettings.resolve(None, tree | changed)


@pytest.fixture(scope="module")
def on_a_world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training") / "run"
    return folder, train(settings(), folder)


def weights_of(folder):
    return torch.cat([weight.flatten() for weight in load_file(folder / "model/model.safetensors").values()])


@pytest.mark.parametrize("step", [1, 6])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, on_a_world, stop, results_of, step):
    error, at = stop
    with pytest.raises(error):
        train(settings(), tmp_path / "run", progress=at(step))
    assert train(settings(), tmp_path / "run") == on_a_world[1]
    assert results_of(tmp_path / "run") == results_of(on_a_world[0])


def test_another_seed_trains_another_model(tmp_path, on_a_world):
    train(settings(seed=1, optimizer__max_steps=1), tmp_path / "run")
    assert not torch.equal(weights_of(tmp_path / "run"), weights_of(on_a_world[0]))


def test_the_log_has_every_step_and_its_contexts(on_a_world, steps_of):
    folder, summary = on_a_world
    steps = steps_of(folder)
    assert [record.step for record in steps] == list(range(1, 9))
    assert summary["tokens"] == sum(record.tokens for record in steps)
    assert {record.length for record in steps} > {steps[0].length}, "the curriculum moved"
    rates = [record.learning_rate for record in steps]
    assert rates[0] == max(rates) == pytest.approx(3e-3)  # one step of warm-up, which learns
    assert rates[-1] < rates[2]
    records = Log(folder / "contexts.jsonl", ContextRecord)
    contexts = [digest for record in records for digest in record.digests]
    assert len(contexts) == len(set(contexts)), "no context is used twice"


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, seed=3), 5, words_tokenizer()))
    return path


def from_file(path, **changes):
    plain = {"data": {"path": str(path), "per_step": 2}, "curriculum": None, "optimizer__max_steps": None}
    return settings(**plain | {"optimizer__num_train_epochs": 1} | changes)


def changed(path, number, **values):
    """Changes one row of a file; returns its id."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[number] = {key: value for key, value in (rows[number] | values).items() if value is not None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows[number]["id"]


def test_an_epoch_over_a_file_reads_every_row_once(tmp_path, pairs):
    train(from_file(pairs, optimizer__num_train_epochs=2), tmp_path / "run")
    steps = [record.digests for record in Log(tmp_path / "run/contexts.jsonl", ContextRecord)]
    assert len(steps) == 6
    first, second = ([digest for digests in half for digest in digests] for half in (steps[:3], steps[3:]))
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 5
    assert first != second, "every epoch has an order of its own"


def test_rows_with_ties_only_stop_or_are_skipped(tmp_path, pairs):
    name = changed(pairs, 2, ranks=[1, 1])
    with pytest.raises(DataError, match=f"'{name}'"):
        train(from_file(pairs), tmp_path / "run")
    data = train(from_file(pairs, data__on_bad_row="skip"), tmp_path / "skipped")["data"]
    assert (data["used"], data["tied"]) == (4, 1)


def test_margins_do_not_cause_a_plateau(tmp_path, pairs):
    """With a margin, equal scores have a higher loss than chance: no sign that nothing is learned."""
    for number in range(5):
        changed(pairs, number, metadata={"margin": 5.0})
    done = train(
        from_file(pairs, plateau_steps=2, optimizer__learning_rate=1e-9),
        tmp_path / "run",
    )
    assert done["data"]["margin"] == 5
    assert done["loss"] > 1.0


# --- Imitation end to end: the trained model, the run folder, and refused settings ---


def test_a_completion_is_learned_and_written_by_plain_transformers(
    tmp_path, recipe, demonstrations, steps_of
):
    settings = recipe("sft", optimizer={"max_steps": 90, "learning_rate": 1e-2})
    summary = train(settings, tmp_path / "run")
    first = steps_of(tmp_path / "run")[0].loss
    assert summary["objective"] == "sft"
    assert summary["accuracy"] is None
    assert summary["data"]["used"] == 12
    assert first > 5.0 > 2.0 > summary["loss"]
    assert nll(tmp_path / "run/model", demonstrations) < 2.0


def test_completions_with_a_label_that_says_bad_are_not_learned(tmp_path, recipe, base, demonstrations):
    """Rows of KTO: the weights are those of a training on the true ones alone."""
    rows = [json.loads(line) for line in demonstrations.read_text().splitlines()]
    labeled = [row | {"label": number % 3 > 0} for number, row in enumerate(rows)]
    weights = []
    for name, kept in (("kto", labeled), ("true", [row for row in labeled if row["label"]]), ("all", rows)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        changes = {"optimizer": {"max_steps": 2}, "data": {"path": str(path), "per_step": 4}}
        summary = train(recipe("sft", model={"path": str(base)}, **changes), tmp_path / name)
        weights.append(load_file(tmp_path / name / "model/model.safetensors"))
        assert (summary["data"]["used"], summary["data"]["labeled_bad"]) == {
            "kto": (8, 4), "true": (8, 0), "all": (12, 0)
        }[name]  # fmt: skip
    kto, true, every = weights
    assert all(torch.equal(kto[name], true[name]) for name in kto)
    assert not all(torch.equal(kto[name], every[name]) for name in kto), "the control"


def nll(folder, demonstrations):
    """Mean over all completion tokens of the data, by transformers alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), words_tokenizer()
    losses = []
    for row in read_demonstrations(demonstrations):
        told = row.demonstration
        prompt = tokenizer.prompt_ids(told.prompt)
        (completion,) = encode(tokenizer, told.prompt, [told.completion]).responses
        labels = torch.tensor([[-100] * len(prompt) + list(completion)])
        with torch.no_grad():
            loss = model(torch.tensor([[*prompt, *completion]]), labels=labels).loss
        losses += [loss.item()] * len(completion)
    return sum(losses) / len(losses)


def test_the_first_loss_is_the_token_weighted_mean_of_plain_transformers(
    tmp_path, recipe, base, demonstrations, steps_of
):
    """Whatever the cut: all rows in one step, in one part or in many."""
    expected = nll(base, demonstrations)
    for name, budget in [("whole", 100_000), ("parts", 150), ("rows", 1)]:
        changes = {
            "optimizer": {"max_steps": 1},
            "data__per_step": 12,
            "memory__max_tokens_per_microbatch": budget,
        }
        train(recipe("sft", model={"path": str(base)}, **changes), tmp_path / name)
        (step,) = steps_of(tmp_path / name)
        assert step.loss == pytest.approx(expected, rel=1e-5)
        assert step.accuracy is None


@pytest.mark.parametrize("objective", ["sft", "preference"])
def test_a_model_that_scores_is_refused_in_one_line(tmp_path, recipe, objective):
    shape = ModelShape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_scorer(shape, words_tokenizer(), seed=0), tmp_path / "scorer")
    with pytest.raises(ModelError) as caught:
        train(recipe(objective, model={"path": str(tmp_path / "scorer")}), tmp_path / "run")
    assert "scorer" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# --- How settings and rows reach the losses of scores; the losses themselves are tested apart ---

SCORES = torch.tensor([0.2, -0.4, 1.3, 0.7, 2.0], dtype=torch.float64)
RANKS = [(2, 1, 2), (1, 2)]


@pytest.fixture
def loss(monkeypatch):
    """The loss of two comparisons whose scores are known."""
    monkeypatch.setattr(shared_prefix, "scores", lambda model, packed: SCORES)

    def compute(settings: LossSettings, **told) -> float:
        examples = [example(ranks, **told) for ranks in RANKS]
        micro = MicroBatch(pack(build_trees([own.tokens for own in examples])), examples, 1.0)
        return BradleyTerry(settings).loss(SimpleNamespace(device="cpu"), micro)[0].item()

    return compute


def example(ranks, **told) -> Example:
    return Example("7", Encoded([5, 6], [[7]] * len(ranks)), ranks, "", **told)


@pytest.mark.parametrize("kind", ["bradley_terry", "hardest", "mean_rejected", "plackett_luce"])
def test_the_kind_names_the_loss(kind, loss):
    assert loss(LossSettings(loss_type=kind)) == getattr(losses, kind)(SCORES, RANKS)[0].item()


@pytest.mark.parametrize("kind", ["bradley_terry", "hardest", "mean_rejected"])
def test_label_smoothing_holds_where_a_row_has_no_probability(kind, loss):
    def of(sure):
        return getattr(losses, kind)(SCORES, RANKS, probabilities=[sure] * 2)[0].item()

    settings = LossSettings(loss_type=kind, label_smoothing=0.2)
    assert loss(settings) == of(0.8)
    assert loss(settings, probability=0.6) == of(0.6)
    assert len({of(0.8), of(0.6), of(1.0)}) == 3


def test_margins_and_centering_reach_the_loss(loss):
    found = loss(LossSettings(loss_type="bradley_terry", center_rewards_coefficient=0.3), margin=0.5)
    truth = losses.bradley_terry(SCORES, RANKS, margins=[0.5] * 2)[0]
    assert found == (truth + 0.3 * losses.centering(SCORES, RANKS)).item()


@pytest.mark.parametrize("told", [{"margin": 1.0}, {"probability": 0.9}])
def test_a_row_that_the_whole_ranking_cannot_read_is_refused_by_name(told):
    with pytest.raises(DataError, match="'7' has a margin or a probability"):
        BradleyTerry(LossSettings(loss_type="plackett_luce")).select(example((1, 2), **told))
    assert BradleyTerry(LossSettings(loss_type="bradley_terry")).select(example((1, 2), **told)).ranks == (
        1,
        2,
    )


def test_a_coin_is_known_only_where_equal_scores_cost_log_two():
    assert BradleyTerry(LossSettings(loss_type="bradley_terry")).chance == pytest.approx(math.log(2.0))
    for told in (
        {"loss_type": "plackett_luce"},
        {"center_rewards_coefficient": 0.1},
        {"label_smoothing": 0.1},
    ):
        assert BradleyTerry(LossSettings(**{"loss_type": "bradley_terry"} | told)).chance is None
    assert BradleyTerry(LossSettings(loss_type="bradley_terry"), graded=True).chance is None


# --- Preference optimization end to end; the losses themselves are tested in test_likelihood_losses.py ---


@pytest.mark.parametrize("kind", ["logo", "simpo", "dpo"])
def test_chosen_responses_come_to_be_preferred(tmp_path, recipe, kind, steps_of):
    settings = recipe(
        "preference",
        loss={"loss_type": kind},
        optimizer={"max_steps": 40, "learning_rate": 1e-2},
        data__per_step=12,
    )
    summary = train(settings, tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    assert summary["accuracy"] > 0.9 > steps[0].accuracy
    assert steps[-1].loss < 0.8 * steps[0].loss
    assert summary["data"]["used"] == 12


def test_the_number_of_rejected_responses_is_read_and_no_more(tmp_path, recipe, steps_of):
    train(recipe("preference", optimizer__max_steps=1, loss={"rejected": 1}), tmp_path / "one")
    train(recipe("preference", optimizer__max_steps=1), tmp_path / "all")
    one, both = (steps_of(tmp_path / name)[0] for name in ("one", "all"))
    assert one.tokens < both.tokens
    assert one.loss != both.loss


def test_the_best_comes_first_and_worse_ones_keep_their_order():
    example = Example("e", Encoded([1], [[2], [3], [4], [5], [6]]), (2, 1, 3, 1, 2), "d")
    for rejected, kept in [(None, [[3], [2], [4], [6]]), (2, [[3], [2], [4]])]:
        selected = Preference(LossSettings(loss_type="logo", rejected=rejected)).select(example)
        assert list(selected.tokens.responses) == kept
        assert selected.ranks[0] == 1
