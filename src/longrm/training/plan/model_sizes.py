"""The sizes of a model, from its config alone: no weight is read.

Transformers is imported where there is a config to read; stated sizes need none of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longrm import hub
from longrm.errors import ConfigError, ModelError, first_line
from longrm.training.objectives.spec import ModelKind
from longrm.training.training_settings import TrainingSettings
from longrm.worlds.words_tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a decoder with gated feed-forward layers, as Llama, Mistral and Qwen have them.

    Attributes:
        hidden: C; there are H (query) heads and G key-value heads of size D.
        intermediate: I, the size of the feed-forward layer.
        vocabulary: V, the rows of the embedding.
        tied: Whether the head over the vocabulary is the embedding.
        biases: Parameters of a layer beside its matrices and norms.
        limit: Tokens that it reads; None where that is not known.
        origin: Where the sizes come from, in a few words.
    """

    kind: ModelKind
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    biases: int = 0
    limit: int | None = None
    origin: str = "model.new"

    @property
    def queries(self) -> int:
        """The width of the queries of all heads, H x D."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of the keys of all heads, G x D; the values' too."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear modules of a layer: what they read and what they write, in elements a token."""
        c, i = self.hidden, self.intermediate
        return {
            "q_proj": (c, self.queries),
            "k_proj": (c, self.keys),
            "v_proj": (c, self.keys),
            "o_proj": (self.queries, c),
            "gate_proj": (c, i),
            "up_proj": (c, i),
            "down_proj": (i, c),
        }

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return sum(read * write for read, write in self.matrices.values()) + norms + self.biases

    @property
    def head_parameters(self) -> int:
        """Parameters of the head that are its own."""
        if self.kind == "scorer":
            return self.hidden
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        body = self.layers * self.layer_parameters + self.hidden
        return self.vocabulary * self.hidden + body + self.head_parameters

    def adapter_parameters(self, rank: int, targets: Iterable[str]) -> int:
        """Parameters of the adapters of one layer."""
        return sum(rank * sum(self.matrices[name]) for name in targets)


def sizes_of(settings: TrainingSettings, kind: ModelKind) -> ModelSizes:
    """The sizes of the model that a recipe starts from; `[plan.model]` stands in for one that is not at hand.

    Raises:
        ModelError: Neither its config nor `[plan.model]` is there, or its architecture is not supported.
        ConfigError: It starts from nothing.
    """
    new, path = settings.model.new, settings.model.path
    if new is not None:
        shape = new.shape()
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return ModelSizes(
            kind=kind,
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate=shape.intermediate,
            vocabulary=load_tokenizer(new.tokenizer).vocab_size,
            tied=True,
            biases=(queries + 2 * keys + shape.hidden) * shape.attention_bias,
            limit=shape.max_positions,
        )
    if path is None:
        raise ConfigError("the recipe names no model: give --set model.path=FOLDER")
    planned = settings.plan.model if settings.plan else None
    config = _config(path, local=planned is not None)
    if config is not None:
        return _of_config(config, kind, path)
    assert planned is not None, "without it the config came from the Hub"
    origin = "[plan.model]; the model itself is not here"
    return ModelSizes(kind=kind, **planned.model_dump(), origin=origin)


def targets_of(settings: TrainingSettings, sizes: ModelSizes) -> tuple[str, ...]:
    """The linear modules of a layer that get an adapter; none without LoRA.

    Raises:
        ConfigError: A target is none of them.
    """
    lora = settings.model.lora
    if lora is None:
        return ()
    names = tuple(target.rpartition(".")[2] for target in lora.targets or sizes.matrices)
    for name in names:
        if name not in sizes.matrices:
            known = ", ".join(sizes.matrices)
            raise ConfigError(f"model.lora.targets: '{name}' cannot be planned; a layer has {known}")
    return names


def _config(path: str, *, local: bool) -> Any:
    """The config of a folder or of the Hub; None where it is not on this machine and only that is asked for."""
    folder = Path(path).expanduser()
    name, revision = (None if folder.is_dir() else hub.split_revision(path)) or (str(folder), None)
    if local and not folder.is_dir() and not hub.is_cached(name, "config.json", revision):
        return None
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, revision=revision or "main", local_files_only=local)
    except (ValueError, KeyError, OSError) as error:
        if local and not folder.is_dir():
            return None
        raise ModelError(
            f"{path}: its config cannot be read ({first_line(error)}); [plan.model] may give its sizes"
        ) from None


def _of_config(config: Any, kind: ModelKind, path: str) -> ModelSizes:
    """Sizes by the names that decoders of transformers share; whether they are all is checked by counting."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from longrm.modeling.folders import check_config, check_trainable

    check_config(config, path)
    check_trainable(config, path)
    config.num_labels = 1
    auto: Any = AutoModelForSequenceClassification if kind == "scorer" else AutoModelForCausalLM
    with torch.device("meta"):
        skeleton = auto.from_config(config)
    names = {name.rpartition(".")[2] for name, _ in skeleton.named_modules()}
    plain = ModelSizes(
        kind=kind,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        qk_norm={"q_norm", "k_norm"} <= names,
        limit=config.max_position_embeddings,
        origin=f"the config of {path}",
    )
    parameters = sum(parameter.numel() for parameter in skeleton.parameters())
    # As many biases as the parameters leave room for.
    biases, rest = divmod(parameters - plain.parameters, plain.layers)
    if rest or not 0 <= biases <= 0.02 * plain.layer_parameters:
        raise ModelError(
            f"{path}: it has {parameters} parameters and a decoder of its sizes {plain.parameters}; an architecture "
            "other than Llama's (experts, plain feed-forward layers) cannot be planned yet"
        )
    return replace(plain, biases=biases)
