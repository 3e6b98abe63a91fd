"""Settings of models behind HTTP: their addresses, and how requests are sent."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

import httpx2
from pydantic import AfterValidator, Field, model_validator

from longrm.config import OPERATIONAL, Config
from longrm.errors import ConfigError

CHAT, COMPLETIONS = "/chat/completions", "/completions"

# Query parameters that hold a secret; `api-version` and the like do not.
_SECRET = re.compile(
    r"(^|[-_.])(key|token|secret|password|passwd|pwd|auth|credential|sig|signature|code)s?$|apikey",
    re.IGNORECASE,
)


def endpoint_url(url: str, path: str = CHAT, root: str = "/v1") -> str:
    """The URL for requests to a path such as `/chat/completions`; `root` is inserted if the server's URL has no path.

    Raises:
        ConfigError: Not an HTTP URL, or it contains a password or key, which would be logged.
    """
    try:
        parsed = httpx2.URL(url)
        parsed.raw_host.decode().encode("idna")  # as name resolution will do
        valid = parsed.scheme in ("http", "https") and bool(parsed.host)
    except (httpx2.InvalidURL, ValueError):
        valid, parsed = False, httpx2.URL()
    if parsed.userinfo or any(_SECRET.search(field) for field in parsed.params):
        raise ConfigError(
            "the URL contains a password or key, which would be logged; use an environment variable"
        )
    if not valid or (parsed.port is not None and not 0 < parsed.port < 2**16):
        raise ConfigError(f"'{_printable(url)}' is not a server's URL such as http://127.0.0.1:8000/v1")
    base = parsed.path.rstrip("/").removesuffix(CHAT) or root
    return str(parsed.copy_with(path=f"{base}{path}"))


def split_address(address: str) -> tuple[str, str]:
    """Splits `URL#NAME` into the server's URL and the model's name.

    Raises:
        ConfigError: One of them is missing.
    """
    url, _, name = address.partition("#")
    if not url or not name:
        raise ConfigError(f"'{_printable(address)}' is not URL#NAME, such as http://127.0.0.1:8000/v1#NAME")
    return url, name


def servers_of(model: str, kind: str = "openai") -> list[str]:
    """The `URL#NAME` of every OpenAI-compatible endpoint in a model's name, such as `tokens:openai:URL#NAME`.

    With the kind "longrm", the URL of every `longrm:URL`.
    """
    return re.findall(rf"(?:^|[:+]){kind}:([^+]*)", model)


def refuse_server(model: str | None, launcher: str) -> None:
    """Raises `ConfigError` for a model behind HTTP: concurrency and budget are kept per process."""
    if model is not None and (servers_of(model) or servers_of(model, "longrm")):
        raise ConfigError(
            f"{model} is a server; one process sends it many requests at a time (remote.concurrency), so "
            f"drop {launcher}"
        )


def _printable(url: str) -> str:
    """A URL for an error message: one line, without what precedes an `@` or follows a `?`."""
    line = "".join(character for character in url if character.isprintable())
    return re.sub(r"\?.*", "?***", re.sub(r"^.*@", "***@", line))[:200]


def _check_model(model: str) -> str:
    for address in filter(None, servers_of(model)):
        endpoint_url(split_address(address)[0])
    for url in filter(None, servers_of(model, "longrm")):
        endpoint_url(url)
    return model


ModelName = Annotated[str, AfterValidator(_check_model)]
"""A setting with a model's name; the URL in `openai:URL#NAME` and the like is checked likewise."""


def _check_variable(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
        # Does not repeat the value, which may be the key itself.
        raise ConfigError(
            "api_key_env is the name of an environment variable, such as OPENAI_API_KEY, not the key"
        )
    return name


class Remote(Config):
    """How requests are sent to an OpenAI-compatible server.

    Attributes:
        concurrency: The most requests in flight.
        timeout: Seconds for one answer, from connecting to its last byte. A request that times out, or whose server
            cannot be reached any more, is retried.
        retries: How often a failed request is retried. After that its outcome is `error`.
        api_key_env: The environment variable with the API key. The key is never logged or stored: `***` replaces it in
            the server's error messages (a key of fewer than 8 characters only as a separate word).
        max_requests: The budget of requests, including retries.
        max_total_tokens: The budget of tokens, read and generated. No request starts once it is reached; requests in
            flight are completed. Answers from the cache count for neither budget.
        cache: An SQLite file that keeps the answers; by default `completions.sqlite` in the run folder. `longrm serve`
            and `longrm.load` keep none by default.
        tokenizer: The model's tokenizer (a folder, a file or a Hub id), to count tokens, to cut contexts, and for
            `likelihood:` and `tokens:`; by default the server's limit applies.
        json_schema: Ask the server for JSON with an analysis and a verdict, if the form of the verdict is known (data
            synthesis). The two are joined into one text.
        extra: More fields of the request body, such as `top_p` or `chat_template_kwargs`.
    """

    concurrency: Annotated[int, OPERATIONAL] = Field(8, ge=1)
    timeout: Annotated[float, OPERATIONAL] = Field(600.0, gt=0)
    retries: Annotated[int, OPERATIONAL] = Field(5, ge=0)
    api_key_env: Annotated[str, AfterValidator(_check_variable), OPERATIONAL] = "OPENAI_API_KEY"
    max_requests: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    max_total_tokens: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    cache: Annotated[str | None, OPERATIONAL] = None
    tokenizer: str | None = None
    json_schema: bool = False
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        own = "max_completion_tokens", "max_tokens", "messages", "model", "n", "seed", "stream", "temperature"
        if taken := [name for name in own if name in self.extra]:
            raise ValueError(f"extra cannot contain {', '.join(taken)}: other settings determine it")
        return self

    def cached_in(self, file: Path) -> Self:
        """These settings with the answers kept in a file, unless `cache` names another."""
        return self if self.cache is not None else self.model_copy(update={"cache": str(file)})
