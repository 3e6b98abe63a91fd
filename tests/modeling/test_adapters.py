import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.modeling import shared_prefix
from longrm.modeling.adapters import adapt
from longrm.modeling.device_memory import set_precision
from longrm.modeling.folders import ADAPTER_HEAD, kind_of
from longrm.modeling.loading import LanguageModel, Scorer, load_language_model, load_scorer
from longrm.modeling.saving import merge, save
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack

from .conftest import CONFIGS, ROUNDING, distance, plain_logprobs, write_model

# PEFT 0.21 asks a model for a name that transformers 5.23 has replaced; goes with the next PEFT.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

DRAW = random.Random(0)
TREE = TokenTree(
    [DRAW.randrange(3, 97) for _ in range(37)],
    [[DRAW.randrange(3, 97) for _ in range(n)] for n in (5, 11, 3)],
)


@pytest.fixture
def base(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return base_of("qwen3", tokenizer, tmp_path / "base")


def base_of(family: str, tokenizer: Tokenizer, folder: Path) -> Path:
    config = CONFIGS[family]()
    config.initializer_range = 0.1
    return write_model(config, tokenizer, folder)


def trained(trainee: Any, base: Path) -> Any:
    """As a training leaves it: neither half of an update, nor the head, is what it began with."""
    adapt(trainee.model, base=str(base), rank=4, alpha=8.0, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in trainee.model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return trainee


def reward_model(base: Path) -> Scorer:
    return trained(load_scorer(base, head_seed=3), base)


def writer(base: Path) -> LanguageModel:
    return trained(load_language_model(base, packed=True), base)


def scores(scorer: Scorer) -> torch.Tensor:
    with torch.no_grad():
        return shared_prefix.scores(scorer.model, pack([TREE]))


def logprobs(language_model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(shared_prefix.response_logprobs(language_model.model, pack([TREE])))


def plain_scores(model: Any) -> torch.Tensor:
    """Each response alone, in transformers' own forward."""
    with torch.no_grad():
        rows = [torch.tensor([[*TREE.tokens, *branch]]) for branch in TREE.branches]
        return torch.stack([model(input_ids=row).logits[0, 0] for row in rows])


def sequence_classifier(folder: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, pad_token_id=0)


@pytest.mark.parametrize("family", CONFIGS)
def test_an_adapter_changes_nothing_at_first_and_trains_no_weight_of_the_base(
    family: str, tokenizer: Tokenizer, tmp_path: Path
):
    base = base_of(family, tokenizer, tmp_path)
    scorer = load_scorer(base, head_seed=3)
    before = scores(scorer)
    adapt(scorer.model, base=str(base), rank=4, alpha=8.0, seed=1)
    assert distance(scores(scorer), before) == 0
    free = {name for name, weight in scorer.model.named_parameters() if weight.requires_grad}
    assert {name for name in free if "lora_" not in name} == {"score.weight"}
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert len(free) == 1 + 2 * 2 * len(linear)
    assert all(any(name in weight for weight in free) for name in linear)


def test_inputs_of_adapters_are_not_copied_in_fp32(base: Path):
    found = []
    for casts in (False, True):
        scorer = load_scorer(str(base), head_seed=0)
        trained(scorer, base)
        set_precision(scorer.model, "bfloat16")
        if casts:  # as PEFT does by itself
            for module in scorer.model.modules():
                if isinstance(module, BaseTunerLayer):
                    module.cast_input_dtype_enabled = True
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = shared_prefix.scores(scorer.model, pack([TREE]))
        weights = [weight for weight in scorer.model.parameters() if weight.requires_grad]
        found.append((result, *torch.autograd.grad(result.square().sum(), weights)))
        found.append(sum(kept.values()))
    (ours, bytes_of_ours), (others, bytes_of_others) = zip(found[::2], found[1::2], strict=True)
    assert all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))
    assert bytes_of_ours < bytes_of_others


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_reward_model_scores_the_same_here_in_peft_and_merged(
    family: str, tokenizer: Tokenizer, tmp_path: Path
):
    base = base_of(family, tokenizer, tmp_path / "base")
    scorer, adapter = reward_model(base), tmp_path / "adapter"
    truth = scores(scorer)
    save(scorer, adapter)
    assert kind_of(adapter) == "discriminative"
    assert distance(scores(load_scorer(adapter)), truth) < ROUNDING
    theirs = PeftModel.from_pretrained(sequence_classifier(base), adapter).eval()
    assert distance(plain_scores(theirs), truth) < ROUNDING
    merge(adapter, tmp_path / "merged")
    assert distance(scores(load_scorer(tmp_path / "merged")), truth) < ROUNDING
    assert distance(plain_scores(sequence_classifier(tmp_path / "merged")), truth) < ROUNDING
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["problem_type"] == "regression"


def test_the_scores_are_others_without_the_head_or_the_update(base: Path, tmp_path: Path):
    # What the equalities above would miss if they could not fail: the head of TRL's trap, and the adapter itself.
    scorer, adapter = reward_model(base), tmp_path / "adapter"
    truth = scores(scorer)
    assert distance(scores(load_scorer(base, head_seed=3)), truth) > 100 * ROUNDING
    save(scorer, adapter)
    lose(adapter, lambda name: name == ADAPTER_HEAD)
    assert distance(scores(load_scorer(adapter, head_seed=4)), truth) > 100 * ROUNDING
    assert kind_of(adapter) == "discriminative"
    with pytest.raises(ModelError):
        load_scorer(adapter)
    (adapter / "files.json").unlink()  # else the damage is noticed first
    with pytest.raises(ModelError):
        merge(adapter, tmp_path / "merged")


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_language_model_says_the_same_here_in_peft_and_merged(
    family: str, tokenizer: Tokenizer, tmp_path: Path
):
    base = base_of(family, tokenizer, tmp_path / "base")
    model, adapter = writer(base), tmp_path / "adapter"
    truth = logprobs(model)
    untrained = logprobs(load_language_model(base, packed=True))
    assert distance(untrained, truth) > 100 * ROUNDING
    save(model, adapter)
    assert kind_of(adapter) == "generative"
    loaded = load_language_model(adapter, packed=True)
    assert distance(logprobs(loaded), truth) < ROUNDING
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    assert distance(plain_logprobs(theirs, TREE), truth) < ROUNDING
    merge(adapter, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert distance(plain_logprobs(merged, TREE), truth) < ROUNDING


def test_the_update_and_the_head_are_kept_in_fp32_over_a_bf16_base(base: Path, tmp_path: Path):
    halved = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    halved.save_pretrained(base)
    scorer, adapter = trained(load_scorer(base, head_seed=3), base), tmp_path / "adapter"
    set_precision(scorer.model, "bfloat16")
    save(scorer, adapter)
    assert {tensor.dtype for tensor in load_file(adapter / "adapter_model.safetensors").values()} == {
        torch.float32
    }
    loaded = load_scorer(adapter).model
    for name, weight in scorer.model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight)
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16)
    torch.testing.assert_close(scores(load_scorer(adapter)), scores(scorer), rtol=0.05, atol=0.05)
    merge(adapter, tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert {name for name, tensor in merged.items() if tensor.dtype == torch.float32} == {"score.weight"}
    layer = scorer.model.model.layers[0].mlp.up_proj
    alone = layer.base_layer.weight.float()
    exact = (alone + layer.get_delta_weight("default")).detach()
    found = merged["model.layers.0.mlp.up_proj.weight"].float()
    torch.testing.assert_close(found, exact, rtol=2**-8, atol=0)  # it is rounded to 8 bits, once
    assert distance(alone, exact) > 100 * distance(found, exact)


def lose(adapter: Path, chosen: Callable[[str], bool]) -> None:
    weights = load_file(adapter / "adapter_model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not chosen(name)}
    assert len(kept) < len(weights)
    save_file(kept, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def test_the_tokenizer_of_the_adapter_comes_before_the_bases(
    base: Path, tokenizer: Tokenizer, tmp_path: Path
):
    adapter = tmp_path / "adapter"
    save(reward_model(base), adapter)
    own = Tokenizer.from_backend(tokenizer.backend, chat_template="own", eos="<eos>")
    own.save(adapter)
    assert load_scorer(adapter).tokenizer.chat_template == "own"
    for name in ("tokenizer.json", "files.json"):  # which lists it
        (adapter / name).unlink()
    assert load_scorer(adapter).tokenizer.chat_template is None
