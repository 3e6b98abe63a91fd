"""Loading reward models by name: the prefix before the colon is the kind."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, TypeVar, assert_never

from longrm import hub
from longrm.clients import Completion
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError, importing, nearest
from longrm.modeling.folders import find_model_folder, kind_of
from longrm.plugins import load_plugins
from longrm.reward_models.baselines import Baseline
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import JudgeSettings, LoadRequest, ModelSettings
from longrm.types import Comparison

if TYPE_CHECKING:  # torch takes two seconds to import
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from longrm.modeling.local_generator import LocalTextGenerator

_logger = logging.getLogger(__name__)

_Settings = TypeVar("_Settings", bound="_OfAModel")


class _OfAModel(Protocol):
    @property
    def model_args(self) -> ModelSettings: ...

    @property
    def judge(self) -> JudgeSettings: ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


Model: TypeAlias = "str | RewardModel | PreTrainedModel | PeftModel"
"""A model's name as for `load`, a loaded model, or a transformers model, whose tokenizer is a further argument."""

# The loaders import the implementations late: most of them need torch, bm25s or tokenizers, without which settings and
# help start faster.

_HTTP = "openai:"


def _load_simulated(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.simulated import ErrorRates, SimulatedRewardModel

    return SimulatedRewardModel(ErrorRates.parse(name), request.gold, request.judge.seed)


def _load_openai(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.endpoints import connect
    from longrm.reward_models.generative import GenerativeRewardModel

    client, tokenizer = connect(name, request)
    return GenerativeRewardModel(client, request.judge, request.model_args, tokenizer=tokenizer)


def _load_longrm(url: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.endpoints import LongrmServer

    remote = request.remote
    if "api_key_env" not in remote.model_fields_set:
        remote = remote.model_copy(update={"api_key_env": "LONGRM_API_KEY"})
    return LongrmServer(url, remote, request.model_args)


def _load_likelihood(name: str, request: LoadRequest) -> RewardModel:
    if name.startswith(_HTTP):
        from longrm.reward_models.endpoints import LikelihoodEndpoint

        return LikelihoodEndpoint(name.removeprefix(_HTTP), request)
    from longrm.modeling.loading import load_language_model
    from longrm.reward_models.packed import LikelihoodRewardModel

    names = name.split("#", 1)
    if not all(names):
        raise ConfigError(
            f"'likelihood:{name}' lacks the {'reference after' if names[0] else 'model before'} #"
        )
    settings = request.model_args
    model, *reference = (
        load_language_model(part, dtype=settings.dtype, device=settings.device, packed=True) for part in names
    )
    return LikelihoodRewardModel(model, f"likelihood:{name}", settings, *reference)


def _load_tokens(name: str, request: LoadRequest) -> RewardModel:
    if name.startswith(_HTTP):
        from longrm.reward_models.endpoints import TokenEndpoint, connect

        client, tokenizer = connect(name.removeprefix(_HTTP), request)
        return TokenEndpoint(client, request.judge, request.model_args, tokenizer=tokenizer)
    from longrm.modeling.loading import load_language_model
    from longrm.reward_models.packed import TokenRewardModel

    settings = request.model_args
    model = load_language_model(name, dtype=settings.dtype, device=settings.device, packed=True)
    return TokenRewardModel(model, f"tokens:{name}", request.judge, settings)


def _load_compress(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.wrappers import CompressRewardModel

    return CompressRewardModel(_load(name, request), request.model_args.compress_tokens)


def _load_ensemble(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.wrappers import COMBINATIONS, EnsembleRewardModel

    combination, _, members = name.partition(":")
    if combination not in COMBINATIONS:
        raise ConfigError(f"no ensemble '{combination}'; {nearest(combination, COMBINATIONS)}")
    names = members.split("+")
    if not all(names) or len(names) < 2 or any(member.startswith("ensemble:") for member in names):
        raise ConfigError(
            f"'ensemble:{name}' needs two models or more, joined by +, and none may be an ensemble"
        )
    return EnsembleRewardModel([_load(member, request) for member in names], combination)


def _load_local(model: str, request: LoadRequest) -> RewardModel:
    judge, settings = request.judge, request.model_args
    match kind_of(model):
        case "discriminative":
            from longrm.reward_models.packed import DiscriminativeRewardModel

            return DiscriminativeRewardModel.load(model, settings)
        case "generative":
            from longrm.modeling.local_generator import LocalTextGenerator

            _logger.info(
                "%s is a language model: it writes verdicts of up to %s tokens each (judge.max_tokens), which is slow; "
                "likelihood:%s and tokens:%s judge without writing",
                *(model, f"{judge.max_tokens:,}", model, model),
            )
            writer = LocalTextGenerator.load(model, dtype=settings.dtype, device=settings.device)
            return _judge_that_writes(writer, request)
        case unknown:
            assert_never(unknown)


def _judge_that_writes(writer: "LocalTextGenerator", request: LoadRequest) -> RewardModel:
    from longrm.reward_models.generative import GenerativeRewardModel

    loaded = GenerativeRewardModel(writer, request.judge, request.model_args, tokenizer=writer.tokenizer)
    loaded.provenance = {**writer.provenance, **loaded.provenance}
    return loaded


def name_of(model: Model) -> str:
    """The name of a model of any form; no folder and no Hub id is named as a model in memory."""
    if isinstance(model, str | RewardModel):
        return model if isinstance(model, str) else model.name
    config = getattr(model, "config", None)
    return f"{getattr(config, '_name_or_path', '') or type(model).__name__} (in memory)"


def loaded(
    model: Model, tokenizer: "PreTrainedTokenizerBase | str | None", settings: _Settings
) -> tuple[_Settings, RewardModel | None]:
    """The reward model of an object, loaded by the settings, which get its name; None for a name."""
    if isinstance(model, str | RewardModel):
        if tokenizer is not None:
            raise ConfigError(
                f"{name_of(model)}: tokenizer is only supported with a transformers model in memory"
            )
        return settings, None if isinstance(model, str) else model
    judge = load(model, tokenizer, model_args=settings.model_args, judge=settings.judge)
    return settings.model_copy(update={"model": judge.name}), judge


def _load_in_place(
    model: "PreTrainedModel | PeftModel", tokenizer: object, kind: str | None, request: LoadRequest
) -> RewardModel:
    from longrm.data.tokenizing import Tokenizer
    from longrm.modeling.loading import Scorer, in_place
    from longrm.modeling.local_generator import LocalTextGenerator
    from longrm.reward_models.packed import (
        DiscriminativeRewardModel,
        LikelihoodRewardModel,
        TokenRewardModel,
    )

    name, judge, settings = name_of(model), request.judge, request.model_args
    if not hasattr(model, "config"):
        raise ConfigError(f"model: pass a name or a transformers model (of a Run its .model), not {name}")
    if kind not in (None, "likelihood", "tokens"):
        raise ConfigError(f"unknown kind {kind!r}; {nearest(kind, ('likelihood', 'tokens'))}")
    if tokenizer is None:
        raise ConfigError(f"{name}: a model in memory needs its tokenizer: longrm.load(model, tokenizer)")
    loaded = in_place(model, Tokenizer.of(tokenizer), name, packed=kind is not None)
    # Other weights are another model: to resumed runs, files of scores and comparisons of runs.
    name = f"{f'{kind}:' if kind else ''}{name.removesuffix(')')}, {loaded.origin['weights'][:8]})"
    if isinstance(loaded, Scorer):
        if kind is not None:
            raise ConfigError(f"{name} has a scalar head; omit kind, which applies to language models")
        return DiscriminativeRewardModel(loaded, name, settings)
    if kind == "likelihood":
        return LikelihoodRewardModel(loaded, name, settings)
    if kind == "tokens":
        return TokenRewardModel(loaded, name, judge, settings)
    return _judge_that_writes(LocalTextGenerator(loaded, name), request)


Rename = Callable[[str], str]


def _rename_members(name: str, rename: Rename) -> str:
    combination, _, members = name.partition(":")
    return f"{combination}:{'+'.join(map(rename, members.split('+')))}"


@dataclass(frozen=True, slots=True)
class RewardModelKind:
    """An entry of `KINDS`."""

    form: str  # how the name of such a model is written
    load: Callable[[str, LoadRequest], RewardModel]  # makes the model from the name after the colon
    rename: Callable[[str, Rename], str] = lambda name, rename: name  # renames every model within that name


KINDS: dict[str, RewardModelKind] = {
    "baseline": RewardModelKind(
        "baseline:NAME, such as baseline:longest", lambda name, request: Baseline(name)
    ),
    "compress": RewardModelKind("compress:MODEL", _load_compress, lambda name, rename: rename(name)),
    "simulated": RewardModelKind("simulated:RATE, such as simulated:0.2", _load_simulated),
    "openai": RewardModelKind(
        "openai:URL#NAME, such as openai:http://127.0.0.1:8000/v1#my-model", _load_openai
    ),
    "longrm": RewardModelKind("longrm:URL, such as longrm:http://127.0.0.1:8000", _load_longrm),
    "likelihood": RewardModelKind(
        "likelihood:MODEL, or likelihood:MODEL#REFERENCE",
        _load_likelihood,
        lambda name, rename: name if name.startswith(_HTTP) else "#".join(map(rename, name.split("#"))),
    ),
    # openai:URL#NAME after `tokens:` is renamed like a model's name, which leaves it as it is.
    "tokens": RewardModelKind("tokens:MODEL", _load_tokens, lambda name, rename: rename(name)),
    "ensemble": RewardModelKind(
        "ensemble:mean-rank:MODEL+MODEL or ensemble:votes:MODEL+MODEL", _load_ensemble, _rename_members
    ),
}
"""The registry of kinds. A name without a prefix is a local model: a folder or a Hub id."""


def load(
    model: "str | PreTrainedModel | PeftModel",
    tokenizer: "PreTrainedTokenizerBase | str | None" = None,
    *,
    kind: Literal["likelihood", "tokens"] | None = None,
    model_args: ModelSettings | Mapping[str, object] | None = None,
    judge: JudgeSettings | Mapping[str, object] | None = None,
    remote: Remote | Mapping[str, object] | None = None,
    gold: Iterable[Comparison] = (),
    on_usage: Callable[[Completion], None] | None = None,
) -> RewardModel:
    """Loads a reward model by its name, or takes a transformers model that is in memory.

    A model in memory is used in place, with its weights of every call: nothing is copied, and between calls it has its
    own attention and mode (training or evaluation), so that it can be trained in turn. A run records a digest of the
    weights at loading: load it again after training, and an old run does not continue with new weights.

    Args:
        model: A transformers model, also within PEFT's wrapper: a sequence classifier with one label, or a causal
            language model. Or a name, one of:

            - a folder (of a model, or of a training run) or Hub id of a one-label sequence classifier (a scalar reward
              model) or of a causal language model (a generative reward model);
            - `openai:URL#NAME`, a generative reward model behind an OpenAI-compatible endpoint;
            - `longrm:URL`, the model of a `longrm serve`;
            - `likelihood:MODEL`, a language model whose score is the log-probability of the response;
              `likelihood:MODEL#REFERENCE` subtracts that of the model it was trained from;
            - `tokens:MODEL`, a language model that judges by the probability of one token, such as A or B;
            - `likelihood:openai:URL#NAME` and `tokens:openai:URL#NAME`, the same behind an endpoint that returns
              log-probabilities;
            - `baseline:NAME`, a rule without a model;
            - `compress:MODEL`, another model that sees only the most relevant chunks of the context;
            - `ensemble:mean-rank:MODEL+MODEL` or `ensemble:votes:MODEL+MODEL`, several models together;
            - `simulated:RATE`, a judge that knows the gold order and errs at the given rate.
        tokenizer: The tokenizer of a model in memory, or its folder or Hub id.
        kind: How a causal language model in memory judges; by default it writes verdicts, and "likelihood" and "tokens"
            are as before a name.
        model_args: How the model is loaded and what it reads, such as {"device": "cuda:1", "cut": "middle"}.
        judge: How a language model is asked, such as {"format": "pointwise"}.
        remote: How requests are sent to an endpoint.
        gold: The comparisons, with their gold ranks, that a simulated judge will be given.
        on_usage: Called with every answer of an endpoint that counts for its cost.

    Raises:
        ConfigError: An unknown kind, baseline or setting, an incomplete name, rubrics for a model that cannot judge
            by one criterion, or a `judge.group` for one that does not compare responses.
        ModelError: A folder, Hub id or endpoint that cannot be used.
    """
    load_plugins()  # a process of Ray or torchrun starts here
    request = LoadRequest(
        model_args if isinstance(model_args, ModelSettings) else ModelSettings.resolve(overrides=model_args),
        judge if isinstance(judge, JudgeSettings) else JudgeSettings.resolve(overrides=judge),
        remote if isinstance(remote, Remote) else Remote.resolve(overrides=remote),
        gold,
        on_usage,
    )
    settings, judge = request.model_args, request.judge
    if isinstance(model, str):
        if tokenizer is not None or kind is not None:
            hint = "" if kind is None else f"; of a named one, kind is its prefix: {kind}:{model}"
            raise ConfigError(f"{model}: tokenizer and kind are only supported with a model in memory{hint}")
        loaded = _load_by_name(model, request)
    else:
        if (settings.device, settings.dtype) != ("auto", "auto"):
            raise ConfigError(
                "model_args.device and dtype are not supported with a model in memory: use model.to()"
            )
        if settings.label_weights:
            raise ConfigError(
                "model_args.label_weights is not supported with a model in memory; load it by name"
            )
        loaded = _load_in_place(model, tokenizer, kind, request)
    if judge.solve and not loaded.solves:
        raise ConfigError(f"judge.solve requires a generative reward model, which {loaded.name} is not")
    if judge.name is not None and not loaded.writes:
        raise ConfigError(f"judge.name requires a model that writes verdicts, which {loaded.name} is not")
    if judge.rubrics is not None:
        from longrm.reward_models.wrappers import RubricRewardModel

        loaded = RubricRewardModel(loaded, judge.rubrics)
    if judge.group != "listwise":
        from longrm.reward_models.groups import GroupRewardModel

        loaded = GroupRewardModel(loaded, judge.group)
    return loaded


def _load_by_name(model: str, request: LoadRequest) -> RewardModel:
    settings, local = request.model_args, local_models(model)
    if (settings.device, settings.dtype) != ("auto", "auto") and not local:
        raise ConfigError(
            f"{model} does not run on this machine, so --device and --dtype (model_args.device, model_args.dtype) do "
            "not apply"
        )
    # A member of an ensemble may have several labels where others have none.
    if settings.label_weights and not any(kind_of(name) == "discriminative" for name in local):
        raise ConfigError(
            f"--weights (model_args.label_weights) requires a model with more than one label, which {model} is not"
        )
    with importing(f"the model {model}"):
        return _load(model, request)


def _load(model: str, request: LoadRequest) -> RewardModel:
    kind, name = split_kind(model)
    return _load_local(model, request) if kind is None else kind.load(name, request)


def writes_verdicts(model: str) -> bool:
    """Whether a model is a language model on this machine that writes its verdicts."""
    return split_kind(model)[0] is None and kind_of(model) == "generative"


def split_kind(model: str) -> tuple[RewardModelKind | None, str]:
    """The kind of a model and the name after the colon; None for a local model."""
    kind, _, name = model.partition(":")
    if kind in KINDS:
        if not name:
            raise ConfigError(f"'{model}' is incomplete; write it as {KINDS[kind].form}")
        return KINDS[kind], name
    # A folder's name may contain a colon.
    if kind != model and "/" not in kind and not Path(model).exists() and not hub.on_modelscope(model):
        raise ConfigError(f"no kind of model '{kind}:'; {nearest(kind, KINDS)}")
    return None, model


def _rename_local(model: str, rename: Rename) -> str:
    """Applies `rename` to every local model, a folder or Hub id, in a model's name."""
    kind, name = split_kind(model)
    if kind is None:
        return rename(model)
    return f"{model.partition(':')[0]}:{kind.rename(name, lambda inner: _rename_local(inner, rename))}"


def local_models(model: str) -> list[str]:
    """The folders and Hub ids in a model's name, in order."""
    found: list[str] = []

    def collect(name: str) -> str:
        found.append(name)
        return name

    _rename_local(model, collect)
    return [name for name in found if name]


def pinned(model: str) -> str:
    """A model's name with the current commits of its Hub models, so that every machine loads the same."""

    def pin(name: str) -> str:
        found = hub.split_revision(name)
        if found is None:
            return name
        commit = hub.commit_of(find_model_folder(name))
        return name if commit is None else f"{found[0]}@{commit}"

    return _rename_local(model, pin)
