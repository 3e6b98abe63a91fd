"""Loads and makes language models and scorers (decoders with a scalar head).

Transformers loads almost anything and reports problems as log lines: weights that are missing are initialized at
random, weights without a place are dropped, a head of another shape is drawn anew. Each would give wrong scores in
silence, so each is an error here. An architecture is checked on the meta device, before weights are read.
"""

import copy
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.logging import disable_progress_bar

from longrm.data.tokenizing import Tokenizer, scored_at
from longrm.errors import ConfigError, ModelError, first_line, importing, nearest
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.folders import (
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS,
    HEAD,
    HEAD_OUT,
    ModelFolders,
    check_config,
    check_decoder,
    find_model_folders,
    has_head,
    recurrent_layers,
    tensor_shapes,
    weight_files,
)
from longrm.modeling.heads import MLPHead, draw_head, last_layer
from longrm.modeling.products import choose_products
from longrm.modeling.recurrent import check_mixers, pack_states
from longrm.modeling.shapes import HeadForm, ModelShape
from longrm.modeling.shared_prefix import TransformersModel, scaled_logits
from longrm.reading import reading

# Loading takes milliseconds to seconds, and longrm shows the progress of long work itself.
disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A transformers model, its tokenizer, and the commits that identify both (see `ModelFolders.origin`)."""

    model: TransformersModel
    tokenizer: Tokenizer
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, str]:
        """What a manifest records of the model."""
        return {**self.origin, "dtype": str(self.model.dtype).removeprefix("torch.")}


class Scorer(LoadedModel):
    """A model with a scalar head and `longrm_shared_prefix` attention, and its tokenizer."""

    __slots__ = ()

    @property
    def provenance(self) -> dict[str, str]:
        """As for any model, and the token at which scores are read."""
        at = scored_at(self.model.config.pad_token_id, self.tokenizer)
        return {**super().provenance, "scored_at": at}


class LanguageModel(LoadedModel):
    """A causal language model and its tokenizer."""

    __slots__ = ()


def load_scorer(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
    head: HeadForm | None = None,
    head_seed: int | None = None,
    keep_padding: bool = False,
    weights: Mapping[str, float] | None = None,
    quantize: torch.dtype | None = None,
) -> Scorer:
    """Loads a reward model from a folder or a Hub id. Its head is fp32 whatever the dtype.

    Args:
        source: A folder with `config.json`, safetensors and a tokenizer, or with an adapter; or a Hub id such as
            `owner/name` or `owner/name@revision`.
        dtype: The dtype of the model's body; "auto" keeps the checkpoint's.
        device: Where the model goes; "auto" takes a GPU if torch sees one, else the CPU.
        head: The form of the head, by default the checkpoint's, or linear for a new one; a checkpoint with another head
            is refused.
        head_seed: Draws a new scalar head from this seed if the checkpoint has none, to start training from a language
            model; None refuses such a checkpoint: its scores would be noise.
        keep_padding: With a new head, keep the padding id of the config, for adapters, which are used with the config
            of their base; else it becomes one that ends no response.
        weights: For a head with several labels, the weight of each label in the score, by its name.
        quantize: Quantizes the matrices of the body to 4 bits when they are loaded; products have this dtype.

    Raises:
        ModelError: There is no such model, a file is missing or does not fit the others, weights are pickled, labels
            and weights do not match, or the architecture needs what a shared prefix does not compute.
    """
    device = resolve_device(device)  # before the weights are read
    where = str(source)
    parts = find_model_folders(source)
    config = read_config(parts.base, where)
    check_config(config, where)
    stored = _read_head(weight_files(parts.base))
    if parts.adapter:
        stored = _read_head([parts.adapter / ADAPTER_WEIGHTS], ADAPTER_PREFIX) or stored
    if stored:
        form: HeadForm = "mlp" if HEAD_OUT in stored else "linear"
        if head not in (None, form):
            raise ModelError(f'{where}: its head is "{form}", not "{head}"; omit model.head to train it')
        last = HEAD_OUT if form == "mlp" else HEAD
        stored[last] = weighted_head(stored[last], config, weights, where)
    elif head_seed is None:
        raise ModelError(f"{where}: no scalar head ({HEAD}): train one, or give head_seed to start one")
    tokenizer = Tokenizer.load(parts.tokenizer)
    config.num_labels = 1
    if not stored and not keep_padding:
        _choose_padding(config, tokenizer)
    options = _options(dtype, device, quantize)
    model = _read_model(AutoModelForSequenceClassification, parts.base, config, options, where, packed=True)
    _complete(model, tokenizer, parts, where)
    model.set_attn_implementation(SHARED_PREFIX)
    pack_states(model)
    if stored and form == "mlp":
        model.score = MLPHead(model.config.hidden_size)
    # The head was read apart from the model, whose lower dtype would have rounded it.
    model.score.float()
    if not stored:
        assert head_seed is not None
        draw_head(model, head or "linear", head_seed)
    for name, tensor in stored.items():
        weight = model.get_parameter(name)
        if weight.shape != tensor.shape:
            raise ModelError(f"{where}: the shape of {name} differs from its config")
        weight.data.copy_(tensor)
    with weights_fit(where, device):
        model.to(device)
    choose_products(model)
    return Scorer(model, tokenizer, parts.origin)


def load_language_model(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
    packed: bool = False,
    quantize: torch.dtype | None = None,
) -> LanguageModel:
    """Loads a causal language model from a folder or a Hub id; arguments as for `load_scorer`.

    With `packed` it reads packed sequences only, by `longrm_shared_prefix` attention; else it is transformers' own.

    Raises:
        ModelError: As for `load_scorer`, or the model cannot generate token by token.
    """
    device = resolve_device(device)  # before the weights are read
    where = str(source)
    parts = find_model_folders(source)
    if has_head(parts):
        raise ModelError(f"{where} has a scalar head and cannot write: name a causal language model")
    config = read_config(parts.base, where)
    tokenizer = Tokenizer.load(parts.tokenizer)
    if packed:
        check_config(config, where)
        # Before the model is made: its embedding of the padding id does not learn.
        _choose_padding(config, tokenizer)
    else:
        check_decoder(config, where)
    options = _options(dtype, device, quantize)
    model = _read_model(AutoModelForCausalLM, parts.base, config, options, where, packed=packed)
    _complete(model, tokenizer, parts, where)
    if packed:
        model.set_attn_implementation(SHARED_PREFIX)
        pack_states(model)
    with weights_fit(where, device):
        model.to(device).eval()
    choose_products(model)
    return LanguageModel(model, tokenizer, parts.origin)


def in_place(model: Any, tokenizer: Tokenizer, where: str, *, packed: bool = True) -> Scorer | LanguageModel:
    """Wraps a caller's transformers model, or the one within PEFT's wrapper; nothing of it is copied or changed.

    `hidden_states` gives it `longrm_shared_prefix` attention for the length of a call. `packed` as in
    `load_language_model`.

    Raises:
        ModelError: As for `load_scorer` and `load_language_model`.
    """
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        raise ModelError(f"{where}: learned prompts (PEFT's prompt tuning) are not supported")
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    architecture: Any = type(inner)
    if not issubclass(architecture, PreTrainedModel):
        raise ModelError(f"{where} is not a transformers model")
    head = getattr(inner, "score", None)
    scores = head is not None
    if scores or packed:
        check_config(inner.config, where)
    else:
        check_decoder(inner.config, where)
    config = copy.deepcopy(inner.config)
    config._attn_implementation = SHARED_PREFIX if scores or packed else "sdpa"
    with torch.device("meta"):
        skeleton = architecture(config)
    _check_modules(skeleton, where, packed=scores or packed, scores=scores)
    head = inner.get_output_embeddings() if head is None else last_layer(head)
    own = getattr(head, "modules_to_save", head)  # in PEFT's wrapper of a head that is trained in full
    if not isinstance(own, nn.Linear | nn.ModuleDict):
        raise ModelError(f"{where}: its head is {type(head).__name__}, not a linear layer")
    if scores and len(head.weight) != 1:
        labels = ", ".join(map(str, inner.config.id2label.values()))
        raise ModelError(
            f"{where}: its head has {len(head.weight)} labels ({labels}); save it, and load it by name with "
            "model_args.label_weights"
        )
    _check_vocabulary(inner, tokenizer, where)
    # Exact on every device, and changed by a training step: a run continues only with the same weights.
    sums = {name: _bit_sum(weight) for name, weight in inner.named_parameters()}
    origin = {"weights": hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:16]}
    return (Scorer if scores else LanguageModel)(inner, tokenizer, origin)


def _bit_sum(weight: torch.Tensor) -> int:
    """The sum of a tensor's bits, read as 64-bit numbers: 3 GB a second on one core of a CPU."""
    raw = weight.detach().flatten().view(torch.uint8)
    raw = raw.clone() if raw.storage_offset() % 8 else raw  # a part of another tensor
    end = len(raw) // 8 * 8
    return int(raw[:end].view(torch.int64).sum()) + int(raw[end:].sum())


def new_scorer(shape: ModelShape, tokenizer: Tokenizer, *, seed: int, head: HeadForm | None = None) -> Scorer:
    """Makes a random small Llama with a scalar head, in fp32; the same seed gives the same weights."""
    model = _new_llama(AutoModelForSequenceClassification, shape, tokenizer, seed)
    if head == "mlp":
        draw_head(model, head, seed)
    return Scorer(model, tokenizer)


def new_language_model(shape: ModelShape, tokenizer: Tokenizer, *, seed: int) -> LanguageModel:
    """Makes a random small Llama with a tied language-model head, in fp32; the same seed gives the same weights."""
    return LanguageModel(_new_llama(AutoModelForCausalLM, shape, tokenizer, seed), tokenizer)


def _new_llama(auto: Any, shape: ModelShape, tokenizer: Tokenizer, seed: int) -> TransformersModel:
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
        tie_word_embeddings=auto is AutoModelForCausalLM,
    )
    config.num_labels = 1
    _choose_padding(config, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return auto.from_config(config, attn_implementation=SHARED_PREFIX).eval()


def rescale_rope(model: TransformersModel, theta: float) -> None:
    """Sets the base of the rotary frequencies, in config and model: a larger one stretches positions.

    Layers with a window keep frequencies of their own, if they have any: no distance within a window is new to them.
    """
    if not theta > 1:
        raise ValueError(f"rope theta must be above 1, got {theta}")
    base, rope = model.base_model, model.config.rope_parameters
    changed: dict[str, Any] = {"rope_theta": float(theta)}
    if "full_attention" in rope:
        changed = {"full_attention": {**rope["full_attention"], **changed}}
    model.config.rope_parameters = {**rope, **changed}
    base.config.rope_parameters = model.config.rope_parameters
    base.rotary_emb = type(base.rotary_emb)(config=base.config).to(model.device)  # with new frequencies


def resolve_device(device: torch.device | str) -> torch.device | str:
    """Resolves "auto" to a GPU if torch sees one, else to the CPU; refuses a device that torch cannot use."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it is built without the device
        raise ConfigError(f"device '{device}' cannot be used: {first_line(error)}") from None
    return device


def read_config(folder: Path, where: str) -> Any:
    """Reads the config of a model folder; of a multimodal model that transformers can load as text alone, that part."""
    try:
        # False, as by default transformers asks on the terminal whether the model's own code may run.
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many types for values of the wrong kind
        reason = " ".join(str(error).split())[:400]
        raise ModelError(f"{where}: its config cannot be read: {reason}") from None
    text = config.get_text_config()
    if text is config or getattr(_text_model(config), "config_class", None) is not type(text):
        return config
    _logger.warning("%s: a multimodal model, of which only the text part is loaded", where)
    if hasattr(config, "quantization_config"):
        text.quantization_config = config.quantization_config
    return text


def _text_model(config: Any) -> Any:
    """The class by which transformers loads a config as a causal language model; None if there is none."""
    return AutoModelForCausalLM._model_mapping.get(type(config), None)


def check_savable(model: TransformersModel, where: str) -> None:
    """Refuses before training a generation config that transformers would refuse to write after it."""
    try:
        model.generation_config.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{where}: its generation_config.json contradicts itself: {reason}") from None


def weighted_head(
    head: Float[torch.Tensor, "labels C"], config: Any, weights: Mapping[str, float] | None, where: str
) -> Float[torch.Tensor, "1 C"]:
    """Returns the head whose score is the weighted sum of all labels' scores: the same sum of its rows."""
    if len(head) == 1:
        if weights:
            raise ModelError(f"{where}: its head has one label; omit --weights")
        return head
    labels = [str(config.id2label.get(number, f"LABEL_{number}")) for number in range(len(head))]
    if not weights:
        raise ModelError(
            f"{where}: its head has {len(head)} labels ({', '.join(labels)}); scoring needs their weights: "
            f"--weights {labels[0]}=1,...; training needs a model with one label"
        )
    for name in weights:
        if name not in labels:
            raise ModelError(f"{where}: its head has no label '{name}'; {nearest(name, labels)}")
    if not any(weights.values()):
        raise ModelError(f"{where}: every weight is 0, so every score would be")
    factors = torch.tensor([weights.get(label, 0.0) for label in labels], dtype=torch.float64)
    return (factors @ head.double())[None].float()


def _read_head(shards: Sequence[Path], prefix: str = "") -> dict[str, torch.Tensor]:
    """Returns the weights of a scalar head by their names in a sequence classifier; none if there is no head."""
    head = {}
    for shard in shards:
        with reading(shard, ModelError), safe_open(shard, framework="pt") as stored:
            names = {key.removeprefix(prefix) for key in stored.keys()}  # noqa: SIM118 (not a mapping)
            for name in names & {HEAD, HEAD_OUT}:
                head[name] = stored.get_tensor(prefix + name)
                if head[name].dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                    raise ModelError(
                        f"{shard}: the head {name} is quantized ({head[name].dtype}): save it in 16 bits or more"
                    )
    return head


def _options(
    dtype: torch.dtype | str, device: torch.device | str, quantize: torch.dtype | None
) -> dict[str, Any]:
    """How transformers reads the weights."""
    if quantize is None:
        return {"dtype": dtype}
    with importing("model.lora.load_in_4bit"):
        import bitsandbytes  # noqa: F401  # transformers would raise an error without a way out
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=quantize,
        bnb_4bit_quant_storage=quantize,  # so that FSDP gathers it unchanged
        llm_int8_skip_modules=["lm_head", "score"],
    )
    place = torch.cuda.current_device() if str(device) == "cuda" else device
    return {"dtype": dtype, "quantization_config": config, "device_map": {"": place}}


def _read_model(
    auto: Any, folder: Path, config: Any, options: Mapping[str, Any], where: str, *, packed: bool
) -> TransformersModel:
    """Loads a model by one of transformers' auto classes, and refuses weights that do not fit its config."""
    try:
        with torch.device("meta"):
            skeleton = auto.from_config(config, trust_remote_code=False)
        _check_modules(skeleton, where, packed=packed, scores=auto is AutoModelForSequenceClassification)
        with _without_load_report():
            model, report = auto.from_pretrained(
                folder,
                config=config,
                **options,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # accepted only for a head with several labels, below
            )
    except ModelError:
        raise
    except Exception as error:  # code of every architecture there is
        raise ModelError(f"{where}: {auto.__name__} cannot load it: {first_line(error)}") from None
    missing = set(report["missing_keys"]) - {HEAD}  # the head is set by the caller
    if missing:
        raise ModelError(f"{where}: {len(missing)} weights of its config are missing, such as {min(missing)}")
    other = {name for name, *_ in report["mismatched_keys"]} - {HEAD}
    if other:
        raise ModelError(f"{where}: the shape of {min(other)} differs from its config")
    # Extra layers, or the scales of quantized weights.
    unexpected = sorted({*report["unexpected_keys"]} - {HEAD_OUT})
    shapes: dict[str, list[int]] = {}
    for shard in weight_files(folder) if unexpected else ():
        shapes |= tensor_shapes(shard)
    body = f"{model.base_model_prefix}."
    # Of other parts of a multimodal model.
    ignored = getattr(_text_model(model.config), "_keys_to_ignore_on_load_unexpected", None) or []
    unread = []
    for name in unexpected:
        if any(re.match(pattern, name) for pattern in ignored):
            continue
        # A scorer may be a language model with a new head: the head over the vocabulary is not used then.
        of_vocabulary = name in shapes and shapes[name][0] == config.vocab_size
        if not (hasattr(model, "score") and of_vocabulary and not name.startswith(body)):
            unread.append(name)
    if unread:
        raise ModelError(
            f"{where}: {len(unread)} weights have no place in the model of its config, such as {unread[0]}; is "
            f"num_hidden_layers = {model.config.num_hidden_layers} right, or are the weights quantized?"
        )
    return model


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Silences transformers' table of missing weights, which `_read_model` checks, and a tensor-parallel warning."""
    names = ("transformers.modeling_utils", "transformers.distributed.tensor_parallel")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _check_modules(model: Any, where: str, *, packed: bool, scores: bool) -> None:
    """Refuses an architecture that cannot be packed, or else cannot generate; works on the meta device."""
    for name, module in model.named_modules():
        if getattr(module, "is_causal", True) is False:
            raise ModelError(f"{where}: {name} is not causal: later tokens would change earlier ones")
    recurrent = packed and bool(recurrent_layers(model.config))
    if recurrent:
        check_mixers(model, where)
    # How transformers marks models that pass keyword arguments on to a custom attention; most recurrent ones lack it.
    if packed and not (
        model._supports_attention_backend or (recurrent and model._can_set_attn_implementation())
    ):
        raise ModelError(f"{where}: its attention cannot be replaced by one for a shared prefix")
    if packed and not scores:
        # Log-probabilities are computed from the last hidden states by the output embeddings alone.
        used = (model.base_model, model.get_output_embeddings())
        for name, module in model.named_children():
            if module not in used and any(True for _ in module.parameters()):
                raise ModelError(f"{where}: its logits are computed by {name}, too: not supported")
        _check_logits(model, where)
    if not packed and "past_key_values" not in signature(model.forward).parameters:
        raise ModelError(f"{where}: it has no cache of keys and values (a state-space model): not supported")
    if scores and not isinstance(getattr(model, "score", None), nn.Linear):
        raise ModelError(f"{where}: its sequence classifier has no linear `score` head")


class _BodyOutput(BaseModelOutput):
    """Last hidden states alone; None for the fields that only some families have, such as those of a router."""

    def __getattr__(self, name: str) -> None:
        return None


def _check_logits(model: Any, where: str) -> None:
    """Refuses a model whose forward scales or caps states or logits in another way than `scaled_logits`.

    Body and output embeddings return fixed tensors meanwhile, so it works on the meta device.
    """
    body, head = model.base_model, model.get_output_embeddings()
    raw = torch.linspace(-3, 3, 7)[None, None]
    states = _BodyOutput(last_hidden_state=torch.ones(1, 1, 1))
    body.forward, head.forward = lambda *_, **__: states, lambda given: raw * given
    try:
        own = model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits
    finally:
        del body.forward, head.forward
    if not torch.allclose(own, scaled_logits(model, raw)):
        raise ModelError(f"{where}: its forward changes the logits in a way that is not supported")


def _complete(model: TransformersModel, tokenizer: Tokenizer, parts: ModelFolders, where: str) -> None:
    """Checks that the tokenizer fits the model, and adds the adapter, if there is one."""
    _check_vocabulary(model, tokenizer, where)
    if parts.adapter:
        from longrm.modeling.adapters import read_adapter  # late: PEFT takes two seconds to import

        read_adapter(model, parts.adapter, where)


def _check_vocabulary(model: TransformersModel, tokenizer: Tokenizer, where: str) -> None:
    rows = model.get_input_embeddings().num_embeddings
    # Tokens added beyond the vocabulary, such as one for padding, may never be used.
    ids = tokenizer.backend.get_vocab(with_added_tokens=False)
    beyond = sorted((number, token) for token, number in ids.items() if number >= rows)
    if beyond:
        number, token = beyond[0]
        raise ModelError(
            f"{where}: its tokenizer.json belongs to another model: {len(beyond):,} tokens, such as {token!r} "
            f"({number:,}), are outside its {rows:,} embeddings"
        )


def _choose_padding(config: Any, tokenizer: Tokenizer) -> None:
    """Sets a padding id that does not end responses, for a model that has not learned any.

    Transformers scores the last token that is not padding, and the embedding of padding does not learn: with
    pad = eos, nothing would read or learn the end of a response. Without a padding id transformers refuses batches,
    which at least is loud.
    """
    declared = config.eos_token_id
    ends = {tokenizer.eos_id, *(declared if isinstance(declared, list) else [declared])}
    ends |= set(tokenizer.closing_ids())
    candidates = [config.pad_token_id, tokenizer.pad_id]
    config.pad_token_id = next((i for i in candidates if i is not None and i not in ends), None)


@contextmanager
def weights_fit(where: str, device: torch.device | str) -> Iterator[None]:
    """Raises a `ModelError` if memory runs out while weights are moved to a device."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(f"{where}: its weights do not fit into the memory of {device}") from None
