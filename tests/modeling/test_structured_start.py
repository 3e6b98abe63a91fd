import pytest
import torch

from longrm.modeling.loading import ModelShape, new_scorer
from longrm.modeling.structured_start import structure
from longrm.worlds import words

SHAPE = ModelShape(layers=3, head_dim=32, attention_bias=True, rope_theta=1000.0, init_std=0.08)


def attention_of(layer, scorer, length=40):
    """Attention weights of a layer on random tokens, [heads, length, length], by transformers' eager path."""
    model = scorer.model
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 500, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return model.base_model(ids, output_attentions=True).attentions[layer][0]


@pytest.mark.parametrize(("layer", "distances"), [(0, (1, 2, 3, 4)), (2, (2, 6, 10, 14))])
def test_heads_look_back_by_their_distance(layer, distances):
    scorer = new_scorer(SHAPE, words(), seed=0)
    structure(scorer.model, seed=0)
    weights = attention_of(layer, scorer)
    for head, distance in enumerate(distances):
        looked = weights[head].argmax(-1)[distance:]
        expected = torch.arange(distance, weights.shape[-1]) - distance
        assert (looked == expected).float().mean() > 0.95
    plain = attention_of(layer, new_scorer(SHAPE, words(), seed=0))
    assert (plain[0].argmax(-1)[1:] == torch.arange(39)).float().mean() < 0.5


def test_the_same_seed_gives_the_same_weights():
    states = []
    for seed in (0, 0, 1):
        scorer = new_scorer(SHAPE, words(), seed=0)
        structure(scorer.model, seed=seed)
        states.append(scorer.model.base_model.layers[1].self_attn.v_proj.weight.clone())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_a_model_that_cannot_be_structured_is_refused():
    for shape in (ModelShape(layers=1, attention_bias=True), ModelShape(layers=2)):
        with pytest.raises(ValueError, match="at least two layers and attention biases"):
            structure(new_scorer(shape, words(), seed=0).model, seed=0)
