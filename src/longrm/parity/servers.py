"""How servers are asked for one score: one entry a kind of server.

Tokens are sent as ids where a server takes them, so that neither a template nor BOS can differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longrm.clients.completions import valid_token_count
from longrm.errors import ConfigError, nearest
from longrm.types import Message, Response


@dataclass(frozen=True, slots=True)
class AskedText:
    """One prompt with one response, as text and as the tokens that we read.

    Attributes:
        prompt: The prompt's messages.
        response: The response's messages.
        ids: The token ids of both.
    """

    prompt: Sequence[Message]
    response: Response
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ServedScore:
    """What a server answers.

    Attributes:
        scores: Numbers for the text: one, of a model with one label. NaN where it gave null.
        tokens: How many tokens it says that it has read; None where it does not say.
        cached: How many of them it says that it had kept; likewise.
    """

    scores: tuple[float, ...]
    tokens: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class ServerKind:
    """An entry of `SERVERS`.

    Attributes:
        path: Where requests go.
        body: The request about a text. The second argument is a salt: a server that takes one shares what it keeps
            only with requests of the same salt.
        read: The answer in a parsed body; `KeyError`, `IndexError`, `TypeError` or `ValueError` where it holds none.
    """

    path: str
    body: Callable[[AskedText, str], dict[str, Any]]
    read: Callable[[Any], ServedScore]


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError("no list of numbers")
    if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values):
        raise ValueError("no numbers")
    return tuple(float("nan") if value is None else float(value) for value in values)


def _only(items: Any) -> Any:
    (item,) = items
    return item


def _count(usage: Any, *names: str) -> int | None:
    for name in names:
        usage = usage.get(name) if isinstance(usage, Mapping) else None
    return valid_token_count(usage)


def _read_longrm(answer: Any) -> ServedScore:
    usage = answer.get("usage")
    return ServedScore(
        (_only(_numbers(answer["scores"])),), _count(usage, "total_tokens"), _count(usage, "cached_tokens")
    )


def _read_vllm(answer: Any) -> ServedScore:
    usage = answer.get("usage")
    cached = _count(usage, "prompt_tokens_details", "cached_tokens")
    return ServedScore(_numbers(_only(answer["data"])["probs"]), _count(usage, "prompt_tokens"), cached)


def _read_sglang(answer: Any) -> ServedScore:
    one = _only(answer)
    about = one.get("meta_info")
    return ServedScore(
        _numbers(one["embedding"]), _count(about, "prompt_tokens"), _count(about, "cached_tokens")
    )


SERVERS: Mapping[str, ServerKind] = {
    "longrm": ServerKind(
        "/v1/scores",
        lambda text, salt: {
            "prompt": [dict(message) for message in text.prompt],
            "responses": [[dict(message) for message in text.response]],
            "cache_salt": salt,
        },
        _read_longrm,
    ),
    "vllm": ServerKind(
        "/classify",
        lambda text, salt: {
            "input": list(text.ids),
            "use_activation": False,
            "add_special_tokens": False,
            "cache_salt": salt,
        },
        _read_vllm,
    ),
    "sglang": ServerKind("/classify", lambda text, _: {"input_ids": [list(text.ids)]}, _read_sglang),
}
"""The registry of servers, in the order in which they are tried: a new one is one entry."""


def known_server(name: str) -> str:
    """The name itself; raises `ConfigError` where no server has it."""
    if name not in SERVERS:
        raise ConfigError(f"there is no kind of server '{name}'; {nearest(name, SERVERS)}")
    return name
