"""Local models that read all responses over one encoded prompt, with several queries packed into one forward pass.

`PackedRewardModel` tokenizes, batches and caches. Its subclasses choose the tokens and compute numbers at them: a score
by a scalar head (`DiscriminativeRewardModel`), the likelihood of a response (`LikelihoodRewardModel`), or the
probability of one token (`TokenRewardModel`).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery, encode, encode_steps, token_ids
from longrm.data.tokenizing import Tokenizer, UnknownTokens
from longrm.errors import ConfigError, DataError, ModelError
from longrm.judging import (
    TOKEN_FORMATS,
    TOKEN_STEP_FORMATS,
    TruncationSide,
    format_for,
    load_formats,
    prompt_provenance,
    too_long,
    truncate_context,
)
from longrm.modeling.device_memory import cache_bytes, concerns_one_query
from longrm.modeling.heads import last_layer
from longrm.modeling.loading import LanguageModel, LoadedModel, Scorer, load_scorer
from longrm.modeling.prefix_cache import BLOCK, PrefixCache, block_keys
from longrm.modeling.shapes import TokenTree, build_trees, within_budget
from longrm.modeling.shared_prefix import (
    Packed,
    TransformersModel,
    check_embedded,
    evaluation_mode,
    next_logprobs,
    pack,
    response_logprobs,
    scored_states,
    scores,
)
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import DEFAULT_JUDGE, DEFAULT_MODEL, JudgeSettings, ModelSettings
from longrm.types import Cut, Judgment, Outcome, Query, Scale

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384

# The limit for `choose` on a CPU, which gains nothing from larger batches, while other requests wait.
_TOKENS_PER_FORWARD_CPU = 2048

Row = tuple[float, ...]
"""The numbers that the model computes for one branch."""

_Branch = tuple[Row | None, int]
"""The row of a branch, None if out of memory, and how many tokens of its prompt were in the prefix cache."""


@dataclass(frozen=True, slots=True)
class OpenedQuery:
    """A tokenized query."""

    query: Query  # before any cut
    items: Sequence[Encoded]  # prompts, each with its branches
    cut: Cut | None = None
    # The cache keys of each prompt's blocks; empty without a prefix cache.
    keys: Sequence[Sequence[bytes]] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: a prompt and its longest branch."""
        return max(item.longest for item in self.items)

    @property
    def size(self) -> int:
        """Tokens of all prompts and branches."""
        return sum(item.size for item in self.items)


class PackedRewardModel(RewardModel):
    """A transformers model that reads several responses, or several questions, over one shared prefix.

    Its results depend on neither the batch nor padding, except for rounding. `judge` opens queries (renders, tokenizes,
    cuts) and reads them in packed forward passes; a server calls `open`, `choose` and `read` itself. `cut`
    and `max_length` of `ModelSettings` apply to all subclasses. The model's attention is `longrm_shared_prefix`.
    """

    limit: int
    tokenizer: Tokenizer

    def __init__(self, loaded: LoadedModel, name: str, settings: ModelSettings = DEFAULT_MODEL) -> None:
        self.name = name
        self.provenance = loaded.provenance
        self.tokenizer = loaded.tokenizer
        self._model = loaded.model
        # All models that read the same tokens, whose prefixes are cached together.
        self._models: list[TransformersModel] = [loaded.model]
        self._policy = settings.cut
        reads = int(loaded.model.config.max_position_embeddings)
        self.limit = reads if settings.max_length is None else min(settings.max_length, reads)
        self._unknown = UnknownTokens(loaded.tokenizer, name)

    def keep_prefixes(self, budget: int | None = None) -> None:
        """Caches the keys, values and states of prompts from now on, in `budget` bytes of memory.

        The default is half of a GPU's free memory, as forward passes need some too, and 1 GiB elsewhere.
        Scores change by rounding only: in fp32 by less than 5e-5 of max(1, their size).
        """
        self.prefix_cache = PrefixCache(self._models, cache_bytes(self._model) if budget is None else budget)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Reads all queries; neighbors with the same context share its encoding."""
        opened = [self.open(query) for query in queries]
        judged = iter(self.read([one for one in opened if isinstance(one, OpenedQuery)]))
        return [one if isinstance(one, Judgment) else next(judged) for one in opened]

    @abstractmethod
    def _encode(self, query: Query) -> Sequence[Encoded]:
        """The token ids of a query: prompts, each with its branches. `DataError` if it cannot be rendered."""

    @abstractmethod
    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches values"]:
        """Runs one forward pass over packed items; returns the same number of values for every branch."""

    def _verdict(self, query: Query, rows: Sequence[Row]) -> tuple[Row, str]:
        """The scores of a query's responses and an explanation, from the rows of all of its branches."""
        return tuple(row[0] for row in rows), ""

    def _prompt_tokens(self, items: Sequence[Encoded]) -> int:
        """Tokens of the longest prompt."""
        return max(len(item.prompt) for item in items)

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        """The token ids of a query whose client sends token ids; errors as in `_encode`."""
        return [query.encoded]

    def _items(self, query: Query) -> Sequence[Encoded]:
        return self._given(query) if isinstance(query, TokenQuery) else self._encode(query)

    def open(self, query: Query, cut: TruncationSide | None = None, salt: str = "") -> OpenedQuery | Judgment:
        """Tokenizes a query and cuts it if needed; returns a judgment if it cannot be read.

        `cut` replaces `model_args.cut`. Cached prefixes are shared only between queries with the same `salt`.
        """
        policy = self._policy if cut is None else cut
        try:
            opened = OpenedQuery(query, self._items(query))
            self._unknown.check(ids for item in opened.items for ids in (item.prompt, *item.responses))
            if opened.longest > self.limit:

                def measure(candidate: Query) -> int:
                    return OpenedQuery(candidate, self._items(candidate)).longest

                fitted = truncate_context(query, measure, self.limit, self.tokenizer, policy)
                if fitted is None:
                    tokens = self._prompt_tokens(opened.items)
                    return too_long(query, policy, opened.longest, self.limit, tokens)
                opened = OpenedQuery(query, self._items(fitted[0]), fitted[1])
            for item in opened.items:
                for ids in (item.prompt, *item.responses):
                    for model in self._models:
                        check_embedded(ids, model)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        if self.prefix_cache is None:
            return opened
        items = [replace(item, salt=salt) for item in opened.items]
        return replace(opened, items=items, keys=[block_keys(item.prompt, salt) for item in items])

    def choose(self, waiting: Sequence[OpenedQuery]) -> list[int]:
        """The indices of the queries for the next forward pass: the first one, and others that fit with it.

        Equal prompts are neighbors in the result, so that packing shares them. If two different prompts share a prefix
        that is not cached yet, only one is chosen now; the other waits until the prefix is in the cache. With recurrent
        layers it would not be a hit then, and both are one tree now.
        """
        budget = _TOKENS_PER_FORWARD_CPU if self._model.device.type == "cpu" else _TOKENS_PER_FORWARD
        recurrent = self.prefix_cache is not None and self.prefix_cache.state_bytes > 0
        chosen: list[int] = []
        # Chosen prompts by the key of their first uncached block. Keys are hashes of all tokens up to the block's end,
        # so another prompt with the same key begins alike.
        begun: dict[bytes, Sequence[int]] = {}
        for index, one in enumerate(waiting):
            size, waits, first_keys = 0, False, []
            for item, keys in zip(one.items, one.keys or [()] * len(one.items), strict=True):
                cached = 0 if self.prefix_cache is None else self.prefix_cache.usable(item.prompt, keys)
                first_keys.append(keys[cached] if cached < len(keys) else b"")
                same = begun.get(first_keys[-1])
                waits = waits or (same not in (None, item.prompt) and not recurrent)
                size += item.size - (len(item.prompt) if same == item.prompt else cached * BLOCK)
            if waits or (chosen and size > budget):
                continue
            budget -= size
            chosen.append(index)
            begun.update({key: item.prompt for key, item in zip(first_keys, one.items, strict=True) if key})
        return sorted(chosen, key=lambda index: list(waiting[index].items[0].prompt))

    def read(self, opened: Sequence[OpenedQuery]) -> list[Judgment]:
        """Judges queries that `open` has opened."""
        with evaluation_mode(self._model):
            all_branches = iter(self._rows([item for one in opened for item in one.items]))
        judgments = []
        for one in opened:
            branches = [next(all_branches) for item in one.items for _ in item.responses]
            rows = [row for row, _ in branches if row is not None]
            tokens = self._prompt_tokens(one.items)
            if len(rows) < len(branches):
                detail = (
                    f"out of memory: {one.size:,} tokens of the prompt and its {len(one.query.responses)} responses; "
                    "lower model_args.max_length, set model_args.cut, or use a larger device"
                )
                judgments.append(Judgment(Outcome.ERROR, detail=detail, prompt_tokens=tokens, cut=one.cut))
                continue
            values, explanation = self._verdict(one.query, rows)
            judgments.append(
                Judgment(
                    Outcome.ANSWERED,
                    values,
                    explanation=explanation,
                    prompt_tokens=tokens,
                    cached_tokens=min(cached for _, cached in branches),
                    cut=one.cut,
                )
            )
        return judgments

    def _rows(self, items: Sequence[Encoded]) -> list[_Branch]:
        """Reads all items in as few forward passes as their sizes allow; one result for each branch."""
        rows: list[_Branch] = []
        rest = iter(items)
        branches = sum(len(item.responses) for item in items)
        for trees in within_budget(build_trees(items), _TOKENS_PER_FORWARD):
            # Neighboring items with one prompt are one tree, so the items of these trees are found by their branches.
            together, open_branches = [], sum(len(tree.shape.leaves) for tree in trees)
            while open_branches:
                together.append(next(rest))
                open_branches -= len(together[-1].responses)
            rows += self._read_together(together, trees)
            self.on_progress(len(rows) / branches)
        return rows

    def _read_together(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[_Branch]:
        """Reads items in one forward pass, and again separately if any fails, so that only those fail that must.

        A NaN in one branch spreads to others although the mask hides it: 0 * NaN is NaN.
        """
        rows = self._forward(items, trees)
        in_memory = all(row is not None for row, _ in rows)
        if in_memory and all(math.isfinite(value) for row, _ in rows for value in row or ()):
            return rows
        parts = list(items)
        if len(parts) == 1 and in_memory:
            parts = [items[0].only([at]) for at in range(len(items[0].responses))]
        if len(parts) == 1:
            return rows
        return [row for part in parts for row in self._read_together([part], build_trees([part]))]

    @torch.inference_mode()
    def _forward(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[_Branch]:
        branches = sum(len(tree.shape.leaves) for tree in trees)
        rows: Sequence[Row | None] = [None] * branches
        cached = [0] * branches
        try:
            packed = pack(trees) if self.prefix_cache is None else self.prefix_cache.pack(trees)
            cached = [shape.cached for shape in packed.layout.trees for _ in shape.leaves]
            values = self._read(packed.to(self._model.device), items)
            rows = [tuple(row) for row in values.tolist()]
            # NaN must not reach the cache, where it would spread to later queries.
            if self.prefix_cache is not None and bool(values.isfinite().all()):
                self.prefix_cache.keep(packed)
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
        return list(zip(rows, cached, strict=True))


# ---- Scalar heads ----


class DiscriminativeRewardModel(PackedRewardModel):
    """A one-label sequence classifier, read at the last token that is not padding, as transformers does.

    Scores are raw logits of the fp32 head.
    """

    scale: Scale = "logit"
    step_threshold = 0.0

    @classmethod
    def load(cls, model: str, settings: ModelSettings = DEFAULT_MODEL) -> Self:
        """Loads a folder or Hub id."""
        scorer = load_scorer(
            model, dtype=settings.dtype, device=settings.device, weights=settings.label_weights
        )
        return cls(scorer, model, settings)

    @torch.inference_mode()
    def head_deviation(self, query: Query) -> float | None:
        """The lead of the first of two responses, in standard deviations of the lead under a random head.

        With a head w of the same norm in a random direction, the lead has mean 0 and standard deviation
        |w| |h1 - h2| / sqrt(d), where h1 and h2 are the d-dimensional hidden states that the scores are read from. For
        an MLP head, w is its second layer and h its input. None if the query cannot be read, or the two states are
        equal.
        """
        opened = self.open(query)
        if isinstance(opened, Judgment):
            return None
        states = scored_states(self._model, pack(build_trees(opened.items)).to(self._model.device)).float()
        weight, difference = last_layer(self._model.score).weight[0].float(), states[0] - states[1]
        deviation = float(weight.norm() * difference.norm()) / math.sqrt(len(weight))
        return float(weight @ difference) / deviation if deviation else None

    @property
    def scorer(self) -> Scorer:
        """The model and its tokenizer."""
        return Scorer(self._model, self.tokenizer)

    def _encode(self, query: Query) -> Sequence[Encoded]:
        if query.steps:
            return encode_steps(self.tokenizer, query)
        return [encode(self.tokenizer, query.prompt, query.responses, query.tools)]

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        return scores(self._model, packed)[:, None]


# ---- Likelihoods ----


class LikelihoodRewardModel(PackedRewardModel):
    """The log-probability of each response given the prompt, both rendered by the model's chat template.

    The score is L(y) = sum_t log p(y_t | x, y_<t), whose differences are the log-odds of generating one response rather
    than the other, or its mean over tokens (SimPO's reward without beta; Meng et al. 2024, equation 3). With a
    reference it is L(y) - L_ref(y), the implicit reward of a model trained by DPO, divided by beta (Rafailov et al.
    2023, equation 5). RewardBench uses the same formula (Lambert et al. 2024, section 4) on other tokens: it prepends
    BOS, appends EOS and includes the assistant's header.

    The tokens that count are those of preference training, here and in TRL: all that follow the prompt. These are the
    content, the token that closes the turn (without it a response would never be less likely than its continuation),
    and what the template writes around them, including an empty thought. In a trajectory the turns of the assistant
    count, and results of tools do not.

    Log-probabilities are computed in fp32, only at the tokens of the responses.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        name: str,
        settings: ModelSettings = DEFAULT_MODEL,
        reference: LanguageModel | None = None,
    ) -> None:
        super().__init__(language_model, name, settings)
        self._mean = settings.likelihood == "mean"
        self._reference = reference
        self.step_threshold = None if reference is None else 0.0
        self.scale = "none" if self._mean or reference is not None else "logit"
        if reference is None:
            return
        added = {f"reference_{key}": value for key, value in reference.provenance.items()}
        self.provenance = {**self.provenance, **added}
        self._models.append(reference.model)
        self.limit = min(self.limit, int(reference.model.config.max_position_embeddings))
        # Both models read the tokens of the trained one, with its chat template. `_encode` compares token ids, which
        # finds further differences, but not in requests that contain ids or rendered text.
        own, other = (
            one.tokenizer.backend.get_vocab(with_added_tokens=False) for one in (language_model, reference)
        )
        if own != other:
            raise self._different_tokenizers("vocabularies")
        self._reference_tokenizer = replace(self.tokenizer, backend=reference.tokenizer.backend)

    def _encode(self, query: Query) -> Sequence[Encoded]:
        def encoded(tokenizer: Tokenizer) -> list[Encoded]:
            if query.steps:
                return encode_steps(tokenizer, query)
            return [encode(tokenizer, query.prompt, query.responses, query.tools, completion_tokens=True)]

        items = encoded(self.tokenizer)
        if self._reference is not None and encoded(self._reference_tokenizer) != items:
            raise self._different_tokenizers(f"ids for '{query.id}'")
        return items

    def _different_tokenizers(self, what: str) -> ModelError:
        return ModelError(
            f"{self.name}: the tokenizers of model and reference have different {what}; the reference must be the "
            "model that training started from"
        )

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        if not query.split:
            raise DataError("the start of the response is not known; send prompt and response separately")
        return super()._given(query)

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        written = [own for item in items for own in item.completion_tokens]
        reduce = torch.mean if self._mean else torch.sum

        def likelihoods(model: TransformersModel) -> Float[Tensor, " branches"]:
            logprobs = response_logprobs(model, packed.to(model.device), written)
            return torch.stack([reduce(values) for values in logprobs])

        values = likelihoods(self._model)
        if self._reference is not None:
            values = values - likelihoods(self._reference.model).to(values.device)
        return values[:, None]


# ---- Probability of one token ----


class TokenRewardModel(PackedRewardModel):
    """Judges by the log-probabilities of a format's tokens as the first token of the answer, without generating any.

    They are read after the assistant's header and whatever the chat template writes before the content, such as an
    empty thought. Prompts that begin with the same document share its encoding: both orders of a pair, responses that
    are judged alone, and several questions about one document.
    """

    by_criterion = True
    scale: Scale = "logit"
    step_threshold = 0.0

    def __init__(
        self,
        language_model: LanguageModel,
        name: str,
        judge: JudgeSettings = DEFAULT_JUDGE,
        settings: ModelSettings = DEFAULT_MODEL,
    ) -> None:
        super().__init__(language_model, name, settings)
        self.sees_order = judge.format in (None, "pairwise", "listwise")
        self._formats = load_formats(
            TOKEN_FORMATS | TOKEN_STEP_FORMATS, judge.format, judge.template, judge.tokens
        )
        self.provenance = {**self.provenance, **prompt_provenance(self._formats)}
        # The letters of two responses are the first of those of many, so one forward pass reads all.
        self._tokens = max((format.tokens for format in self._formats.values()), key=len)
        try:
            _, self._ids = token_ids(self.tokenizer, self._tokens)
        except DataError as error:
            raise ConfigError(f"{name}: {error}") from None

    def _encode(self, query: Query) -> Sequence[Encoded]:
        items = []
        for messages in format_for(self._formats, len(query.responses)).render(query):
            before, ids = token_ids(self.tokenizer, self._tokens, messages)
            if ids != self._ids or len(before) < 2:
                raise DataError(f"'{query.id}': the token ids of the answer depend on the prompt")
            # The last token of the prompt is the branch: the next token is predicted at it.
            items.append(Encoded(before[:-1], [before[-1:]]))
        return items

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        raise DataError("this model needs messages, not rendered text")

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches values"]:
        return next_logprobs(self._model, packed, self._ids)

    def _verdict(self, query: Query, rows: Sequence[Row]) -> tuple[Row, str]:
        count = len(query.responses)
        format = format_for(self._formats, count)
        if format.pointwise:
            lines = [f"Response {number}: {format.explain(row)}" for number, row in enumerate(rows, start=1)]
            return format.scores(rows, count), "\n".join(lines)
        return format.scores(rows, count), format.explain(rows[0][:count])

    def _prompt_tokens(self, items: Sequence[Encoded]) -> int:
        return max(item.longest for item in items)
