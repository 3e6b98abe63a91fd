"""Preference optimization end to end; the losses themselves are tested in test_likelihood_losses.py."""

import pytest

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.training.objectives import Preference
from longrm.training.settings import LossSettings
from longrm.training.train import train


@pytest.mark.parametrize("kind", ["logo", "simpo", "dpo"])
def test_chosen_responses_come_to_be_preferred(tmp_path, recipe, kind, steps_of):
    settings = recipe(
        "preference", loss={"kind": kind}, optimizer={"steps": 40, "learning_rate": 1e-2}, data__per_step=12
    )
    summary = train(settings, tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    assert summary["accuracy"] > 0.9 > steps[0].accuracy
    assert steps[-1].loss < 0.8 * steps[0].loss
    assert summary["data"]["used"] == 12


def test_the_number_of_rejected_responses_is_read_and_no_more(tmp_path, recipe, steps_of):
    train(recipe("preference", optimizer__steps=1, loss={"rejected": 1}), tmp_path / "one")
    train(recipe("preference", optimizer__steps=1), tmp_path / "all")
    one, both = (steps_of(tmp_path / name)[0] for name in ("one", "all"))
    assert one.tokens < both.tokens
    assert one.loss != both.loss


def test_the_best_comes_first_and_worse_ones_keep_their_order():
    example = Example("e", Encoded([1], [[2], [3], [4], [5], [6]]), (2, 1, 3, 1, 2), "d")
    for rejected, kept in [(None, [[3], [2], [4], [6]]), (2, [[3], [2], [4]])]:
        selected = Preference(LossSettings(kind="logo", rejected=rejected)).select(example)
        assert list(selected.tokens.responses) == kept
        assert selected.ranks[0] == 1
