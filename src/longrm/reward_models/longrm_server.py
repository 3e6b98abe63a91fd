"""A reward model served by `longrm serve`, in another process or on another machine."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longrm.clients.endpoint import BudgetSpent, Endpoint, RequestFailed, RequestRejected, run_async
from longrm.clients.remote_settings import Remote
from longrm.errors import ModelError, RunError
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query, Scale, message_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ADVICE = "is this the address of `longrm serve`, such as http://127.0.0.1:8000?"
# How the server reports a model that answered without a verdict; written by `_failure` in serving/worker.py.
_NO_VERDICT = re.compile(r"\((unparsed|refused|truncated)\)$")


class _Body(BaseModel):
    model_config = ConfigDict(strict=True)


class _Info(_Body):
    model: str
    scale: Scale
    provenance: dict[str, str] = {}


class _Usage(_Body):
    prompt_tokens: int = Field(ge=0)
    cached_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class _Cut(_Body):
    policy: str
    tokens: int = Field(ge=0)


class _Error(_Body):
    type: str
    message: str


class _Answer(_Body):
    scores: list[float | None]
    usage: _Usage
    explanation: str = ""
    cut: _Cut | None = None
    error: _Error | None = None


class _Refusal(_Body):
    error: _Error


_Expected = TypeVar("_Expected", bound=_Body)


class LongrmServer(RewardModel):
    """Sends every query to `POST /v1/scores`, several at a time.

    How the model is asked is up to the server: it averages over orders if the model sees the order of responses, and
    caches prefixes.

    Args:
        url: The server's URL.
        settings: How requests are sent.
        judge: `cut` is sent with each request; all other settings are the server's.

    Raises:
        ConfigError: The URL or the key cannot be used.
        ModelError: The server cannot be reached, rejects the key, or is not `longrm serve`.
    """

    def __init__(self, url: str, settings: Remote, judge: JudgeSettings) -> None:
        self.name = f"longrm:{url}"
        self._settings, self._cut = settings, judge.cut
        self._tokens = 0
        self._endpoint = Endpoint(
            url,
            "/v1/scores",
            settings,
            lambda body: _parsed(_Answer, body),
            root="",
            within_budget=self._within_budget,
            advice=_ADVICE,
        )
        info = run_async(lambda: _info(url, settings))
        self.scale = info.scale
        self.provenance = {**info.provenance, "served_name": info.model}

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Sends all queries.

        Raises:
            ModelError: The server cannot be reached, or refuses every request.
            RunError: The budget of `remote` is spent, or the server was lost.
        """
        return run_async(lambda: self._judge(queries))

    async def _judge(self, queries: Sequence[Query]) -> list[Judgment]:
        free, done = asyncio.Semaphore(self._settings.concurrency), 0

        async def ask(client: "AsyncOpenAI", query: Query) -> Judgment:
            nonlocal done
            async with free:
                judgment = await self._ask(client, query)
            done += 1
            self.on_progress(done / len(queries))
            return judgment

        try:
            async with self._endpoint.open() as client, asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(client, query)) for query in queries]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, client: "AsyncOpenAI", query: Query) -> Judgment:
        body = {"prompt": query.prompt, "responses": query.responses, "explanations": True}
        if query.tools:
            body["tools"] = query.tools
        if self._cut != "refuse" and len(query.context) == 1:  # the route takes one piece of text
            (span,) = query.context
            context = message_text(query.prompt[span.message])[span.start : span.end]
            body |= {"cut": self._cut, "context": context}
        try:
            answer = await self._endpoint.ask(client, json.dumps(body, default=dict).encode())
        except RequestFailed as failure:
            return Judgment(Outcome.ERROR, detail=str(failure))
        except RequestRejected as rejection:
            try:
                error = _Refusal.model_validate_json(rejection.body).error
            except ValidationError:
                error = _Error(
                    type="unknown", message=f"the server answered {rejection.status}: {rejection.text}"
                )
            return self._unscored(error.type, error.message)
        except BudgetSpent:
            raise RunError(
                f"the budget is spent: {self._endpoint.requests} requests and {self._tokens} tokens "
                "(remote.max_requests, remote.max_total_tokens)"
            ) from None
        if len(answer.scores) != len(query.responses):
            detail = (
                f"the server's answer has {len(answer.scores)} scores for {len(query.responses)} responses"
            )
            return Judgment(Outcome.ERROR, detail=detail)
        self._tokens += answer.usage.total_tokens
        scores = tuple(score for score in answer.scores if score is not None)
        if len(scores) < len(answer.scores):
            error = answer.error or _Error(type="unscored", message="a response has no score")
            return self._unscored(error.type, error.message)
        return Judgment(
            Outcome.ANSWERED,
            scores,
            explanation=answer.explanation,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            cut=None if answer.cut is None else Cut(answer.cut.policy, answer.cut.tokens),
        )

    def _within_budget(self) -> bool:
        requests, tokens = self._settings.max_requests, self._settings.max_total_tokens
        return (requests is None or self._endpoint.requests < requests) and (
            tokens is None or self._tokens < tokens
        )

    def _unscored(self, kind: str, message: str) -> Judgment:
        detail = self._endpoint.redact(message)
        if kind in ("too_long", "too_large"):
            return Judgment(Outcome.TOO_LONG, detail=detail)
        if kind != "unscored" or "could not be asked" in message:
            return Judgment(Outcome.ERROR, detail=detail)
        verdict = _NO_VERDICT.search(message)
        return Judgment(Outcome(verdict[1]) if verdict else Outcome.UNPARSED, detail=detail)


async def _info(url: str, settings: Remote) -> _Info:
    endpoint = Endpoint(url, "/info", settings, lambda body: _parsed(_Info, body), root="", advice=_ADVICE)
    async with endpoint.open() as client:
        try:
            return await endpoint.ask(client)
        except (RequestFailed, RequestRejected) as error:
            raise ModelError(f"{endpoint.url}: {endpoint.redact(str(error))}; {_ADVICE}") from None


def _parsed(kind: type[_Expected], body: bytes) -> _Expected:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"the server's answer is not that of longrm serve (field '{place}')") from None


def load_longrm_server(url: str, request: LoadRequest) -> LongrmServer:
    """Loads `longrm:URL`. The key is in LONGRM_API_KEY, unless `remote.api_key_env` names another variable."""
    remote = request.remote
    if "api_key_env" not in remote.model_fields_set:
        remote = remote.model_copy(update={"api_key_env": "LONGRM_API_KEY"})
    return LongrmServer(url, remote, request.judge)
