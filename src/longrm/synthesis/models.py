"""The models that a pipeline asks: settings, how they are reached, and what they cost."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from longrm.clients import Completion, Request, Writer
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import ModelName, Remote, ServerUrl, split_address
from longrm.config import OPERATIONAL, Config, IdentifiedBy
from longrm.errors import ConfigError
from longrm.reward_models.kinds import split_kind
from longrm.reward_models.simulated import ErrorRates
from longrm.runs.folder import CACHE
from longrm.runs.logs import Log
from longrm.synthesis.model_requests import AsyncModel, BatchedCalls
from longrm.synthesis.simulated_model import GoldAnswers, SimulatedModel

SPENDING = "spending.jsonl"
_MILLION = 1e6


class Price(Config):
    """What a model costs.

    Attributes:
        prompt: For a million tokens read.
        completion: For a million tokens written.
    """

    prompt: float = Field(0.0, ge=0)
    completion: float = Field(0.0, ge=0)


def _served(model: str) -> str:
    """What an endpoint serves, wherever it lies; other models as they are."""
    return f"openai:#{model.rpartition('#')[2]}" if model.startswith("openai:") else model


class AskedModel(Config):
    """A model that is asked.

    Attributes:
        model: `openai:URL#NAME` for an OpenAI-compatible endpoint, a folder or Hub id of a causal language model, or
            `simulated:RATES`, which knows the gold answers and errs at stated rates, such as `simulated:0.1` or
            `simulated:error=0.1,misformat=0.05,disagreement=0.1,per_doubling=0.02`.
        name: What rows and manifest call it; by default what stands in `model`, without the URL.
        replica_urls: More URLs behind which the same model is served; requests are spread over all by their content,
            and the budgets of `remote` hold for each.
        remote: How an endpoint is reached. Answers are kept in the run folder unless `remote.cache` names a file.
        price: What an endpoint costs, in the currency that you think in.
    """

    model: Annotated[ModelName, IdentifiedBy(_served)]
    name: str = ""
    replica_urls: Annotated[tuple[ServerUrl, ...], OPERATIONAL] = ()
    remote: Remote = Remote()
    price: Annotated[Price, OPERATIONAL] = Price()

    @property
    def called(self) -> str:
        """What rows and manifest call it."""
        if self.name:
            return self.name
        return self.model.rpartition("#")[2] if self.model.startswith("openai:") else self.model


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """One answer that was paid for, a line of `spending.jsonl`; answers from the cache are in none.

    Tokens are None where the server does not say.
    """

    model: str
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass
class ModelAccount:
    """What one model was asked and cost, in all processes of a run: only answers that were paid for count."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class Spending:
    """Adds up what the models of a run cost. Make it with `open_models`."""

    def __init__(self, log: Log[PaidAnswer], prices: Mapping[str, Price]) -> None:
        self._log, self._prices = log, prices
        self._lock = threading.Lock()
        self.accounts = {name: ModelAccount() for name in prices}
        for paid in log:
            self._add(paid)

    def pay(self, model: str, completion: Completion) -> None:
        """Notes an answer; may be called from any thread."""
        paid = PaidAnswer(model, completion.prompt_tokens, completion.completion_tokens)
        with self._lock:
            self._log.append(paid)
            self._add(paid)

    def note(self) -> str:
        """What was spent, in a few words; nothing where no endpoint was asked."""
        with self._lock:
            accounts = [*self.accounts.values()]
        answers = sum(account.answers for account in accounts)
        tokens = sum(account.prompt_tokens + account.completion_tokens for account in accounts)
        cost = sum(account.cost for account in accounts)
        parts = [f"{answers:,} answers", f"{tokens:,} tokens", *([f"{cost:.2f} spent"] if cost else [])]
        return ", ".join(parts) if answers else ""

    def to_dict(self) -> dict[str, Any]:
        """As the manifest has it, by model."""
        return {
            name: asdict(account) | {"cost": round(account.cost, 6)}
            for name, account in self.accounts.items()
            if account.answers
        }

    def _add(self, paid: PaidAnswer) -> None:
        account = self.accounts.setdefault(paid.model, ModelAccount())
        price = self._prices.get(paid.model, Price())
        read, written = paid.prompt_tokens or 0, paid.completion_tokens or 0
        account.answers += 1
        account.prompt_tokens += read
        account.completion_tokens += written
        account.cost += (read * price.prompt + written * price.completion) / _MILLION


class ServedModel:
    """A model behind one or several writers, which block: each is asked in a thread of its own."""

    def __init__(self, name: str, writers: Sequence[Writer]) -> None:
        self.name = name
        self._writers = writers
        self._batched = BatchedCalls(self._write)

    async def ask(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers every request alone, in the same order; equal ones are asked once."""
        return await self._batched(requests) if requests else []

    async def _write(self, requests: Sequence[Request]) -> list[Completion]:
        keys = [_key(request) for request in requests]
        by_writer: list[dict[bytes, Request]] = [{} for _ in self._writers]
        for key, request in zip(keys, requests, strict=True):
            by_writer[int.from_bytes(key, "big") % len(by_writer)][key] = request
        shares = [(writer, own) for writer, own in zip(self._writers, by_writer, strict=True) if own]
        answered = await asyncio.gather(
            *(asyncio.to_thread(writer.write, [*own.values()]) for writer, own in shares)
        )
        found = {
            key: answer
            for (_, own), answers in zip(shares, answered, strict=True)
            for key, answer in zip(own, answers, strict=True)
        }
        return [found[key] for key in keys]


@contextmanager
def open_models(
    models: Sequence[AskedModel], folder: Path, *, answers: GoldAnswers, seed: int
) -> Iterator[tuple[list[AsyncModel], Spending]]:
    """Opens models for a run, in their order, and the account of what they cost.

    Raises:
        ConfigError: Two models have one name, or a model's settings are at odds.
        ModelError: A local model cannot be loaded.
    """
    names = [model.called for model in models]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ConfigError(f"two models are called '{doubled}'; give one of them another `name`")
    with Log(folder / SPENDING, PaidAnswer) as log:
        spending = Spending(log, {model.called: model.price for model in models})
        yield [_open(model, folder, spending, answers, seed) for model in models], spending


def _key(request: Request) -> bytes:
    """Tells requests apart by all that a model reads of them."""
    content = {part.name: getattr(request, part.name) for part in fields(Request)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()


def _open(model: AskedModel, folder: Path, spending: Spending, answers: GoldAnswers, seed: int) -> AsyncModel:
    kind, _, rest = model.model.partition(":")
    if model.replica_urls and kind != "openai":
        raise ConfigError(f"'{model.model}' has no other URLs: `replica_urls` goes with openai:URL#NAME")
    if kind == "simulated":
        return SimulatedModel(ErrorRates.parse(rest), model.called, seed, answers)
    if kind == "openai":
        (url, name), remote = split_address(rest), model.remote
        if remote.cache is None:
            remote = remote.model_copy(update={"cache": str(folder / CACHE)})
        pay = partial(spending.pay, model.called)
        clients = [
            OpenAIClient(each, name, remote, on_usage=pay, cached_as=url)
            for each in (url, *model.replica_urls)
        ]
        return ServedModel(model.called, clients)
    if split_kind(model.model)[0] is not None:
        raise ConfigError(
            f"'{model.model}' cannot write: name openai:URL#NAME (an endpoint), or the folder or Hub id of a causal "
            "language model"
        )
    from longrm.modeling.local_writer import LocalWriter  # imported late: all else works without torch

    return ServedModel(model.called, [LocalWriter.load(model.model)])
