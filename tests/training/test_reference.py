"""The reference of DPO: log-probabilities by the model at its start, computed once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForCausalLM

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.errors import TrainingError
from longrm.runs.logs import Log
from longrm.runs.progress import no_progress
from longrm.runs.records import ReferenceRecord
from longrm.training import reference
from longrm.training.batches import MicroBatch
from longrm.training.distributed import DistributedContext
from longrm.training.initial_model import initial_model
from longrm.training.reference import reference_logprobs
from longrm.training.train import train


@pytest.fixture(scope="module")
def examples():
    generator = torch.Generator().manual_seed(0)

    def tokens(count):
        return torch.randint(5, 60, (count,), generator=generator).tolist()

    shapes = [(13, 3, 5), (21, 4, 4, 7), (9, 2), (30, 6, 1, 1)]
    return [
        Example(f"e{at}", Encoded(tokens(p), [tokens(r) for r in rs]), tuple(range(1, 1 + len(rs))), f"d{at}")
        for at, (p, *rs) in enumerate(shapes)
    ]


@pytest.fixture(scope="module")
def model(recipe, base):
    return initial_model(recipe("preference", model={"path": str(base)}), "language_model").model


def computed(model, examples, folder, budget=60, progress=no_progress):
    return reference_logprobs(model, examples, folder, budget=budget, progress=progress)


def test_it_is_what_plain_transformers_says_of_every_response_alone(tmp_path, model, base, examples):
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    found = computed(model, examples, tmp_path)
    for example in examples:
        prompt = list(example.tokens.prompt)
        for response, value in zip(example.tokens.responses, found[example.id], strict=True):
            ids = torch.tensor([prompt + list(response)])
            with torch.no_grad():
                logprobs = plain(ids).logits[0].log_softmax(-1)
            own = range(len(prompt), ids.shape[1])
            expected = sum(logprobs[at - 1, ids[0, at]].item() for at in own)
            assert value == pytest.approx(expected, rel=1e-5)
            shifted = sum(logprobs[at, ids[0, at]].item() for at in own)
            assert value != pytest.approx(shifted, rel=1e-3), "the control: one token off is seen"


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_what_was_interrupted_ends_in_the_same_bytes_and_computes_the_rest(tmp_path, model, examples, lines):
    whole = computed(model, examples, tmp_path)
    log = tmp_path / "reference.jsonl"
    before = log.read_bytes()
    log.write_bytes(b"".join(before.splitlines(keepends=True)[:lines]) + b'{"id": "half')
    batches = []
    assert computed(model, examples, tmp_path, progress=lambda *told: batches.append(told)) == whole
    assert log.read_bytes() == before
    assert [done for _, done, _ in batches][-1] == len(examples)


def test_a_fresh_adapter_changes_no_reference_and_a_training_no_more(tmp_path, recipe, base, stop):
    """The reference is that of the start, also for a run that continues after many steps."""
    stopped, at = stop
    changes = {"loss": {"loss_type": "dpo"}, "plateau_steps": 0}
    full = recipe("preference", model={"path": str(base)}, **changes)
    lora = recipe("preference", model__lora={"r": 2}, **changes)
    train(full, tmp_path / "full")
    with pytest.raises(stopped):
        train(lora, tmp_path / "lora", progress=at(5))
    train(lora, tmp_path / "lora")
    one, other = (
        {record.id: record.logprobs for record in Log(tmp_path / name / "reference.jsonl", ReferenceRecord)}
        for name in ("full", "lora")
    )
    assert len(one) == 12
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert other[name] == pytest.approx(values, rel=1e-6)


def test_the_first_loss_is_that_of_equal_models(tmp_path, recipe, steps_of):
    """log 2 before the first update, for policy and reference are one; less after it."""
    changes = {
        "loss": {"loss_type": "dpo"},
        "optimizer__warmup_steps": 0.0,
        "optimizer__learning_rate": 1e-2,
    }
    train(recipe("preference", **changes), tmp_path / "run")
    losses = [record.loss for record in steps_of(tmp_path / "run")]
    assert losses[0] == pytest.approx(0.693147, abs=1e-5)
    assert min(losses[1:]) < 0.68


class Thread(DistributedContext):
    """A process of several, played by a thread; what all have found goes through a list."""

    def __init__(self, index, parts, told, barrier):
        super().__init__(index, parts, index, parts)
        object.__setattr__(self, "talk", (told, barrier))

    def gather(self, found):
        told, barrier = self.talk
        told[self.rank] = found
        barrier.wait(timeout=60)
        whole = [one for own in told for one in own]
        barrier.wait(timeout=60)
        return whole


@pytest.mark.parametrize("lines", [0, 1])
def test_processes_that_share_it_end_in_the_bytes_of_one(tmp_path, model, examples, lines):
    parts = 2
    whole = computed(model, examples, tmp_path)
    log = (tmp_path / "reference.jsonl").read_bytes()
    barrier, told = threading.Barrier(parts), [None] * parts

    def work(index):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "reference.jsonl").write_bytes(b"".join(log.splitlines(keepends=True)[:lines]))
        place = Thread(index, parts, told, barrier)
        return reference_logprobs(model, examples, folder, budget=60, progress=no_progress, context=place)

    with (
        patch.object(reference, "_compute", side_effect=reference._compute) as sums,
        ThreadPoolExecutor() as pool,
    ):
        assert list(pool.map(work, range(parts))) == [whole] * parts
    batches = [tuple(example.id for example in call.args[1]) for call in sums.call_args_list]
    assert len(batches) == len(set(batches)) == 2, "each batch is computed by one of them"
    for index in range(parts):
        assert (tmp_path / str(index) / "reference.jsonl").read_bytes() == log


def test_a_log_probability_that_is_no_number_is_named(tmp_path, model, examples):
    def broken(micro, model):
        return [torch.tensor([torch.nan]) for example in micro.examples for _ in example.ranks]

    message = "log-probability nan, among 'e0', 'e1'"
    with patch.object(MicroBatch, "response_logprobs", broken), pytest.raises(TrainingError, match=message):
        computed(model, examples, tmp_path)
    assert computed(model, examples, tmp_path).keys() == {example.id for example in examples}
