"""How settings and rows reach the losses of scores; the losses themselves are tested apart."""

import math
from types import SimpleNamespace

import pytest
import torch

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.errors import DataError
from longrm.modeling import shared_prefix
from longrm.modeling.shapes import build_trees
from longrm.modeling.shared_prefix import pack
from longrm.training import losses
from longrm.training.batches import MicroBatch
from longrm.training.objectives import BradleyTerry
from longrm.training.settings import LossSettings

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
    assert loss(LossSettings(kind=kind)) == getattr(losses, kind)(SCORES, RANKS)[0].item()


@pytest.mark.parametrize("kind", ["bradley_terry", "hardest", "mean_rejected"])
def test_label_smoothing_holds_where_a_row_has_no_probability(kind, loss):
    def of(sure):
        return getattr(losses, kind)(SCORES, RANKS, probabilities=[sure] * 2)[0].item()

    settings = LossSettings(kind=kind, label_smoothing=0.2)
    assert loss(settings) == of(0.8)
    assert loss(settings, probability=0.6) == of(0.6)
    assert len({of(0.8), of(0.6), of(1.0)}) == 3


def test_margins_and_centering_reach_the_loss(loss):
    found = loss(LossSettings(kind="bradley_terry", centering=0.3), margin=0.5)
    truth = losses.bradley_terry(SCORES, RANKS, margins=[0.5] * 2)[0]
    assert found == (truth + 0.3 * losses.centering(SCORES, RANKS)).item()


@pytest.mark.parametrize("told", [{"margin": 1.0}, {"probability": 0.9}])
def test_a_row_that_the_whole_ranking_cannot_read_is_refused_by_name(told):
    with pytest.raises(DataError, match="'7' has a margin or a probability"):
        BradleyTerry(LossSettings(kind="plackett_luce")).select(example((1, 2), **told))
    assert BradleyTerry(LossSettings(kind="bradley_terry")).select(example((1, 2), **told)).ranks == (1, 2)


def test_a_coin_is_known_only_where_equal_scores_cost_log_two():
    assert BradleyTerry(LossSettings(kind="bradley_terry")).chance == pytest.approx(math.log(2.0))
    for told in ({"kind": "plackett_luce"}, {"centering": 0.1}, {"label_smoothing": 0.1}):
        assert BradleyTerry(LossSettings(**{"kind": "bradley_terry"} | told)).chance is None
    assert BradleyTerry(LossSettings(kind="bradley_terry"), graded=True).chance is None
