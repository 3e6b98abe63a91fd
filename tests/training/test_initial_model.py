import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from longrm.errors import ModelError
from longrm.modeling.loading import (
    LanguageModel,
    Scorer,
    load_language_model,
    load_scorer,
    new_language_model,
)
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs, scores
from longrm.runs.logs import ROLLOUTS, Log
from longrm.runs.records import RolloutRecord
from longrm.training.initial_model import initial_model, stored_dtype
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import words_tokenizer

SHAPE = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, init_std=0.2)
ROUNDING = 1e-5
"""By how much scores may differ where the same weights lie elsewhere in memory: made here, and mapped from a file."""
PACKED = pack([TokenTree(list(range(5, 42)), [[50, 51, 52], [60, 61]])])


def settings(memory: dict | None = None, **model: object) -> TrainingSettings:
    tree = {"model": model, "data": {"path": "rows.jsonl"}, "memory": memory or {}}
    return TrainingSettings.resolve(None, {"objective": "sft"} | tree)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model in bf16, as most are."""
    folder = tmp_path_factory.mktemp("base") / "model"
    language_model = new_language_model(SHAPE, words_tokenizer(), seed=0)
    language_model.model.bfloat16()
    save(language_model, folder)
    return folder


def test_a_language_model_starts_a_scorer_with_a_new_head_and_a_writer_as_it_is(base: Path):
    scorer = initial_model(settings(path=str(base)), "scorer")
    writer = initial_model(settings(path=str(base)), "language_model")
    assert isinstance(scorer, Scorer)
    assert isinstance(writer, LanguageModel)
    assert scores(scorer.model, PACKED).shape == (2,)
    truth = load_language_model(base, packed=True, dtype=torch.float32).model
    assert torch.equal(*(torch.cat(response_logprobs(model, PACKED)) for model in (writer.model, truth)))


@pytest.mark.parametrize("kind", ["scorer", "language_model"])
def test_a_new_model_is_its_seeds(kind: str):
    new = {"layers": 2, "hidden": 32, "structured": True}
    one, same, other = (
        initial_model(settings(new=new).model_copy(update={"seed": seed}), kind).model.state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_positions_are_stretched_before_training(base: Path, tmp_path: Path):
    stretched = initial_model(settings(path=str(base), rope_theta=1e6), "scorer")
    plain = initial_model(settings(path=str(base)), "scorer")
    found = scores(stretched.model, PACKED)
    assert (found - scores(plain.model, PACKED)).abs().max() > 100 * ROUNDING
    save(stretched, tmp_path / "model")
    loaded = scores(load_scorer(tmp_path / "model").model, PACKED)
    torch.testing.assert_close(loaded, found, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("model", "trained", "frozen"),
    [
        ({}, {torch.float32}, set()),
        ({"bf16": True}, {torch.float32}, set()),
        ({"lora": {"r": 2}}, {torch.float32}, {torch.float32}),
        ({"lora": {"r": 2}, "bf16": True}, {torch.float32}, {torch.bfloat16}),
        ({"frozen_layers": 1, "bf16": True}, {torch.float32}, {torch.bfloat16}),
    ],
)
@pytest.mark.parametrize("kind", ["scorer", "language_model"])
def test_trained_weights_are_fp32_and_frozen_ones_what_they_are_used_in(
    kind: str, model: dict, trained: set, frozen: set, base: Path
):
    weights = initial_model(settings(path=str(base), **model), kind).model.parameters()
    dtypes: dict[bool, set] = {True: set(), False: set()}
    for weight in weights:
        dtypes[weight.requires_grad].add(weight.dtype)
    assert (dtypes[True], dtypes[False]) == (trained, frozen)


@pytest.mark.parametrize("kind", ["scorer", "language_model"])
def test_adapters_train_in_bf16_with_checkpointing_and_are_loaded_as_they_were(
    kind: str, base: Path, tmp_path: Path
):
    recipe = settings({"gradient_checkpointing": True}, path=str(base), lora={"r": 2}, bf16=True)
    trainee = initial_model(recipe, kind)
    model = trainee.model.train()
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    for _ in range(2):
        values = scores(model, PACKED) if kind == "scorer" else torch.cat(response_logprobs(model, PACKED))
        optimizer.zero_grad()
        (-values[0]).backward()
        optimizer.step()
    assert all(torch.equal(model.get_parameter(name), weight) for name, weight in frozen.items())
    save(trainee, tmp_path / "adapter")
    loaded = (
        load_scorer(tmp_path / "adapter") if kind == "scorer" else load_language_model(tmp_path / "adapter")
    )
    stored = {name: weight for name, weight in loaded.model.named_parameters() if name not in frozen}
    assert all(torch.equal(model.get_parameter(name), weight) for name, weight in stored.items())
    assert any(name.endswith("lora_B.default.weight") and weight.any() for name, weight in stored.items())


def test_training_does_not_go_on_from_an_adapter_but_from_what_it_merges_to(base: Path, tmp_path: Path):
    save(initial_model(settings(path=str(base), lora={"r": 2}), "scorer"), tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"adapter.*longrm merge"):
        initial_model(settings(path=str(tmp_path / "adapter")), "scorer")


@pytest.mark.parametrize("lora", [None, {"r": 2}])
@pytest.mark.parametrize("kind", ["scorer", "language_model"])
def test_the_gradients_above_frozen_layers_are_those_of_the_whole_model(
    kind: str, lora: dict | None, base: Path
):
    def gradients(**model: object) -> dict[str, torch.Tensor]:
        trainee = initial_model(settings(path=str(base), lora=lora, **model), kind).model
        for name, weight in trainee.named_parameters():
            if "lora_A" in name:
                weight.data.fill_(0.1)
            if "lora_B" in name:  # 0 at the start, where the other half has no gradient
                weight.data.fill_(0.1 if ".1." in name else 0.0)
        values = (
            scores(trainee, PACKED) if kind == "scorer" else torch.cat(response_logprobs(trainee, PACKED))
        )
        values[0].backward()
        return {name: weight.grad for name, weight in trainee.named_parameters() if weight.grad is not None}

    whole, upper = gradients(), gradients(frozen_layers=1)
    below = {name for name in whole if ".0." in name or "embed_tokens" in name}
    assert below
    assert upper.keys() == whole.keys() - below
    for name, gradient in upper.items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_one_layer_at_least_is_trained(lora: dict | None, base: Path):
    with pytest.raises(ModelError, match="frozen_layers = 2"):
        initial_model(settings(path=str(base), frozen_layers=2, lora=lora), "scorer")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch.compile's own imports
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo reads it of every input
@pytest.mark.parametrize(
    ("frozen", "checkpointing", "compiled"), [(0, False, True), (1, True, False), (1, True, True)]
)
def test_checkpoints_and_compiled_layers_give_the_same_scores_and_gradients(
    base: Path, frozen: int, checkpointing: bool, compiled: bool
):
    plain = initial_model(settings(path=str(base)), "scorer").model
    memory = {"gradient_checkpointing": checkpointing}
    other = initial_model(
        settings(memory, path=str(base), frozen_layers=frozen, compile=compiled), "scorer"
    ).model.train()  # checkpoints are only for training
    assert sum(module._compiled_call_impl is not None for module in other.modules()) == compiled * (2 * 3 + 1)
    below = []  # whether the frozen layer is in the backward pass
    other.base_model.layers[0].register_forward_hook(
        lambda _, inputs, output: below.append(inputs[0].requires_grad or output.requires_grad)
    )
    found = [scores(model, PACKED) for model in (plain, other)]
    assert below[0] is not bool(frozen)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=ROUNDING)
    for values in found:
        values[0].backward()
    gradients = {name: weight.grad for name, weight in other.named_parameters() if weight.requires_grad}
    assert (
        len(gradients) == len(list(plain.parameters())) - 10 * frozen
    )  # of a layer nine, and the embeddings
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain.get_parameter(name).grad, rtol=1e-4, atol=ROUNDING)


def anonymous_memory() -> int:
    """Bytes of this process that are not mapped from files, after freed memory is returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line)
    return int(line.split()[1]) * 1024


def test_a_model_stays_in_its_files_until_it_is_placed(tmp_path: Path):
    shape = ModelShape(layers=4, hidden=512, heads=4, kv_heads=4, head_dim=128, intermediate=2048)
    large = new_language_model(shape, words_tokenizer(), seed=0)
    large.model.bfloat16()
    save(large, tmp_path / "model")
    size = 2 * sum(weight.numel() for weight in large.model.parameters())
    path = str(tmp_path / "model")
    taken = []
    for dtype in (stored_dtype(Path(path)), torch.float32):  # the second one is the control
        before = anonymous_memory()
        model = load_language_model(path, dtype=dtype, device="cpu", packed=True)
        taken.append((anonymous_memory() - before) / size)
        del model
    assert taken[0] < 0.25
    assert taken[1] > 1.5


def test_adapters_on_a_base_in_four_bits_are_those_on_the_dequantized_base(tmp_path: Path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    lora, base = {"r": 2, "load_in_4bit": True}, tmp_path / "base"
    wide = replace(SHAPE, hidden=64, head_dim=16)  # a block of 4-bit weights has 64
    save(new_language_model(wide, words_tokenizer(), seed=0), base)
    model = initial_model(settings(path=str(base), lora=lora), "language_model").model
    truth = initial_model(settings(path=str(base), lora={"r": 2}), "language_model").model
    unrounded = torch.cat(response_logprobs(truth, PACKED))
    quantized = 0
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            truth.get_submodule(name).weight.data = weight.float()
            quantized += 1
    assert quantized == 14, "all matrices of two layers"
    for one in (model, truth):  # without gradients bitsandbytes computes in bf16 on a CPU
        (-torch.cat(response_logprobs(one.train(), PACKED)).mean()).backward()
    expected = torch.cat(response_logprobs(truth, PACKED))
    found = torch.cat(response_logprobs(model, PACKED))
    assert (found - expected).abs().max() < ROUNDING
    assert (unrounded - expected).abs().max() > 100 * ROUNDING, "the control: the base is rounded"
    gradients = {name: weight.grad for name, weight in truth.named_parameters() if weight.grad is not None}
    assert gradients
    for name, gradient in gradients.items():
        distance = (model.get_parameter(name).grad - gradient).abs().max()
        assert distance <= 1e-4 * gradient.abs().max().clamp(min=1e-3), name


def test_grpo_trains_a_model_with_recurrent_layers(tmp_path: Path):
    tokenizer = words_tokenizer(verdicts=True)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    config = Qwen3_5TextConfig(
        **sizes, tie_word_embeddings=True, vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.eos_id
    )
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config).eval()
    embeddings = plain.get_input_embeddings().weight.data  # of the head, too: verdicts become likely
    embeddings += 0.25
    embeddings[[*tokenizer.encode("[[ A ]] [[ B ]]"), tokenizer.eos_id]] += 0.75
    plain.save_pretrained(tmp_path / "start")
    tokenizer.save(tmp_path / "start")
    tree = {
        "objective": "grpo",
        "model.path": str(tmp_path / "start"),
        "rollouts": {"num_generations": 4, "max_completion_length": 5},
        "optimizer": {"max_steps": 2, "learning_rate": 1e-3},
        "data.world": {"tokens_per_step": 80, "responses_per_step": 4},
        "curriculum.lengths": [32],
    }
    train(TrainingSettings.resolve(None, tree), tmp_path / "run")
    records = list(Log(tmp_path / "run" / ROLLOUTS, RolloutRecord))
    assert [record.step for record in records] == [1] * 4 + [2] * 4
    assert any(len(set(record.rewards)) > 1 for record in records)
    trained = load_language_model(tmp_path / "run" / "model").model.state_dict()
    assert any(not torch.equal(weight, trained[name]) for name, weight in plain.state_dict().items())
