"""Requests to a language model and its completions, wherever the model runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longrm.types import Message, Outcome


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate."""

    messages: tuple[Message, ...]  # the prompt; an assistant message follows it
    max_tokens: int  # the most tokens the model may generate
    temperature: float = 0.0  # 0 decodes greedily
    seed: int = 0  # of the sampling at temperatures above 0
    # The verdict that the prompt asks for on the last line, as a regular expression of ECMA-262; empty if there is
    # none. With `Remote.json_schema` the server must generate a match; otherwise it is ignored.
    verdict: str = ""
    top: int = 0  # how many of the most likely first tokens to return with their log-probabilities
    # Ids of first tokens to return with their log-probabilities instead, from servers that support it (vLLM).
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A request for the log-probabilities of the last tokens of a text; nothing is generated."""

    text: str  # as a chat template renders it
    tokens: int  # the number of tokens in it
    last: int  # the number of tokens at its end whose log-probabilities are needed


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to a request."""

    # `ANSWERED` if the model stopped by itself, `TRUNCATED` at `max_tokens`, `REFUSED`, `TOO_LONG`, `ERROR`, or
    # `UNPARSED` if a local model computed NaN.
    outcome: Outcome
    # The generated text. Without thinking if the server separates it; otherwise, if the prompt is known to open a
    # thought, it starts with the opening tag.
    text: str = ""
    thinking: str = ""  # if the server separates it
    detail: str = ""  # why the outcome is not `ANSWERED`, in one line
    prompt_tokens: int | None = None  # as the model counts them; None if the server does not report them
    completion_tokens: int | None = None
    # (token, log-probability) pairs, as requested by `Request.top` (the most likely first tokens) or `Echo` (the last
    # tokens of the text). None if the server does not report them.
    logprobs: tuple[tuple[str, float], ...] | None = None


class TextGenerator(ABC):
    """A language model that answers requests.

    Attributes:
        name: Its name in summaries and reports.
        limit: The context window in tokens, prompt and completion together; None if unknown.
        on_progress: Called during `write` with the share of the work that is done.
        keeps_prompt: Whether it reads what a prompt has in common with those of the last call only once.
    """

    name: str
    limit: int | None
    keeps_prompt: bool = False
    on_progress: Callable[[float], None] = staticmethod(lambda share: None)

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers the requests independently and in order; batching changes logits by rounding at most."""

    @abstractmethod
    def tokens(self, messages: Sequence[Message]) -> int | None:
        """The number of tokens of a prompt, including the assistant's header; None if unknown."""
