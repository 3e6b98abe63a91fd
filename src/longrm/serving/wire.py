"""Requests, results, and the parts of wire formats.

A body in a client's format becomes one or several `ScoreRequest`s; the model's thread turns each into a `ScoreResult`;
the route writes the results as its client expects them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, model_validator

from longrm.data.fields import check_messages, tools_of
from longrm.data.trajectories import split_steps
from longrm.reading import FieldError
from longrm.types import Cut, Message, Tool, Trajectory

STATUSES: Mapping[str, int] = {
    "invalid": 400,
    "too_long": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "too_large": 413,
    "encoded": 415,
    "unscored": 422,
    "full": 429,
    "internal": 500,
    "stopping": 503,
    "timeout": 504,
}
"""The HTTP status of each kind of failure."""


class Failure(Exception):  # noqa: N818 - it is also a result, and not always raised
    """Why a request, or one prompt of it, has no scores. The message never repeats what a client sent."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.status = kind, message, STATUSES[kind]

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer, as OpenAI, vLLM and SGLang write it."""
        return {"error": {"message": self.message, "type": self.kind, "code": self.status}}


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One prompt and its responses, or one conversation that the client has rendered as a whole."""

    prompt: str | Sequence[Message] = ""  # messages, the text of a user's message, or a rendered text
    responses: Sequence[str | Sequence[Message]] = ()
    rendered: str | Sequence[int] | None = None  # instead of both: one rendered text, or its token ids
    add_bos: bool = True  # whether a rendered text without BOS gets it
    strip_end: bool = False  # whether special tokens at the end of a response are removed
    # What may be cut out of the context if it does not fit, and the part of the prompt that is the context.
    cut: Literal["middle", "left", "right"] | None = None
    context: str | None = None
    cache_salt: str = ""  # cached prefixes are shared only between requests of the same salt
    tools: Sequence[Tool] = ()
    steps: bool = False  # whether the responses are one trajectory up to each of its steps

    @property
    def count(self) -> int:
        """The number of scores."""
        return len(self.responses) if self.rendered is None else 1


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The scores of one `ScoreRequest`."""

    scores: tuple[float | None, ...]  # one per response, higher is better; None without a score
    explanation: str = ""  # what a generative judge wrote
    prompt_tokens: int = 0
    cached_tokens: int = 0  # tokens of the prompt that came from the prefix cache
    total_tokens: int = 0  # of the prompt and of all responses
    seconds: float = 0.0  # from submission to the scores
    queue_seconds: float = 0.0  # the part of it before the model started
    cut: Cut | None = None  # what was cut out of the context
    failure: Failure | None = None  # why scores are missing

    @property
    def order(self) -> list[int]:
        """Indices of the responses that have a score, from best to worst; ties keep their order."""
        scored = [(-score, index) for index, score in enumerate(self.scores) if score is not None]
        return [index for _, index in sorted(scored)]


def all_scores(results: Sequence[ScoreResult]) -> list[float | None]:
    """The scores of all prompts in one list."""
    return [score for result in results for score in result.scores]


def usage(results: Sequence[ScoreResult]) -> dict[str, Any]:
    """The tokens of a request as OpenAI and vLLM report them."""
    total = sum(result.total_tokens for result in results)
    return {
        "prompt_tokens": total,
        "total_tokens": total,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": sum(result.cached_tokens for result in results)},
    }


@dataclass(frozen=True, slots=True)
class Route:
    """One route of a wire format."""

    path: str
    body: type[BaseModel]
    # Makes the requests of a body; raises `Failure` for a body that makes no sense.
    requests: Callable[[Any], list[ScoreRequest]]
    answer: Callable[[Any, Sequence[ScoreResult], str], Any]  # JSON of body, results and the model's name
    example: Any  # a body, for the OpenAPI document
    # Of routes with the same path, the first with a field of the body answers.
    fields: frozenset[str] = frozenset()


_Item = TypeVar("_Item")


class _FirstError(FailFast):
    """FailFast that can be part of a union, whose members must be hashable in Python 3.11."""

    __hash__ = object.__hash__


# Pydantic builds an error of about 3 KB for each wrong item, so a body of a million wrong items would take 3 GB.
Several = Annotated[list[_Item], _FirstError()]
"""A list in a request: validation ends at the first wrong item."""


class StrictBody(BaseModel):
    """The body of a request in longrm's own format: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown_field(cls, given: Any) -> Any:
        # One error instead of one for each of a million unknown fields.
        if not isinstance(given, dict):
            return given
        known = {name: given[name] for name in cls.model_fields if name in given}
        unknown = next((name for name in given if name not in known), None)
        return known if unknown is None else {**known, unknown: given[unknown]}


class ClientBody(BaseModel):
    """The body of another project's client: unknown fields are ignored, except for chat templates."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_templates(cls, body: Any) -> Any:
        # Ignoring a template would score another text than the client means; running it would run its program.
        if isinstance(body, dict) and body.get("chat_template") is not None:
            raise ValueError("chat_template is not accepted: the server renders with the model's own")
        return body


class ChatMessage(BaseModel):
    """One turn of a conversation, with any further fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str
    content: str | Several[dict[str, Any]] | None = None


Salt = Annotated[str, BeforeValidator(lambda given: "" if given is None else given)]
"""A cache salt; null is the same as none."""


def messages_in(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Messages with the fields that the client sent; raises `Failure` for images and malformed tool calls."""
    given = tuple(message.model_dump(exclude_unset=True) for message in messages)
    try:
        check_messages(given, "messages")
    except FieldError:
        raise Failure(
            "invalid",
            "the content of a message must be a text or a list of {'type': 'text', 'text': ...} (only text is "
            "supported), and its tool_calls must be {'type': 'function', 'function': {'name': ..., 'arguments': ...}}",
        ) from None
    return given


def text_or_messages(given: str | Sequence[ChatMessage]) -> str | tuple[Message, ...]:
    """A text as it is, or messages."""
    return given if isinstance(given, str) else messages_in(given)


def tools_in(given: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools of a body; raises `Failure` if they are not functions."""
    try:
        return tools_of(given)
    except FieldError:
        raise Failure(
            "invalid",
            "tools must be a list such as [{'type': 'function', 'function': {'name': ..., 'parameters': {...}}}]",
        ) from None


def is_single(given: Any) -> bool:
    """Whether a field of texts or token ids has one text, or the ids of one, and not a list of them."""
    return isinstance(given, str) or bool(given and isinstance(given[0], int))


def steps_request(messages: Sequence[Message], first: int = 1, **options: Any) -> ScoreRequest:
    """The request to score every turn of the assistant in a conversation, from the message `first` on."""
    if not any(message.get("role") == "assistant" for message in messages[first:]):
        raise Failure("invalid", "the trajectory has no message of the assistant after the prompt")
    prompt, steps, _ = split_steps(messages, "messages", first)
    return ScoreRequest(prompt, Trajectory("request", "", prompt, steps).prefixes(), steps=True, **options)


def rendered_requests(given: Any, **options: Any) -> list[ScoreRequest]:
    """A request for each rendered text, or its token ids, in a field of one or several."""
    texts = [given] if is_single(given) else given
    return [ScoreRequest(rendered=text, **options) for text in texts]


RENDERED_EXAMPLE = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\nParis.<|im_end|>\n"
