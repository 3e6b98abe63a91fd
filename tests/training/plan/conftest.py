from functools import partial

import pytest
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config, Qwen3Config

from longrm.training.settings import TrainingSettings
from longrm.worlds.words_tokenizer import words_tokenizer

ARCHITECTURES = {
    "llama": LlamaConfig,
    "tied": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma2": partial(Gemma2Config, sliding_window=100),
}
SHAPE = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "head_dim": 16}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """Folders of small random language models, by architecture."""
    folders = {}
    for name, make in ARCHITECTURES.items():
        config = make(
            **SHAPE,
            **HEADS,
            vocab_size=words_tokenizer().vocab_size,
            pad_token_id=words_tokenizer().pad_id,
            tie_word_embeddings=name == "tied",
        )
        folders[name] = tmp_path_factory.mktemp(name)
        AutoModelForCausalLM.from_config(config).save_pretrained(folders[name])
        words_tokenizer().save(folders[name])
    return folders


@pytest.fixture
def recipe():
    """Makes a recipe whose data is stated; `a__b=value` sets one setting."""

    def make(objective="bradley_terry", **settings):
        tree = {
            "objective": objective,
            "data": {"path": "nowhere.jsonl", "per_step": 1},
            "plan": {"rows": [{"rows": 8, "prompt": 601, "responses": 3, "response": 20}]},
        }
        for dotted, value in settings.items():
            *groups, last = dotted.split("__")
            place = tree
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = value
        return TrainingSettings.model_validate(tree)

    return make
