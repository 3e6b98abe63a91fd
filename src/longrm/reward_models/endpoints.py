"""Reward models behind HTTP: `longrm serve`, and endpoints that return log-probabilities."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from longrm.clients import Completion, Echo, Request
from longrm.clients.endpoint import Ask, Endpoint, RequestFailed, RequestRejected
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import CHAT, COMPLETIONS, Remote, split_address
from longrm.data.joining import Encoded, encode, token_ids
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, DataError, ModelError
from longrm.judging import (
    TOKEN_FORMATS,
    TOKEN_STEP_FORMATS,
    ParsedVerdict,
    TokenFormat,
    load_formats,
    prompt_provenance,
    too_long,
    truncate_context,
)
from longrm.reward_models.generative import WORST_FIRST, Conversation, GenerativeRewardModel
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import DEFAULT_MODEL, JudgeSettings, LoadRequest, ModelSettings
from longrm.types import Cut, Judgment, Outcome, Query, Scale, message_text


def connect(address: str, request: LoadRequest, path: str = CHAT) -> tuple[OpenAIClient, Tokenizer | None]:
    """A client of the endpoint `URL#NAME`, and the model's tokenizer if `remote.tokenizer` is set."""
    url, name = split_address(address)
    remote, limit = request.remote, request.model_args.max_length
    tokenizer = Tokenizer.load(remote.tokenizer) if remote.tokenizer else None
    count = None if tokenizer is None else lambda messages: len(tokenizer.generation_ids(messages))
    client = OpenAIClient(url, name, remote, limit=limit, count=count, on_usage=request.on_usage, path=path)
    return client, tokenizer


# ---- Probability of one token ----

_TOP_LOGPROBS = 20  # the most that OpenAI returns, and vLLM by default
_NEGLIGIBLE = 1e-3  # with it a score is off only where it is clear


class TokenEndpoint(GenerativeRewardModel):
    """Judges by the log-probabilities of a format's tokens as the first token of the answer.

    If the model's tokenizer is known, a server that supports it (vLLM) returns exactly these tokens. Other servers
    return the 20 most likely ones, of which the most likely match counts, white space aside. A token that is not among
    them is at most as likely as the last one: below 0.1% of those found it counts as that likely, else the outcome is
    `unparsed`.
    """

    writes = False

    def __init__(
        self,
        client: OpenAIClient,
        settings: JudgeSettings,
        model_args: ModelSettings = DEFAULT_MODEL,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        one_token = settings.model_copy(
            update={"max_tokens": 1, "retries": 0, "temperature": 0.0, "name": None}
        )
        super().__init__(client, one_token, model_args, tokenizer=tokenizer)
        self.name = f"tokens:{client.name}"
        formats = load_formats(
            TOKEN_FORMATS | TOKEN_STEP_FORMATS, settings.format, settings.template, settings.tokens
        )
        self._formats, self.scale = formats, "logit"
        self.provenance = prompt_provenance(formats)
        self._ids: dict[str, int] = {}
        if tokenizer is not None:
            tokens = max((format.tokens for format in formats.values()), key=len)
            with suppress(DataError):  # some are not single tokens there
                self._ids = dict(zip(tokens, token_ids(tokenizer, tokens)[1], strict=True))

    def _request(self, one: Conversation, attempt: int) -> Request:
        ids = tuple(self._ids[token] for token in _tokens(one)) if self._ids else ()
        return replace(super()._request(one, attempt), top=_TOP_LOGPROBS, ids=ids)

    def _read(self, one: Conversation, completion: Completion) -> bool:
        counted = completion.prompt_tokens
        one.prompt_tokens = self._writer.tokens(one.messages) if counted is None else counted
        one.attempts, one.outcome, one.detail = 1, completion.outcome, completion.detail
        if completion.outcome not in (Outcome.ANSWERED, Outcome.TRUNCATED):
            return False
        if completion.logprobs is None:
            raise ModelError(
                f"{self.name}: the server returns no log-probabilities (logprobs, top_logprobs); use --model "
                f"{self._writer.name}, or serve the model by vLLM, SGLang or llama.cpp"
            )
        assert isinstance(one.format, TokenFormat)
        tokens, returned = _tokens(one), completion.logprobs
        found = {token: value for token in tokens if (value := self._logprob(token, returned)) is not None}
        missing = ", ".join(repr(token) for token in tokens if token not in found)
        least = min((value for _, value in returned if math.isfinite(value)), default=-math.inf)
        likely = sum(map(math.exp, found.values()))
        if missing and not (likely > 0 and math.exp(least) < _NEGLIGIBLE * likely):
            one.outcome = Outcome.UNPARSED
            one.detail = f"not among the {len(returned)} most likely tokens: {missing}" + (
                f"; the most likely is {returned[0][0]!r}" if returned else ""
            )
            if not self._ids:
                one.detail += "; with remote.tokenizer, vLLM returns any token"
            return False
        row = [found.get(token, least) for token in tokens]
        one.texts.append(one.format.explain(row) + (f"; at most: {missing}" if missing else ""))
        one.verdict = ParsedVerdict(one.format.scores([row], len(one.query.responses)))
        return False

    def _logprob(self, token: str, returned: Sequence[tuple[str, float]]) -> float | None:
        """A token's log-probability: of exactly that token if its id is known, else of the most likely match."""
        own = self._ids and self.tokenizer and self.tokenizer.decode([self._ids[token]])
        exact = [value for text, value in returned if text == own]
        return max(
            exact or (value for text, value in returned if text.strip() == token.strip()), default=None
        )


def _tokens(one: Conversation) -> tuple[str, ...]:
    """The tokens that a prompt asks for."""
    assert isinstance(one.format, TokenFormat)
    return one.format.tokens if one.format.pointwise else one.format.tokens[: len(one.query.responses)]


# ---- Likelihood ----


class LikelihoodEndpoint(RewardModel):
    """The log-probability of each response given the prompt, over the same tokens as `LikelihoodRewardModel`.

    The server returns it for a text sent to `/completions` with `echo` and `logprobs`, as vLLM does. The text is
    rendered by the chat template of `remote.tokenizer`, and the server must tokenize it into the same number of tokens.
    `model_args.max_length` is the server's context window.
    """

    tokenizer: Tokenizer

    def __init__(self, address: str, request: LoadRequest) -> None:
        self._client, tokenizer = connect(address, request, COMPLETIONS)
        self._settings = request.model_args
        if tokenizer is None or tokenizer.chat_template is None:
            raise ConfigError(
                f"likelihood:{self._client.name} requires the server's tokenizer with its chat template: --set "
                'remote.tokenizer=FOLDER, or longrm.load(MODEL, remote={"tokenizer": FOLDER})'
            )
        if self._settings.cut != "refuse" and self._settings.max_length is None:
            raise ConfigError(
                f'model_args.cut = "{self._settings.cut}" requires model_args.max_length, the context window of '
                f"{self._client.name}"
            )
        self.tokenizer, self.limit = tokenizer, self._settings.max_length
        self.name = f"likelihood:{self._client.name}"
        self.scale = "none" if self._settings.likelihood == "mean" else "logit"

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Sends all responses of all queries, each with its prompt: vLLM reads it every time (see docs/judging.md)."""
        opened = [self._open(query) for query in queries]
        echoes = [echo for one in opened if not isinstance(one, Judgment) for echo in one[1]]
        self._client.on_progress = self.on_progress
        completions = iter(self._client.generate(echoes))
        return [
            one if isinstance(one, Judgment) else self._judgment(*one, [next(completions) for _ in one[1]])
            for one in opened
        ]

    def _open(self, query: Query) -> tuple[Encoded, list[Echo], Cut | None] | Judgment:
        """The token ids of a query, one request for each response, and what was cut to make it fit."""
        limit, policy = self.limit, self._settings.cut
        try:
            item, cut = self._encode(query), None
            if limit is not None and item.longest > limit:
                fitted = truncate_context(
                    query, lambda one: self._encode(one).longest, limit, self.tokenizer, policy
                )
                if fitted is None:
                    return too_long(query, policy, item.longest, limit, len(item.prompt))
                query, cut = fitted
                item = self._encode(query)
            opening, texts = self.tokenizer.continuations(query.prompt, query.responses, query.tools)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        # `written` counts from the end of each response, and the server is asked for the last tokens of the text: from
        # the first one that counts.
        echoes = [
            Echo(opening + text, len(item.prompt) + len(response), -written[0])
            for text, response, written in zip(texts, item.responses, item.completion_tokens, strict=True)
        ]
        return item, echoes, cut

    def _encode(self, query: Query) -> Encoded:
        return encode(self.tokenizer, query.prompt, query.responses, query.tools, completion_tokens=True)

    def _judgment(
        self, item: Encoded, echoes: Sequence[Echo], cut: Cut | None, completions: Sequence[Completion]
    ) -> Judgment:
        tokens = len(item.prompt)
        failed = [one for one in completions if one.outcome is not Outcome.ANSWERED]
        if failed:
            worst = min(failed, key=lambda one: WORST_FIRST.index(one.outcome))
            return Judgment(worst.outcome, detail=worst.detail, prompt_tokens=tokens, cut=cut)
        scores = []
        for completion, written in zip(completions, item.completion_tokens, strict=True):
            if completion.logprobs is None:
                raise ModelError(
                    f"{self.name}: the server returns no log-probabilities of a text (completions with echo and "
                    "logprobs); serve the model by vLLM, or use its folder: likelihood:MODEL"
                )
            total = math.fsum(completion.logprobs[place][1] for place in written)
            scores.append(total / len(written) if self._settings.likelihood == "mean" else total)
        return Judgment(Outcome.ANSWERED, tuple(scores), prompt_tokens=tokens, cut=cut)


# ---- longrm serve ----

_ADVICE = "is this the address of `longrm serve`, such as http://127.0.0.1:8000?"
# How the server reports a model that answered without a verdict; written by `_failure` in serving/worker.py.
_NO_VERDICT = re.compile(r"\((unparsed|refused|truncated)\)$")


class _Info(BaseModel):
    model: str
    scale: Scale
    provenance: dict[str, str] = {}


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    cached_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class _Cut(BaseModel):
    policy: str
    tokens: int = Field(ge=0)


class _Error(BaseModel):
    type: str
    message: str


class _Rejection(BaseModel):
    error: _Error


class _Answer(BaseModel):
    scores: list[float | None]
    usage: _Usage
    explanation: str = ""
    cut: _Cut | None = None
    error: _Error | None = None


_Expected = TypeVar("_Expected", bound=BaseModel)


class LongrmServer(RewardModel):
    """Sends queries to `POST /v1/scores`. The server averages over orders; of `ModelSettings` only `cut` is sent."""

    def __init__(self, url: str, settings: Remote, model_args: ModelSettings) -> None:
        self.name = f"longrm:{url}"
        self._cut = model_args.cut
        self._endpoint = Endpoint(url, "/v1/scores", settings, _parser(_Answer), root="", advice=_ADVICE)
        info_endpoint = Endpoint(url, "/info", settings, _parser(_Info), root="", advice=_ADVICE)
        try:
            (info,) = info_endpoint.map([None], lambda ask, _: ask(None))
        except (RequestFailed, RequestRejected) as error:
            problem = info_endpoint.redact(str(error))
            raise ModelError(f"{info_endpoint.url}: {problem}; {_ADVICE}") from None
        self.scale = info.scale
        self.provenance = {**info.provenance, "served_name": info.model}

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Sends all queries."""
        return self._endpoint.map(queries, self._ask, self.on_progress)

    async def _ask(self, ask: Ask[_Answer], query: Query) -> Judgment:
        body = {"prompt": query.prompt, "responses": query.responses, "explanations": True}
        if query.tools:
            body["tools"] = query.tools
        if self._cut != "refuse" and len(query.context) == 1:  # the route accepts one piece of text
            (span,) = query.context
            context = message_text(query.prompt[span.message])[span.start : span.end]
            body |= {"cut": self._cut, "context": context}
        try:
            answer = await ask(json.dumps(body, default=dict).encode())
        except RequestFailed as failure:
            return Judgment(Outcome.ERROR, detail=str(failure))
        except RequestRejected as rejection:
            try:
                error = _Rejection.model_validate_json(rejection.body, strict=True).error
            except ValidationError:
                detail = f"the server answered {rejection.status}: {rejection.text}"
                error = _Error(type="unknown", message=detail)
            return self._unscored(error)
        count = len(answer.scores)
        if count != len(query.responses):
            detail = f"the server's answer has {count} scores for {len(query.responses)} responses"
            return Judgment(Outcome.ERROR, detail=detail)
        self._endpoint.tokens += answer.usage.total_tokens
        scores = tuple(score for score in answer.scores if score is not None)
        if len(scores) < count:
            return self._unscored(answer.error or _Error(type="unscored", message="a response has no score"))
        return Judgment(
            Outcome.ANSWERED,
            scores,
            explanation=answer.explanation,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            cut=None if answer.cut is None else Cut(answer.cut.policy, answer.cut.tokens),
        )

    def _unscored(self, error: _Error) -> Judgment:
        outcome = Outcome.UNPARSED
        if error.type in ("too_long", "too_large"):
            outcome = Outcome.TOO_LONG
        elif error.type != "unscored" or "could not be asked" in error.message:
            outcome = Outcome.ERROR
        elif verdict := _NO_VERDICT.search(error.message):
            outcome = Outcome(verdict[1])
        return Judgment(outcome, detail=self._endpoint.redact(error.message))


def _parser(kind: type[_Expected]) -> Callable[[bytes], _Expected]:
    def parse(body: bytes) -> _Expected:
        try:
            return kind.model_validate_json(body, strict=True)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise ValueError(f"the server's answer is not that of longrm serve (field '{place}')") from None

    return parse
