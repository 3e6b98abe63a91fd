"""Operations against torch's own counter, which does not see a CPU's attention unless it is written out."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from longrm.modeling import attention, shapes
from longrm.modeling.group_sampling import GroupSampler
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import branch_scores, hidden_states, pack, response_logprobs
from longrm.training.initial_model import initial_model
from longrm.training.plan import Device
from longrm.training.plan.operations import forward_flops, rollout_cost, training_flops
from longrm.training.plan.workload import TrainedPart, Workload, sizes_of, trained_part

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


def test_the_head_of_a_scorer_reads_one_token_of_a_response(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]))
    model = initial_model(settings, "scorer").model
    packed = pack([TokenTree([5] * SHAPE.prefix, [[6] * length for length in SHAPE.branches])])
    hidden = hidden_states(model, packed)
    with FlopCounterMode(display=False) as counter:
        branch_scores(model, hidden, packed)
    assert forward_flops(sizes_of(settings, "scorer"), READING).head == counter.get_total_flops()


def written_out_whole(q, k, v, layout, spec, _):
    sees = torch.ones(layout.tokens, layout.tokens, dtype=torch.bool)
    return attention.sdpa(q, k, v, spec.scale, attn_mask=sees).transpose(1, 2)


def test_attention_counts_the_pairs_that_see_each_other(bases, recipe, monkeypatch):
    settings = recipe("sft", model__path=str(bases["llama"]))
    sizes = sizes_of(settings, "language_model")
    monkeypatch.setattr(attention, "packed_attention", written_out_whole)
    with sdpa_kernel(SDPBackend.MATH):
        written_out = counted(settings)
    # Written out, every token meets every token; a mask discards pairs.
    squares = SHAPE.tokens**2
    whole = written_out - counted(settings)
    assert forward_flops(sizes, READING).attention == pytest.approx(whole * SHAPE.pairs() / squares)


@pytest.mark.parametrize("window", [None, 1, 5, 95, 1000])
def test_pairs_by_counting_one_by_one(window):
    sequences = [range(SHAPE.prefix), *(range(SHAPE.prefix, SHAPE.prefix + n) for n in SHAPE.branches)]
    seen = sum(
        1
        for tokens in sequences
        for token in tokens
        for other in range(token + 1)
        if window is None or token - other < window
    )
    assert SHAPE.pairs(window) == seen


def test_windows_of_some_layers_have_their_own_pairs(bases, recipe):
    sizes = sizes_of(recipe("sft", model__path=str(bases["gemma2"])), "language_model")
    assert (sizes.window, sizes.window_layers, sizes.norms, sizes.biases) == (100, 2, 4, 0)
    pairs = SHAPE.pairs() + 2 * SHAPE.pairs(100)
    assert forward_flops(sizes, READING).attention == 4 * sizes.queries * pairs


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("frozen", [0, 2])
def test_a_training_step_without_its_attention(
    bases, recipe, monkeypatch, frozen, rank, checkpointing, tiled
):
    model = {"path": str(bases["llama"]), "frozen_layers": frozen} | ({"lora": {"r": rank}} if rank else {})
    memory = {"gradient_checkpointing": checkpointing, "tiled_mlp": tiled}
    settings = recipe("sft", model=model, memory=memory)
    monkeypatch.setattr(shapes, "SHORTEST", 8)
    sizes = sizes_of(settings, "language_model")

    def planned(trained):
        forward = forward_flops(sizes, READING)
        flops = training_flops(
            forward, trained, READING, checkpointing=checkpointing, reference=False, tiled=tiled
        )
        return flops.linear + flops.head

    # The first adapters read what needs no gradient, and the plan counts one.
    unneeded = 2 * SHAPE.tokens * 96 * (96 + 2 * 32 + 3 * rank) * bool(rank)
    found = counted(settings, backward=True)
    # A checkpointed layer does not compute its last tile again, which its backward pass computes anyway.
    # The last product of adapters is not recomputed, and that of tiles is not counted.
    exact = 0.03 if (checkpointing and tiled) or (rank and (checkpointing or tiled)) else 1e-12
    assert planned(trained_part(settings.model, sizes)) - unneeded == pytest.approx(found, rel=exact)
    if frozen:
        assert planned(TrainedPart(sizes, rank)) > 1.3 * found


@pytest.mark.parametrize(("frozen", "rank"), [(2, 0), (2, 8), (0, 8)])
def test_attention_of_frozen_layers_has_no_backward_pass(bases, recipe, frozen, rank):
    sizes = sizes_of(recipe("sft", model__path=str(bases["llama"])), "language_model")
    forward = forward_flops(sizes, READING)
    part = TrainedPart(sizes, rank, frozen)
    of_layer = forward.attention / 3
    for checkpointing, keep, again in ((False, False, 0), (True, False, 1), (True, True, 0)):
        flops = training_flops(
            forward, part, READING, checkpointing=checkpointing, reference=False, keep_attention=keep
        )
        assert flops.attention == pytest.approx(of_layer * (3 + (3 - frozen) * (2 + again)))


def test_a_reference_model_reads_everything_once(bases, recipe):
    sizes = sizes_of(recipe("sft", model__path=str(bases["llama"])), "language_model")
    forward = forward_flops(sizes, READING)
    without, with_it = (
        training_flops(forward, TrainedPart(sizes), READING, checkpointing=False, reference=reference)
        for reference in (False, True)
    )
    assert with_it.total - without.total == forward.total
    assert without.total == 3 * forward.total


PROMPT, JUDGMENTS, MOST = 90, 4, 40


def judging(bases, recipe, **changes):
    """A GRPO recipe, the sizes of its model, and a workload of one step with two prompts that share most tokens."""
    rows = [{"rows": 1, "prompt": PROMPT}]
    sampled = {"num_generations": JUDGMENTS, "max_completion_length": MOST}
    settings = recipe(
        "grpo", **{"model__path": str(bases["llama"]), "plan__rows": rows, "rollouts": sampled, **changes}
    )
    return settings, sizes_of(settings, "language_model")


def reading(*trees, iterations=1):
    """The workload of one prompt, or of prompts that begin alike, given what they do not share."""
    shapes_of = [TreeShape(p, tuple(r + MOST for r in rests for _ in range(JUDGMENTS))) for p, rests in trees]
    return Workload(1, 1, dict.fromkeys(shapes_of, iterations), PackedLayout(tuple(shapes_of)), False, "")


def test_sampling_computes_what_is_planned(bases, recipe):
    settings, sizes = judging(bases, recipe)
    cost = rollout_cost(settings, sizes, reading((PROMPT, [0])), Device(1, None, None))
    sampler = GroupSampler(initial_model(settings, "language_model").model.eval(), ends=())
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # which torch's counter does not know

    def pairs(query, key, value, dropout=0.0, is_causal=False, **options):
        batch, heads, rows, size = query
        seen = rows * (rows + 1) // 2 if is_causal else rows * key[2]
        return 4 * batch * heads * seen * size

    with FlopCounterMode(display=False, custom_mapping={flash: pairs}) as counter:
        samples = sampler.sample(
            [5 + index % 7 for index in range(PROMPT)],
            range(JUDGMENTS),
            temperature=1.0,
            top_p=1.0,
            max_tokens=MOST,
        )
    assert sum(len(sample.tokens) for sample in samples) == cost.tokens
    # The last token of a judgment is not read again, and is counted.
    assert counter.get_total_flops() == pytest.approx(cost.flops.total, rel=0.02)
    longer, _ = judging(
        bases, recipe, rollouts={"num_generations": JUDGMENTS, "max_completion_length": MOST + 5}
    )
    shape = TreeShape(PROMPT, (MOST + 5,) * JUDGMENTS)
    wrong = rollout_cost(longer, sizes, replace(READING, trees={shape: 1}), Device(1, None, None))
    assert wrong.flops.total > 1.06 * cost.flops.total


def test_both_orders_read_what_they_share_once(bases, recipe):
    settings, sizes = judging(bases, recipe)
    device = Device(1, None, None)
    one, both = (
        rollout_cost(settings, sizes, reading((PROMPT, rests)), device) for rests in ([10], [10, 10])
    )
    assert (both.judgments, both.tokens) == (2 * JUDGMENTS, 2 * JUDGMENTS * MOST)
    per_token = 2.0 * sizes.layers * sizes.matrix_parameters
    assert both.flops.linear - one.flops.linear == per_token * JUDGMENTS * (10 + MOST)


def test_log_probabilities_of_the_sampling_and_of_the_start_are_forward_passes(bases, recipe):
    device, twice = Device(1, None, None), reading((PROMPT, [0]), iterations=2)
    settings, sizes = judging(bases, recipe)
    once = rollout_cost(settings, sizes, reading((PROMPT, [0])), device).flops.total
    forward = forward_flops(sizes, reading((PROMPT, [0]))).total
    sampled = {"num_generations": JUDGMENTS, "max_completion_length": MOST, "num_iterations": 2}
    for kl, passes in ((0.0, 1), (0.1, 2)):
        changed, _ = judging(bases, recipe, rollouts=sampled, loss__beta=kl)
        cost = rollout_cost(changed, sizes, twice, device)
        assert cost.flops.total == pytest.approx(once + passes * forward)


@pytest.mark.parametrize(
    ("precision", "lora", "frozen", "per_weight", "per_head", "element"),
    [
        ("float32", None, 0, 4, 4, 4),
        ("bfloat16", None, 0, 8, 4, 2),
        ("bfloat16", None, 2, (8 + 2 + 2) / 3, 4, 2),
        ("bfloat16", {"r": 4}, 0, 2, 10, 2),
    ],
)
def test_writing_takes_the_time_of_its_reads_or_of_its_operations(
    bases, recipe, precision, lora, frozen, per_weight, per_head, element
):
    changes = {"model__bf16": precision == "bfloat16", "model__frozen_layers": frozen} | (
        {"model__lora": lora} if lora else {}
    )
    settings, sizes = judging(bases, recipe, **changes)
    matrices = 3 * (96 * 96 + 2 * 96 * 32 + 96 * 96 + 3 * 96 * 160)  # by hand: q, k and v, o, feed-forward
    head = sizes.vocabulary * 96
    keys_read = sum(PROMPT + JUDGMENTS * step for step in range(1, MOST + 1))
    moved = MOST * (per_weight * matrices + per_head * head) + 2 * element * 3 * 32 * keys_read
    slow_memory = Device(1, 1e18, 1e18, bandwidth=1.0)  # all operations in no time
    cost = rollout_cost(settings, sizes, reading((PROMPT, [0])), slow_memory)
    assert cost.seconds == pytest.approx(moved / 0.4)
    slow_device = Device(1, 1.0, 1.0, bandwidth=1e18)
    cost = rollout_cost(settings, sizes, reading((PROMPT, [0])), slow_device, devices=2)
    assert cost.seconds == pytest.approx(cost.flops.total / 0.4 / 2)
    assert rollout_cost(settings, sizes, reading((PROMPT, [0])), Device(1, None, None)).seconds is None
