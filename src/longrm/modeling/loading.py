"""Loads language models; loads, makes, rescales and saves scorers: a decoder with a scalar head."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
)
from transformers.utils.logging import disable_progress_bar

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.modeling.attention import CONTINUATION, NAME
from longrm.modeling.capabilities import (
    check_config,
    check_decoder,
    check_model,
    check_writer,
    reads_in_blocks,
)
from longrm.modeling.folders import HEAD, first_line, locate, weight_files
from longrm.modeling.heads import Model

# Loading and saving take milliseconds to seconds, and progress of long work is ours to show.
disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    """A model with a scalar head, whose attention is `longrm_shared_prefix`, and its tokenizer."""

    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """A causal language model of transformers, and its tokenizer."""

    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a small Llama. `init_std` is the standard deviation of its random weights."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    intermediate: int = 128
    attention_bias: bool = False
    rope_theta: float = 10_000.0
    init_std: float = 0.02
    max_positions: int = 131_072

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot be shared out over {self.kv_heads} key-value heads")
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.head_dim}")


def load_scorer(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
    trust_remote_code: bool = False,
    head_seed: int | None = None,
) -> Scorer:
    """Loads a reward model from a folder or a Hub id. The head is fp32 whatever the dtype.

    Args:
        source: A folder with `config.json`, safetensors and a tokenizer, or a Hub id such as `owner/name`.
        dtype: Of the model's body; "auto" keeps the checkpoint's.
        device: Where the model goes; "auto" takes a GPU if torch sees one, else the CPU.
        trust_remote_code: Whether code that comes with the model may run.
        head_seed: Draws a new scalar head from this seed where the checkpoint has none, to start training
            from a language model; None refuses such a checkpoint, whose scores would be noise.

    Raises:
        ModelError: nothing is there, a file is missing, weights are pickled, the head is not scalar, or the
            architecture needs what a shared prefix does not compute.
    """
    folder = locate(source)
    shards = weight_files(folder)
    where = str(source)
    config = _config(folder, where, trust_remote_code)
    check_config(config, where)
    head = _stored_head(shards, where)
    if head is None and head_seed is None:
        raise ModelError(f"{where}: no scalar head ({HEAD}): train one, or give head_seed to start one")
    tokenizer = Tokenizer.load(folder)
    config.num_labels = 1
    _settle_padding(config, tokenizer)
    model, missing = _load_model(
        AutoModelForSequenceClassification, check_model, folder, config, dtype, trust_remote_code, where
    )
    _refuse_missing(missing - {HEAD}, where)
    model.set_attn_implementation(NAME)
    _set_head(model, head, head_seed)
    return Scorer(model.to(_settle_device(device)), tokenizer)


def load_language_model(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Loads a causal language model from a folder or a Hub id; the arguments are `load_scorer`'s.

    Its attention is `longrm_continuation` where the architecture can be read in blocks exactly, and otherwise
    what transformers chooses (SDPA where the architecture has it).

    Raises:
        ModelError: nothing is there, a file is missing, weights are pickled, or it is no decoder that writes
            text token by token.
    """
    folder = locate(source)
    weight_files(folder)
    where = str(source)
    config = _config(folder, where, trust_remote_code)
    check_decoder(config, where)
    tokenizer = Tokenizer.load(folder)
    model, missing = _load_model(
        AutoModelForCausalLM, check_writer, folder, config, dtype, trust_remote_code, where
    )
    _refuse_missing(missing, where)
    if reads_in_blocks(model):
        model.set_attn_implementation(CONTINUATION)
    return LanguageModel(model.to(_settle_device(device)).eval(), tokenizer)


def new_scorer(shape: ModelShape, tokenizer: Tokenizer, *, seed: int) -> Scorer:
    """Makes a random small Llama with a scalar head, in fp32; the same seed gives the same weights."""
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        attention_bias=shape.attention_bias,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.init_std,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    config.num_labels = 1
    _settle_padding(config, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier: Any = AutoModelForSequenceClassification
        model = classifier.from_config(config, attn_implementation=NAME)
    return Scorer(model.eval(), tokenizer)


def rescale_rope(model: Model, theta: float) -> None:
    """Sets the base of the rotary frequencies, in config and model: a larger one stretches positions.

    Raises:
        ValueError: theta is not above 1.
    """
    if not theta > 1:
        raise ValueError(f"rope theta must be above 1, got {theta}")
    base = model.base_model
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": float(theta)}
    base.config.rope_parameters = model.config.rope_parameters
    device = base.rotary_emb.inv_freq.device
    base.rotary_emb = type(base.rotary_emb)(config=base.config).to(device)


def save(scorer: Scorer, folder: str | Path) -> None:
    """Writes a folder that transformers' own `AutoModelForSequenceClassification` and `AutoTokenizer` load.

    A model that is already there is replaced, and only by a complete one.

    Raises:
        RunError: the folder cannot be written, or holds something that is not a model.
    """
    target = Path(folder)
    if target.exists() and not (target / "config.json").is_file() and not _is_empty_folder(target):
        raise RunError(f"{target} exists and is not a model folder: choose another place")
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        scratch.mkdir(parents=True)
        scorer.model.save_pretrained(scratch)
        scorer.tokenizer.save(scratch)
        _swap(scratch, target)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write the model to {target}: {error}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(scratch: Path, target: Path) -> None:
    old = scratch.with_suffix(".old")
    if target.exists():
        target.rename(old)
    scratch.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _config(folder: Path, where: str, trust_remote_code: bool) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(f"{where}: its config cannot be read: {first_line(error)}") from None


def _stored_head(shards: list[Path], where: str) -> torch.Tensor | None:
    """The head as stored: read apart because loading in a lower dtype would round it."""
    try:
        found = [head for shard in shards for head in _head_in(shard)]
    except SafetensorError as error:
        raise ModelError(f"{where}: its weights cannot be read: {error}") from None
    if not found:
        return None
    if found[0].shape[0] != 1:
        raise ModelError(f"{where}: its head has {len(found[0])} outputs; a reward model has num_labels=1")
    return found[0]


def _head_in(shard: Path) -> Iterator[torch.Tensor]:
    with safe_open(shard, framework="pt") as weights:
        if HEAD in weights.keys():  # noqa: SIM118 (not a mapping)
            yield weights.get_tensor(HEAD)


def _load_model(
    auto: Any,
    check: Callable[[Any, str], None],
    folder: Path,
    config: Any,
    dtype: torch.dtype | str,
    trust_remote_code: bool,
    where: str,
) -> tuple[Model, set[str]]:
    """Checks the architecture before any weight is read; returns the model and the weights it lacks."""
    try:
        with torch.device("meta"):
            skeleton = auto.from_config(config, trust_remote_code=trust_remote_code)
        check(skeleton, where)
        model, report = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except ModelError:
        raise
    except (ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise ModelError(f"{where}: {auto.__name__} cannot load it: {first_line(error)}") from None
    return model, set(report["missing_keys"])


def _refuse_missing(missing: set[str], where: str) -> None:
    if missing:
        raise ModelError(f"{where}: {len(missing)} weights are missing, among them {min(missing)}")


def _settle_device(device: torch.device | str) -> torch.device | str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _set_head(model: Model, stored: torch.Tensor | None, seed: int | None) -> None:
    model.score.float()
    weight = model.score.weight
    with torch.no_grad():
        if stored is not None:
            weight.copy_(stored)
        else:
            assert seed is not None
            generator = torch.Generator().manual_seed(seed)
            nn.init.normal_(weight, std=model.config.initializer_range, generator=generator)


def _settle_padding(config: Any, tokenizer: Tokenizer) -> None:
    """Sets a padding id that is not the end of a response.

    Transformers scores the last token that is not padding: with pad = eos it would score one token early.
    With no padding id it refuses batches, which is loud.
    """
    declared = config.eos_token_id
    ends = {tokenizer.eos_id, *(declared if isinstance(declared, list) else [declared])}
    candidates = [config.pad_token_id, tokenizer.pad_id]
    config.pad_token_id = next((i for i in candidates if i is not None and i not in ends), None)
