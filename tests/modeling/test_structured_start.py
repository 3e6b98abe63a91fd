import pytest
import torch

from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.shapes import ModelShape
from longrm.modeling.structured_start import structure
from longrm.worlds import words_tokenizer

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
    scorer = new_scorer(SHAPE, words_tokenizer(), seed=0)
    structure(scorer.model, seed=0)
    weights = attention_of(layer, scorer)
    for head, distance in enumerate(distances):
        looked = weights[head].argmax(-1)[distance:]
        expected = torch.arange(distance, weights.shape[-1]) - distance
        assert (looked == expected).float().mean() > 0.95
    plain = attention_of(layer, new_scorer(SHAPE, words_tokenizer(), seed=0))
    assert (plain[0].argmax(-1)[1:] == torch.arange(39)).float().mean() < 0.5


def test_what_heads_of_a_writing_model_copy_comes_out_where_it_came_in():
    """Output times value map is a projection, so copied embeddings meet the tied output embeddings."""
    writer, scorer = (
        new_language_model(SHAPE, words_tokenizer(), seed=0),
        new_scorer(SHAPE, words_tokenizer(), seed=0),
    )
    for model in (writer.model, scorer.model):
        structure(model, seed=0)
    kept = []
    for model in (writer.model, scorer.model):
        attention = model.base_model.layers[1].self_attn
        through = attention.o_proj.weight[:, :32] @ attention.v_proj.weight[:32]
        kept.append((through - through.T).norm() / through.norm())
    assert kept[0] < 1e-5
    assert kept[1] > 0.5
    assert writer.model.base_model.norm.weight.unique().item() == 3.0
    assert scorer.model.base_model.norm.weight.unique().item() == 1.0
