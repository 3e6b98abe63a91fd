"""Reward models of every kind behind one protocol."""

from collections.abc import Callable, Iterable
from typing import assert_never

from longrm import hub
from longrm.clients import Completion
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError
from longrm.reward_models.baselines import BASELINES, Baseline
from longrm.reward_models.judge_settings import Compress, JudgeSettings
from longrm.reward_models.protocol import RewardModel
from longrm.types import Comparison

__all__ = [
    "BASELINES",
    "Baseline",
    "Compress",
    "JudgeSettings",
    "RewardModel",
    "load",
    "pinned",
]


def load(
    model: str,
    *,
    judge: JudgeSettings | None = None,
    remote: Remote | None = None,
    compress: Compress | None = None,
    key: Iterable[Comparison] = (),
    on_usage: Callable[[Completion], None] | None = None,
) -> RewardModel:
    """Loads a reward model by its name.

    Args:
        model: A folder or Hub id of a one-label sequence classifier or of a causal language model, which is then
            a generative reward model; `openai:URL#NAME`, a model behind an OpenAI-compatible endpoint; `baseline:NAME`;
            `compress:MODEL`, any of these on the chunks of the context that matter; `simulated:RATE`.
        judge: How a model is asked, and what it does with a context that does not fit.
        remote: How an endpoint is reached.
        compress: How much of a context is left.
        key: The comparisons that a simulated judge will be asked about: it errs at stated rates.
        on_usage: Is told of every answer that came from an endpoint.

    Raises:
        ConfigError: An unknown baseline, or a name that lacks a part.
        ModelError: A folder or Hub id that cannot be loaded, or an endpoint; the message says why.
    """
    judge, remote, compress = judge or JudgeSettings(), remote or Remote(), compress or Compress()
    kind, _, name = model.partition(":")
    match kind:
        case "baseline" if name:
            return Baseline(name)
        case "compress" if name:
            from longrm.reward_models.compress import CompressRewardModel

            inner = load(name, judge=judge, remote=remote, key=key, on_usage=on_usage)
            return CompressRewardModel(inner, compress)
        case "simulated" if name:
            from longrm.reward_models.simulated import ErrorRates, SimulatedRewardModel, comparison_keys

            return SimulatedRewardModel(ErrorRates.parse(name), comparison_keys(key), judge.seed)
        case "openai" if name:
            from longrm.reward_models.generative import load_remote

            return load_remote(name, judge, remote, on_usage)
        case "baseline" | "compress" | "simulated" | "openai":
            raise ConfigError(f"'{model}' lacks what stands behind the colon; write it as {_FORMS[kind]}")
        case _:
            return _local(model, judge)


_FORMS = {
    "baseline": "baseline:NAME, such as baseline:longest",
    "compress": "compress:MODEL",
    "simulated": "simulated:RATE, such as simulated:0.2",
    "openai": "openai:URL#NAME, such as openai:http://127.0.0.1:8000/v1#my-model",
}


def pinned(model: str) -> str:
    """The name of a model of the Hub with the commit that it has now, so that every machine reads the same.

    Raises:
        ModelError: There is no such model.
    """
    kind, _, name = model.partition(":")
    if kind == "compress" and name:
        return f"compress:{pinned(name)}"
    found = None if kind in _FORMS else hub.split_revision(model)
    if found is None:
        return model
    from longrm.modeling.folders import find_model_folder

    commit = hub.commit_of(find_model_folder(model))
    return model if commit is None else f"{found[0]}@{commit}"


def _local(model: str, judge: JudgeSettings) -> RewardModel:
    from longrm.modeling.folders import kind_of

    # Imported late: everything but a local model works without torch.
    match kind_of(model):
        case "generative":
            from longrm.modeling.local_writer import LocalWriter
            from longrm.reward_models.generative import GenerativeRewardModel

            writer = LocalWriter.load(model)
            judging = GenerativeRewardModel(writer, judge, tokenizer=writer.tokenizer)
            judging.provenance = writer.provenance
            return judging
        case "discriminative":
            from longrm.reward_models.discriminative import DiscriminativeRewardModel

            return DiscriminativeRewardModel.load(model, judge)
        case unknown:
            assert_never(unknown)
