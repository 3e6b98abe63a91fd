"""How a model behind HTTP is asked."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from longrm.config import Config

_OWN_FIELDS = frozenset(
    ["model", "messages", "max_tokens", "max_completion_tokens", "temperature", "seed", "stream", "n"]
)


class Remote(Config):
    """How requests are sent to an OpenAI-compatible server.

    Attributes:
        concurrency: The most requests under way at once.
        timeout: Seconds to wait for one answer; also the longest wait that a server may ask for.
        retries: How often a request that failed is sent again.
        api_key_env: The environment variable that holds the key, for servers that want one. The key itself is
            never written anywhere.
        max_requests: The most requests sent, those sent again included.
        max_total_tokens: Once as many tokens are read and written, nothing more is sent; what is under way
            still ends. Answers from the cache count for neither budget.
        cache: The SQLite file that keeps the answers. By default `longrm evaluate` and `longrm synthesize` keep them
            in the run folder (`completions.sqlite`), and nothing else keeps any.
        tokenizer: A folder, a file or a Hub id of the model's tokenizer, to count and to cut; by default the
            server says what is too long.
        length_field: What the server calls the most tokens to write.
        json_schema: Whether the server is asked to hold an answer to a JSON schema of an analysis and a verdict,
            where the form of the verdict is known: data synthesis. They are joined to the text that a free answer
            would be.
        extra: More fields of the request body, such as `top_p` or `chat_template_kwargs`.
    """

    concurrency: int = Field(8, ge=1)
    timeout: float = Field(600.0, gt=0)
    retries: int = Field(5, ge=0)
    api_key_env: str = "OPENAI_API_KEY"
    max_requests: int | None = Field(None, ge=1)
    max_total_tokens: int | None = Field(None, ge=1)
    cache: str | None = None
    tokenizer: str | None = None
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    json_schema: bool = False
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leaves_own_fields_alone(self) -> Self:
        taken = sorted(_OWN_FIELDS & self.extra.keys())
        if taken:
            raise ValueError(f"extra cannot hold {', '.join(taken)}: other settings decide it")
        return self
