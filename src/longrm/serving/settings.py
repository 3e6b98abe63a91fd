"""Settings of `longrm serve`."""

from ipaddress import ip_address
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from longrm.clients.remote_settings import Remote
from longrm.config import Config
from longrm.errors import ConfigError
from longrm.reward_models.settings import JudgeSettings, ModelSettings


class ServerLimits(Config):
    """How much the server accepts at once.

    Attributes:
        waiting: Prompts, each with its responses, that may wait for the model; further requests get 429.
        seconds: Time-out of a request, from its first byte to its answer.
        prefix_cache_bytes: Memory for the keys and values of prompts that may be sent again; 0 disables the cache. The
            default is half of the GPU's free memory, or 1 GiB without a GPU.
    """

    waiting: int = Field(4096, ge=1)
    seconds: float = Field(600.0, gt=0)
    prefix_cache_bytes: int | None = Field(None, ge=0)


class ServeSettings(Config):
    """Settings of `longrm serve`.

    Attributes:
        model: A model, as `longrm.load` takes it.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        api_key: The key that every request must have, except those to `/`, `/health` and `/ready`.
        without_key: Whether the server may be open to other machines without a key.
        allowed_hosts: Host names that requests without a key may use, in addition to `host`, loopback addresses and, if
            `host` is 0.0.0.0 or ::, any IP address.
        allow_origins: Origins of web pages that may use the server from a browser, such as `http://127.0.0.1:8000`.
    """

    model: str
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_key: SecretStr | None = None
    without_key: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    limits: ServerLimits = ServerLimits()
    model_args: ModelSettings = ModelSettings()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()

    def accepts_host(self, host: str) -> bool:
        """Whether a server without a key answers requests whose Host header has this host."""
        if host in (self.host, *self.allowed_hosts) or _is_loopback(host):
            return True
        return _is_ip(host) and _is_ip(self.host) and ip_address(self.host).is_unspecified

    @field_validator("api_key")
    @classmethod
    def _strip_key(cls, key: SecretStr | None) -> SecretStr | None:
        # Files of secrets often end with a newline, which no client sends.
        return None if key is None else SecretStr(key.get_secret_value().strip())

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.api_key is not None and len(self.api_key.get_secret_value()) < 8:
            raise ConfigError("api_key: needs at least 8 characters")
        if self.api_key is None and not self.without_key and not _is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} can be reached from other machines: set --api-key or LONGRM_API_KEY, or pass "
                "--without-key"
            )
        return self


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_ip(host) and ip_address(host).is_loopback)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
