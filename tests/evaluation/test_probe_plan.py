"""The grid of a probe, its defaults, and its progress."""

import json

import pytest

from longrm.benchmarks import Probe, ProbeCell
from longrm.benchmarks.probe import comparisons, probe_parts
from longrm.clients.remote_settings import Remote
from longrm.evaluation.evaluate import Evaluation, own_tokenizer
from longrm.evaluation.probe import contexts_of, default_lengths, probe_cells, token_progress
from longrm.reward_models import JudgeSettings
from longrm.runs.resumable import Shard


def evaluation(model="baseline:longest", **given):
    return Evaluation(model=model, bench="probe", **given)


def folder_of(path, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_comparisons_are_split_into_many_contexts():
    for n in range(1, 700):
        groups, per_group = contexts_of(n, 4095)
        assert groups * per_group == n
        assert per_group == max([1, *(q for q in range(1, 9) if n % q == 0 and n / q >= 32)])
        groups, shared = contexts_of(n, 4096)
        assert groups * shared == n
        assert shared == max([per_group, *(q for q in range(1, 5) if n % q == 0 and n / q >= 8)])


def test_options_name_lengths_depths_and_tasks():
    (cell,) = probe_cells(evaluation(), "32k, 8K,500", "0,.5,1,uniform", "records, chain", 512)
    assert cell == ProbeCell(
        lengths=(500, 8192, 32768),
        depths=(0, 0.5, 1, "uniform"),
        worlds=("records", "chain"),
        groups=64,
        per_group=8,
    )
    assert probe_cells(evaluation(), "1k", None, None, 7)[0].depths == ("uniform",)


@pytest.mark.parametrize(
    ("reads", "answer", "lengths"),
    [
        (131_072, 1024, tuple(2**power for power in range(10, 17))),
        (40_960, 1024, (1024, 2048, 4096, 8192, 16384, 32768)),
        (8192, 1024, (512, 1024, 2048, 4096)),
        (4096, 1024, (256, 512, 1024, 2048)),
        (2048, 1024, (64, 128, 256, 512)),
        (1024, 64, (64, 128, 256)),
    ],
)
def test_default_lengths_leave_room_for_the_answer(tmp_path, reads, answer, lengths):
    model = folder_of(tmp_path / "model", max_position_embeddings=reads)
    judge = JudgeSettings(max_tokens=answer)
    found = default_lengths(evaluation(model, judge=judge), ["records"])
    assert found == lengths
    assert found[-1] + answer + 512 <= reads < 2 * found[-1] + answer + 512
    assert default_lengths(evaluation(f"likelihood:{model}", judge=judge), ["chain"]) == lengths
    prose = [length for length in lengths if length >= 512]
    if prose:
        assert default_lengths(evaluation(model, judge=judge), ["records", "two-hops"]) == tuple(prose)
    shorter = evaluation(model, judge=judge, model_args={"max_length": 1700})
    assert max(default_lengths(shorter, ["records"])) == min(lengths[-1], 1024 if answer == 64 else 128)


def test_every_kind_of_model_has_its_tokenizer(tmp_path):
    one, two = (folder_of(tmp_path / name) for name in ("one", "two"))
    server = "openai:http://127.0.0.1:9/v1#m"
    known = Remote(tokenizer="a/tokenizer")
    for model, remote, name in [
        (one, Remote(), one),
        (f"tokens:{one}", Remote(), one),
        (f"likelihood:{one}#{two}", Remote(), one),
        (f"compress:likelihood:{two}", Remote(), two),
        (f"ensemble:votes:baseline:longest+{two}+{one}", Remote(), two),
        (server, known, "a/tokenizer"),
        (f"likelihood:{server}", known, "a/tokenizer"),
        (f"compress:tokens:{server}", known, "a/tokenizer"),
        (f"ensemble:votes:{server}+{one}", known, one),
        (server, Remote(), None),
        ("baseline:longest", known, None),
        ("simulated:0.2", Remote(), None),
        (None, known, None),
    ]:
        found = own_tokenizer(model, remote)
        assert (found and found.name) == name, model
        assert found is None or found.place == name
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": one}))
    (tmp_path / "adapter/adapter_model.safetensors").touch()
    adapter = own_tokenizer(str(tmp_path / "adapter"), Remote())
    assert (adapter.name, adapter.place) == (str(tmp_path / "adapter"), one)


def test_progress_counts_the_tokens_of_contexts():
    probe = Probe.model_validate(
        {"cells": [{"lengths": [128, 512], "depths": [0, 1], "groups": 6, "per_group": 4}]}
    )
    costs = [one.metadata["length"] / 4 for one in comparisons(probe)]
    shown = []
    report = token_progress(probe_parts(probe), None, lambda *given: shown.append(given))
    for done in range(0, len(costs) + 1, 8):
        report("judging probe", done, len(costs), "a note")
    assert shown == [
        ("judging probe, context tokens", sum(costs[:done]), sum(costs), "a note") for done in range(0, 97, 8)
    ]
    half = token_progress(probe_parts(probe), Shard(2, 2), lambda *given: shown.append(given))
    half("judging probe", 24, 0)
    assert shown.pop()[1:3] == (sum(costs[:48]) / 2, sum(costs) / 2), "the shard has batches of all parts"
    # Control: in comparisons, half of the work would be a fifth of the tokens.
    assert shown[6][1] == sum(costs) / 5
