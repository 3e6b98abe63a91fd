"""Loading reward models by name: the prefix before the colon is the kind."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never

from pydantic import Field

from longrm import hub
from longrm.clients import Completion
from longrm.clients.remote_settings import Remote
from longrm.config import OPERATIONAL, Config
from longrm.errors import ConfigError, importing, nearest
from longrm.modeling.folders import find_model_folder, kind_of
from longrm.reward_models.baselines import Baseline
from longrm.reward_models.protocol import RewardModel
from longrm.types import Comparison

_logger = logging.getLogger(__name__)


class JudgeSettings(Config):
    """How a model is queried for its judgment.

    Attributes:
        format: What a generative reward model is asked for: "pairwise" (which of two is better), "listwise" (a ranking)
            or "pointwise" (0 to 10 for each response alone). By default pairwise for two responses, else listwise.
        template: A jinja2 file with a prompt of your own; by default the format's.
        verdict: A regular expression with one group that finds the verdict your template asks for.
        solve: Whether a generative reward model first answers the question itself, before it sees the responses, and
            then judges them in the same conversation (S2J, arXiv 2509.22099).
        retries: How often the model is asked again if its answer contains no verdict.
        temperature: 0 decodes greedily; votes need more.
        max_tokens: The most tokens an answer may have.
        max_length: The most tokens of prompt and answer together; by default the model's context window.
        cut: What to cut of a context that does not fit: its "middle", "left" (the beginning) or "right" (the end).
            "refuse" cuts nothing; the outcome is then too_long.
        seed: Seeds the sampling.
        likelihood: How `likelihood:MODEL` reduces the log-probabilities of a response's tokens: "sum", or "mean", which
            does not favor short responses.
        tokens: The tokens that your template asks for, whose probabilities `tokens:MODEL` reads: one for each response
            in presented order or, pointwise, the one for the response and the one against it.
        rubrics: Judge by one criterion at a time; the score is the weighted mean. "item" uses the `rubrics` of each
            row; a file has the same criteria for all rows, one per line (`criterion`, and optionally `weight`).
        group: How a judge that compares responses scores a group of N. "listwise" shows it all of them at once. The
            others compare two at a time, in both orders, and score by Bradley-Terry strengths: "round-robin" all pairs,
            N (N - 1) verdicts, "anchor" each response with one of them, 2 (N - 1) verdicts.
        weights: For a model with several labels: the weight of each in the score, by its name in the config's
            `id2label`. The default weight is 0.
        device: The device of a local model as torch names it, such as "cpu" or "cuda:1"; "auto" is a GPU if there is
            one.
        dtype: The type of its weights; "auto" is that of the checkpoint. A scalar head is always float32.
    """

    format: Literal["pairwise", "listwise", "pointwise"] | None = None
    template: str | None = None
    verdict: str | None = None
    solve: bool = False
    retries: int = Field(1, ge=0)
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(1024, ge=1)
    max_length: int | None = Field(None, ge=1)
    cut: Literal["middle", "left", "right", "refuse"] = "refuse"
    seed: int = Field(0, ge=0)
    likelihood: Literal["sum", "mean"] = "sum"
    tokens: tuple[str, ...] | None = None
    rubrics: str | None = None
    group: Literal["listwise", "round-robin", "anchor"] = "listwise"
    weights: Mapping[str, float] | None = None
    device: Annotated[str, OPERATIONAL] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


DEFAULT_JUDGE = JudgeSettings()


class Compress(Config):
    """What `compress:MODEL` keeps of a context.

    Attributes:
        tokens: The most words and punctuation marks that are kept.
    """

    tokens: int = Field(1024, ge=1)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of `load` except the name."""

    judge: JudgeSettings
    remote: Remote
    compress: Compress
    key: Iterable[Comparison]
    on_usage: Callable[[Completion], None] | None

    def load(self, model: str) -> RewardModel:
        """Loads a model by its name."""
        kind, name = split_kind(model)
        return _load_local(model, self) if kind is None else kind.load(name, self)


# The loaders import the implementations late: most of them need torch, bm25s or tokenizers, without which settings and
# help start faster.

_HTTP = "openai:"


def _load_simulated(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.simulated import ErrorRates, SimulatedRewardModel

    return SimulatedRewardModel(ErrorRates.parse(name), request.key, request.judge.seed)


def _load_openai(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.endpoints import connect
    from longrm.reward_models.generative import GenerativeRewardModel

    client, tokenizer = connect(name, request)
    return GenerativeRewardModel(client, request.judge, tokenizer=tokenizer)


def _load_longrm(url: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.endpoints import LongrmServer

    remote = request.remote
    if "api_key_env" not in remote.model_fields_set:
        remote = remote.model_copy(update={"api_key_env": "LONGRM_API_KEY"})
    return LongrmServer(url, remote, request.judge)


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
    judge = request.judge
    model, *reference = (
        load_language_model(part, dtype=judge.dtype, device=judge.device, packed=True) for part in names
    )
    return LikelihoodRewardModel(model, f"likelihood:{name}", judge, *reference)


def _load_tokens(name: str, request: LoadRequest) -> RewardModel:
    if name.startswith(_HTTP):
        from longrm.reward_models.endpoints import TokenEndpoint, connect

        client, tokenizer = connect(name.removeprefix(_HTTP), request)
        return TokenEndpoint(client, request.judge, tokenizer=tokenizer)
    from longrm.modeling.loading import load_language_model
    from longrm.reward_models.packed import TokenRewardModel

    judge = request.judge
    model = load_language_model(name, dtype=judge.dtype, device=judge.device, packed=True)
    return TokenRewardModel(model, f"tokens:{name}", judge)


def _load_compress(name: str, request: LoadRequest) -> RewardModel:
    from longrm.reward_models.wrappers import CompressRewardModel

    return CompressRewardModel(request.load(name), request.compress.tokens)


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
    return EnsembleRewardModel([request.load(member) for member in names], combination)


def _load_local(model: str, request: LoadRequest) -> RewardModel:
    judge = request.judge
    match kind_of(model):
        case "discriminative":
            from longrm.reward_models.packed import DiscriminativeRewardModel

            return DiscriminativeRewardModel.load(model, judge)
        case "generative":
            from longrm.modeling.local_generator import LocalTextGenerator
            from longrm.reward_models.generative import GenerativeRewardModel

            _logger.info(
                "%s is a language model: it writes verdicts of up to %s tokens each (judge.max_tokens), which is slow; "
                "likelihood:%s and tokens:%s judge without writing",
                *(model, f"{judge.max_tokens:,}", model, model),
            )
            writer = LocalTextGenerator.load(model, dtype=judge.dtype, device=judge.device)
            loaded = GenerativeRewardModel(writer, judge, tokenizer=writer.tokenizer)
            loaded.provenance = {**writer.provenance, **loaded.provenance}
            return loaded
        case unknown:
            assert_never(unknown)


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
    model: str,
    *,
    judge: JudgeSettings | Mapping[str, Any] | None = None,
    remote: Remote | Mapping[str, Any] | None = None,
    compress: Compress | Mapping[str, Any] | None = None,
    key: Iterable[Comparison] = (),
    on_usage: Callable[[Completion], None] | None = None,
) -> RewardModel:
    """Loads a reward model by its name.

    Args:
        model: One of:

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
        judge: How the model is queried, such as {"cut": "middle"}.
        remote: How requests are sent to an endpoint.
        compress: What `compress:MODEL` keeps of a context.
        key: The comparisons, with their gold, that a simulated judge will be given.
        on_usage: Called with every answer of an endpoint that counts for its cost.

    Raises:
        ConfigError: An unknown kind, baseline or setting, an incomplete name, rubrics for a model that cannot judge
            by one criterion, or a `judge.group` for one that does not compare responses.
        ModelError: A folder, Hub id or endpoint that cannot be used.
    """
    request = LoadRequest(
        judge if isinstance(judge, JudgeSettings) else JudgeSettings.resolve(overrides=judge),
        remote if isinstance(remote, Remote) else Remote.resolve(overrides=remote),
        compress if isinstance(compress, Compress) else Compress.resolve(overrides=compress),
        key,
        on_usage,
    )
    judge, local = request.judge, local_models(model)
    if (judge.device, judge.dtype) != ("auto", "auto") and not local:
        raise ConfigError(
            f"{model} does not run on this machine, so --device and --dtype (judge.device, judge.dtype) do not apply"
        )
    # A member of an ensemble may have several labels where others have none.
    if judge.weights and not any(kind_of(name) == "discriminative" for name in local):
        raise ConfigError(
            f"--weights (judge.weights) requires a model with more than one label, which {model} is not"
        )
    with importing(f"the model {model}"):
        loaded = request.load(model)
    if judge.solve and not loaded.solves:
        raise ConfigError(f"judge.solve requires a generative reward model, which {loaded.name} is not")
    if judge.rubrics is not None:
        from longrm.reward_models.wrappers import RubricRewardModel

        loaded = RubricRewardModel(loaded, judge.rubrics)
    if judge.group != "listwise":
        from longrm.reward_models.groups import GroupRewardModel

        loaded = GroupRewardModel(loaded, judge.group)
    return loaded


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
