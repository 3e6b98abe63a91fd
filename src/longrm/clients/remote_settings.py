"""How requests are sent to models behind HTTP."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from longrm.config import OPERATIONAL, Config
from longrm.errors import ConfigError

_OWN_FIELDS = frozenset(
    ["model", "messages", "max_tokens", "max_completion_tokens", "temperature", "seed", "stream", "n"]
)


def _check_variable(name: str) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name):
        raise ConfigError(
            "api_key_env is the name of an environment variable, such as OPENAI_API_KEY, not the key"
        )
    return name


class Remote(Config):
    """How requests are sent to an OpenAI-compatible server.

    Attributes:
        concurrency: The most requests under way at once.
        timeout: Seconds that one answer may take, from the connection to its last byte; also the longest wait that a
            server may ask for. What takes longer is sent again, as what fails otherwise is.
        max_answer_bytes: The largest answer that is read, unpacked where the server packs it; a larger one is a
            failure like others.
        retries: How often a request that failed is sent again. After the last time its outcome is `error`.
        api_key_env: The environment variable that holds the key, for servers that want one. The key itself is
            never written anywhere: where a server repeats it in what it says of a failure, it is replaced by
            `***` (a key of fewer than 8 characters only where it is a separate word). Answers of a model are kept as
            they are.
        max_requests: The most requests sent, those sent again included.
        max_total_tokens: Once as many tokens are read and written, nothing more is sent; what is under way
            still ends. Answers from the cache count for neither budget.
        cache: The SQLite file that keeps the answers. By default `longrm evaluate` and `longrm synthesize` keep them
            in the run folder (`completions.sqlite`), and nothing else keeps any.
        tokenizer: A folder, a file or a Hub id of the model's tokenizer, to count and to cut; by default the
            server says what is too long.
        length_field: What the server calls the most tokens to write.
        json_schema: Ask the server for answers that follow a JSON schema of an analysis and a verdict, where the form
            of the verdict is known (data synthesis). Both are joined to the text of an answer without schema.
        extra: More fields of the request body, such as `top_p` or `chat_template_kwargs`.
    """

    concurrency: Annotated[int, OPERATIONAL] = Field(8, ge=1)
    timeout: Annotated[float, OPERATIONAL] = Field(600.0, gt=0)
    max_answer_bytes: Annotated[int, OPERATIONAL] = Field(2**24, ge=1)
    retries: Annotated[int, OPERATIONAL] = Field(5, ge=0)
    api_key_env: Annotated[str, AfterValidator(_check_variable), OPERATIONAL] = "OPENAI_API_KEY"
    max_requests: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    max_total_tokens: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    cache: Annotated[str | None, OPERATIONAL] = None
    tokenizer: str | None = None
    length_field: Annotated[Literal["max_tokens", "max_completion_tokens"], OPERATIONAL] = "max_tokens"
    json_schema: bool = False
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leaves_own_fields_alone(self) -> Self:
        taken = sorted(_OWN_FIELDS & self.extra.keys())
        if taken:
            raise ValueError(f"extra cannot hold {', '.join(taken)}: other settings decide it")
        return self
