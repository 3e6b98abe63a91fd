"""A transformers model in memory scores as its saved folder does, and stays the caller's own."""

import copy
import re

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.errors import ConfigError, ModelError
from tests.reward_models.tiny_models import make_model, make_scorer, queries

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

ASKED = queries((30, 3), (45, 2), per_document=2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    model = make_model(home / "writer")
    scorer = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    torch.nn.init.normal_(scorer.score.weight)
    scorer.save_pretrained(home / "scorer")
    AutoTokenizer.from_pretrained(model).save_pretrained(home / "scorer")
    return home


def _load(folder, **options):
    kind = AutoModelForSequenceClassification if folder.name == "scorer" else AutoModelForCausalLM
    return kind.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)


def _step(model):
    """Loss and gradients of a caller's own forward pass, rows of different lengths padded."""
    model.zero_grad()
    ids = torch.randint(3, 60, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 30:] = 0
    output = model(input_ids=ids, attention_mask=mask)
    loss = output.logits.float().square().mean()
    loss.backward()
    return [
        loss.detach(),
        *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None),
    ]


def _equal(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("folder", "kind"), [("scorer", None), ("writer", "likelihood"), ("writer", "tokens"), ("writer", None)]
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_scores_are_those_of_the_saved_folder_and_the_model_stays_as_it_was(folders, folder, kind, attention):
    model, tokenizer = _load(folders / folder, attn_implementation=attention)
    model.train()
    before, weights = _step(model), copy.deepcopy(model.state_dict())
    judge = {"max_tokens": 8} if folder == "writer" else None
    mine = longrm.load(model, tokenizer, kind=kind, judge=judge)
    saved = longrm.load(f"{kind}:{folders / folder}" if kind else str(folders / folder), judge=judge)
    assert mine.judge(ASKED) == saved.judge(ASKED)
    assert re.fullmatch(rf"{re.escape(saved.name)} \(in memory, \w{{8}}\)", mine.name)
    assert model.training
    assert model.config._attn_implementation == attention
    assert _equal(_step(model), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_weights_are_shared_with_training_and_a_run_of_other_weights_does_not_continue(folders, tmp_path):
    model, tokenizer = _load(folders / "scorer")
    mine = longrm.load(model, tokenizer)
    first = mine.score("w1 w2 w3", ["w4", "w5"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(model)
    optimizer.step()
    second = mine.score("w1 w2 w3", ["w4", "w5"])
    assert first != second
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert second == longrm.load(str(tmp_path)).score("w1 w2 w3", ["w4", "w5"])
    assert mine.provenance["weights"] != longrm.load(model, tokenizer).provenance["weights"]
    assert longrm.load(model, tokenizer).provenance == longrm.load(copy.deepcopy(model), tokenizer).provenance


def test_models_that_share_prefixes_can_be_loaded(folders):
    model, tokenizer = _load(folders / "writer")
    plain = longrm.load(model, tokenizer, kind="likelihood").score("w1 w2", ["w4", "w5 w6"])
    longrm.share_prefixes(model)
    before = _step(model)
    assert longrm.load(model, tokenizer, kind="likelihood").score("w1 w2", ["w4", "w5 w6"]) == plain
    assert _equal(_step(model), before)


@pytest.mark.parametrize("folder", ["scorer", "writer"])
def test_peft_models(folders, folder, tmp_path):
    model, tokenizer = _load(folders / folder)
    scores = folder == "scorer"
    config = LoraConfig(r=4, init_lora_weights=False, task_type="SEQ_CLS" if scores else "CAUSAL_LM")
    adapted = get_peft_model(model, config)
    kind = None if scores else "likelihood"
    asked = "w1 w2 w3", ["w4 w5", "w6"]
    mine = longrm.load(adapted, tokenizer, kind=kind)
    if scores:  # the copy of the head that PEFT trains
        torch.nn.init.normal_(next(iter(model.score.modules_to_save.values())).weight)
    found = mine.score(*asked)
    merged = copy.deepcopy(adapted).merge_and_unload()
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(longrm.load(merged, tokenizer, kind=kind).score(*asked))
    )
    with adapted.disable_adapter():
        assert mine.score(*asked) != found
    assert mine.score(*asked) == found


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_adapters_of_transformers_and_checkpointed_activations(folders):
    model, tokenizer = _load(folders / "writer")
    asked = "w1 w2 w3", ["w4 w5", "w6"]
    plain = longrm.load(model, tokenizer, kind="likelihood").score(*asked)
    model.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"]))
    model.train()
    model.gradient_checkpointing_enable()
    mine, before = longrm.load(model, tokenizer, kind="likelihood"), _step(model)
    assert mine.score(*asked) != plain
    assert _equal(_step(model), before)
    model.disable_adapters()
    assert mine.score(*asked) == plain


def test_an_own_head_of_two_layers(tmp_path):
    folder = make_scorer(tmp_path / "scorer", head="mlp")
    loaded = longrm.load(str(folder))
    mine = longrm.load(loaded.scorer.model, str(folder))
    assert mine.score("bucket", ["turtle", "candle"]) == loaded.score("bucket", ["turtle", "candle"])


def test_refusals(folders):
    scorer, tokenizer = _load(folders / "scorer")
    writer, _ = _load(folders / "writer")
    with pytest.raises(ConfigError, match="tokenizer"):
        longrm.load(scorer)
    for options in ({"device": "cpu"}, {"dtype": "bfloat16"}, {"label_weights": {"LABEL_0": 1.0}}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            longrm.load(scorer, tokenizer, model_args=options)
    with pytest.raises(ConfigError, match="kind"):
        longrm.load(scorer, tokenizer, kind="likelihood")
    with pytest.raises(ConfigError, match="likelihood"):
        longrm.load(writer, tokenizer, kind="likelyhood")
    with pytest.raises(ConfigError, match="kind"):
        longrm.load(str(folders / "writer"), kind="likelihood")
    many, _ = _load(folders / "scorer", num_labels=2, ignore_mismatched_sizes=True)
    with pytest.raises(ModelError, match="2 labels"):
        longrm.load(many, tokenizer)
    with pytest.raises(ConfigError, match="transformers"):
        longrm.load(torch.nn.Linear(2, 2), tokenizer)
    prompts = get_peft_model(writer, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ModelError, match="prompt"):
        longrm.load(prompts, tokenizer)
