"""What is taken over of a stored state, on every device that an optimizer may step; a GPU is a fake one here."""

import copy

import pytest
import torch
from torch._subclasses import FakeTensorMode

from longrm.training.zero import load_without_moments, shard_of


def trained(**how):
    """AdamW after two steps of two groups, a weight each."""
    weights = [torch.nn.Parameter(torch.arange(1.0, n)) for n in (4, 6)]
    optimizer = torch.optim.AdamW(
        [{"params": weights[:1], "weight_decay": 0.1}, {"params": weights[1:], "lr": 0.2}], **how
    )
    for _ in range(2):
        for weight in weights:
            weight.grad = weight.detach() ** 2
        optimizer.step()
    return optimizer


def untouched(device, **how):
    """AdamW that has not stepped, over flat parts as ZeRO has them: two of the first group, one of the second."""
    parts = [[torch.zeros(2, device=device), torch.zeros(1, device=device)], [torch.zeros(5, device=device)]]
    for part in (part for own in parts for part in own):
        part.requires_grad = True
    return torch.optim.AdamW([{"params": own} for own in parts], **how), parts


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("how", [{"fused": True}, {"fused": False}, {"capturable": True}, {}], ids=str)
def test_a_state_lies_where_the_optimizer_wants_it(device, how):
    stored = trained(**{name: value for name, value in how.items() if name != "capturable"}).state_dict()
    for group in stored["param_groups"]:
        group |= how
    again = copy.deepcopy(stored)
    with FakeTensorMode(allow_non_fake_inputs=True):
        optimizer, parts = untouched(device)
        own = optimizer.param_groups
        load_without_moments(optimizer, parts, stored)
        # What torch makes of the same state where each weight is whole.
        _, (first, second) = untouched(device)
        reference = torch.optim.AdamW([{"params": first[:1]}, {"params": second}])
        reference.load_state_dict(again)
    truth = reference.state[second[0]]
    found = [optimizer.state[part] for group in parts for part in group]
    assert {one["step"].device for one in found} == {truth["step"].device}
    assert {one["step"].dtype for one in found} == {truth["step"].dtype}
    assert truth["step"].device.type == (device if how.get("fused") or how.get("capturable") else "cpu")
    for part, one in zip((part for group in parts for part in group), found, strict=True):
        assert {one[name].device for name in ("exp_avg", "exp_avg_sq")} == {part.device}
        assert one["exp_avg"].shape == part.shape
    assert optimizer.param_groups is own
    told = [{key: value for key, value in group.items() if key != "params"} for group in own]
    assert told == [{k: v for k, v in group.items() if k != "params"} for group in reference.param_groups]
    assert [list(map(id, group["params"])) for group in own] == [list(map(id, group)) for group in parts]


def test_fused_adamw_goes_on_from_a_state_that_was_taken_over():
    """Cut by hand as ZeRO cuts it, with the moments put in their places: the third step is that of the whole."""
    truth = trained(fused=True)
    stored = copy.deepcopy(truth.state_dict())
    optimizer, parts = untouched("cpu")
    load_without_moments(optimizer, parts, stored)
    places = [(0, slice(0, 2)), (0, slice(2, 3)), (1, slice(0, 5))]
    weights = [weight for group in truth.param_groups for weight in group["params"]]
    flat = [part for group in parts for part in group]
    for part, (index, where) in zip(flat, places, strict=True):
        part.data.copy_(weights[index].data[where])
        for name in ("exp_avg", "exp_avg_sq"):
            optimizer.state[part][name].copy_(stored["state"][index][name][where])
    for each in (*weights, *flat):
        each.grad = each.detach() ** 2
    truth.step()
    optimizer.step()
    for part, (index, where) in zip(flat, places, strict=True):
        torch.testing.assert_close(part.data, weights[index].data[where])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 30])
def test_parts_of_a_weight_put_together_are_the_weight(count):
    whole = torch.arange(24.0).reshape(4, 6) + 1
    parts = [shard_of(whole, rank, count) for rank in range(count)]
    assert {len(part) for part in parts} == {-(-24 // count)}
    joined = torch.cat(parts)
    torch.testing.assert_close(joined[:24].view(4, 6), whole)
    assert not joined[24:].any()
