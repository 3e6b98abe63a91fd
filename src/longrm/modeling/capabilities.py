"""The capabilities that scoring and writing need, read from config and modules and never from a name."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from longrm.errors import ModelError


def check_config(config: Any, where: str) -> None:
    """Refuses a config that asks for what a shared prefix does not compute; the `ModelError` names it and says why."""
    _refuse(config, where, _REASONS)


def check_decoder(config: Any, where: str) -> None:
    """Refuses the config of a model that is not a text-only causal decoder; the `ModelError` names what it is."""
    _refuse(config, where, (_structure,))


def check_trainable(config: Any, where: str) -> None:
    """Refuses the config of a model whose weights cannot learn; the `ModelError` names how they are quantized."""
    quantized = getattr(config, "quantization_config", None)
    if quantized:
        fields = quantized if isinstance(quantized, dict) else vars(quantized)
        raise ModelError(
            f"{where}: its weights are quantized ({fields.get('quant_method', 'by an unknown method')}), and neither "
            "training nor merging works on them: take the model that was quantized"
        )


def check_packed(model: Any, where: str) -> None:
    """Refuses modules that a shared prefix cannot drive: encoders, fixed attention.

    This works on the meta device, before any weight is read; the `ModelError` names the module or capability.
    """
    _check_causal(model, where)
    # The mark, in transformers' attention-interface guide, of models that take a custom attention.
    if not model._supports_attention_backend:
        raise ModelError(f"{where}: its attention cannot be replaced by one for a shared prefix")


def check_scorer(model: Any, where: str) -> None:
    """Refuses what `check_packed` refuses, and an unknown head; the `ModelError` names the module or capability."""
    check_packed(model, where)
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise ModelError(f"{where}: its sequence classifier has no linear `score` head")


def check_writer(model: Any, where: str) -> None:
    """Refuses modules that cannot write token by token from a cache; works on the meta device.

    The `ModelError` names the module or capability.
    """
    _check_causal(model, where)
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise ModelError(
            f"{where}: it keeps no keys and values (a state-space model): not supported for writing"
        )


def reads_in_blocks(model: Any) -> bool:
    """Whether a causal language model that reads a sequence block by block computes what it does at once.

    Windows, recurrent states and frequencies that depend on the length of a call do not qualify.
    """
    return model._supports_attention_backend and not any(reason(model.config) for reason in _REASONS)


def _refuse(config: Any, where: str, reasons: Iterable[Callable[[Any], str | None]]) -> None:
    for reason in reasons:
        problem = reason(config)
        if problem:
            raise ModelError(f"{where}: {problem}")


def _check_causal(model: Any, where: str) -> None:
    for name, module in model.named_modules():
        if getattr(module, "is_causal", True) is False:
            raise ModelError(f"{where}: {name} is not causal: what follows a token would change it")


def _structure(config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "an encoder-decoder model: only decoders are supported"
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        return "bidirectional attention: what follows a token would change it, so it must be causal"
    if config.get_text_config() is not config:
        return "a multimodal model: only text models are supported"
    return None


def _layers(config: Any) -> str | None:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if kinds is None else None
    other = sorted(set(kinds or ()) - {"full_attention"})
    named = ", ".join(other) if window is None else f"sliding_window = {window}"
    if not named:
        return None
    if all("sliding" in kind or "chunked" in kind or "window" in kind for kind in other):
        return f"{named}: windowed attention cuts a long prefix, which a shared prefix does not compute"
    return f"layers of type {named} (state-space, linear, sparse): they cannot branch at a prefix"


def _soft_caps(config: Any) -> str | None:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None) is not None:
            return f"{name} = {getattr(config, name)}: soft-capped logits are not supported"
    for name in ("logit_scale", "logits_scaling"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            return f"{name} = {getattr(config, name)}: scaled output logits are not supported"
    return None


def _positions(config: Any) -> str | None:
    if getattr(config, "alibi", False):
        return "alibi positions: a bias on attention logits is not supported"
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return "no rotary positions (learned, ALiBi or recurrent): not supported with a shared prefix"
    kind = rope.get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        return f"rope_type = {kind}: its frequencies, so its scores, depend on the longest sequence of a call"
    return None


_REASONS: tuple[Callable[[Any], str | None], ...] = (_structure, _layers, _soft_caps, _positions)
