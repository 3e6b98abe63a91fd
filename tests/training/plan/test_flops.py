"""Operations against torch's own counter, which does not see a CPU's attention unless it is written out."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from longrm.modeling import attention, shapes
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import pack, response_logprobs
from longrm.training.initial_model import initial_model
from longrm.training.plan.plan import attended_pairs, forward_flops, training_flops
from longrm.training.plan.workload import Workload, sizes_of

SHAPE = TreeShape(90, (7, 11, 13))
READING = Workload(1, 1, {SHAPE: 1}, PackedLayout((SHAPE,)), False, "")


def counted(settings, *, backward=False):
    model = initial_model(settings, "language_model").model.train()
    branches = [[5 + index % 11 for index in range(length)] for length in SHAPE.branches]
    packed = pack([TokenTree([5 + index % 7 for index in range(SHAPE.prefix)], branches)])
    with FlopCounterMode(display=False) as counter:
        loss = torch.cat(response_logprobs(model, packed)).sum()
        if backward:
            loss.backward()
    return counter.get_total_flops()


def test_a_forward_pass_without_attention(bases, recipe):
    settings = recipe("sft", model__path=str(bases["llama"]))
    sizes = sizes_of(settings, "language_model")
    flops = forward_flops(sizes, READING)
    assert flops.linear + flops.head == counted(settings)


def written_out_whole(q, k, v, layout, scale, _):
    sees = torch.ones(layout.tokens, layout.tokens, dtype=torch.bool)
    return attention.sdpa(q, k, v, scale, attn_mask=sees).transpose(1, 2)


def test_attention_counts_the_pairs_that_see_each_other(bases, recipe, monkeypatch):
    settings = recipe("sft", model__path=str(bases["llama"]))
    sizes = sizes_of(settings, "language_model")
    monkeypatch.setattr(attention, "packed_attention", written_out_whole)
    with sdpa_kernel(SDPBackend.MATH):
        written_out = counted(settings)
    # Written out, every token meets every token; a mask discards pairs.
    squares = SHAPE.tokens**2
    whole = written_out - counted(settings)
    assert forward_flops(sizes, READING).attention == pytest.approx(whole * attended_pairs(SHAPE) / squares)


def test_pairs_by_counting_one_by_one():
    seen = sum(
        1
        for length in SHAPE.branches
        for token in range(length)
        for other in range(SHAPE.prefix + length)
        if other <= SHAPE.prefix + token
    )
    assert attended_pairs(SHAPE) == seen + sum(range(1, SHAPE.prefix + 1))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [0, 8])
def test_a_training_step_beside_attention(bases, recipe, monkeypatch, rank, checkpointing, tiled):
    more = {"model__lora": {"rank": rank}} if rank else {}
    memory = {"gradient_checkpointing": checkpointing, "tiled_mlp": tiled}
    settings = recipe("sft", model__path=str(bases["llama"]), memory=memory, **more)
    monkeypatch.setattr(shapes, "SHORTEST", 8)
    sizes = sizes_of(settings, "language_model")
    flops = training_flops(
        forward_flops(sizes, READING),
        sizes,
        READING,
        adapters=sizes.adapter_parameters(rank),
        checkpointing=checkpointing,
        reference=False,
        tiled=tiled,
    )
    # Frozen embeddings save the first layer some gradients.
    assert flops.linear + flops.head == pytest.approx(counted(settings, backward=True), rel=0.05)


def test_a_reference_model_reads_everything_once(bases, recipe):
    sizes = sizes_of(recipe("sft", model__path=str(bases["llama"])), "language_model")
    forward = forward_flops(sizes, READING)
    without, with_it = (
        training_flops(forward, sizes, READING, adapters=0, checkpointing=False, reference=reference)
        for reference in (False, True)
    )
    assert with_it.total - without.total == forward.total
    assert without.total == 3 * forward.total
