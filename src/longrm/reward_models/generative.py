"""Generative reward models (judges): they are asked for a verdict, which is parsed from what they write."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from longrm.clients import Completion, Request, Writer
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import CHAT, split_address
from longrm.data.tokenizing import Tokenizer, UnknownTokens
from longrm.errors import ConfigError, DataError
from longrm.judging import JudgingFormat, ParsedVerdict, fit, format_for, load_format, load_formats, why_uncut
from longrm.judging.answers import answer_of, opened_thought, thinking_tags
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.protocol import RewardModel
from longrm.rng import seed_of
from longrm.types import Cut, Judgment, Message, Outcome, Query, message_text, text_of

# What a query's several prompts came to, worst first: an error must be seen before all else.
WORST_FIRST = (Outcome.ERROR, Outcome.TOO_LONG, Outcome.REFUSED, Outcome.TRUNCATED, Outcome.UNPARSED)
_NOT_ASKED = Completion(Outcome.ERROR)


class GenerativeRewardModel(RewardModel):
    """A language model that is asked which response is better, or how good each one is.

    An answer without a verdict is followed by a reminder of the form, up to `retries` times, with room for as
    much as the limit leaves. An answer that was cut off is read too: a verdict that was written counts,
    unless the prompt is known to open a thought and nothing closes it.
    """

    by_criterion = True

    def __init__(
        self, writer: Writer, settings: JudgeSettings, *, tokenizer: Tokenizer | None = None
    ) -> None:
        """Prepares the formats.

        Args:
            writer: The language model.
            settings: How it is asked.
            tokenizer: The model's; needed to cut, and to know before asking what is too long.

        Raises:
            ConfigError: A template that cannot be used, or settings that cannot go together.
        """
        self.name = writer.name
        self.sees_order = settings.format != "pointwise"
        self.samples = settings.temperature > 0
        self._writer = writer
        self._settings = settings
        self._tokenizer = tokenizer
        # Of a model on this machine: the tokenizer of a remote one may be another that counts alike.
        own = getattr(writer, "tokenizer", None)
        self._unknown = None if own is None else UnknownTokens(own, writer.name)
        known = [limit for limit in (settings.max_length, writer.limit) if limit is not None]
        self._limit = min(known, default=None)
        self._formats = load_formats(settings.format, settings.template, self._load_format)
        self._check()
        self.scale = next(iter(self._formats.values())).scale

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Asks about all queries at once, then once more about those that brought no verdict, and so on.

        Raises:
            ModelError: The model cannot be reached.
            RunError: The budget of its client is spent.
        """
        by_query = [self._conversations_about(query) for query in queries]
        waiting = [one for found in by_query if not isinstance(found, Judgment) for one in found]
        for attempt in range(1 + self._settings.retries):
            if not waiting:
                break
            # Later attempts ask about a few prompts again, and would count them twice.
            self._writer.on_progress = self.on_progress if attempt == 0 else Writer.on_progress
            completions = self._writer.write([self._request(one, attempt) for one in waiting])
            answered = zip(waiting, completions, strict=True)
            waiting = [one for one, completion in answered if self._read(one, completion)]
        return [one if isinstance(one, Judgment) else _joined_judgment(one) for one in by_query]

    def _load_format(self, name: str, template: Path | None) -> JudgingFormat:
        return load_format(name, template=template, verdict=self._settings.verdict)

    def _check(self) -> None:
        settings = self._settings
        if self._tokenizer is None and settings.max_length is not None:
            raise ConfigError(
                f"judge.max_length cannot be kept without the tokenizer of {self.name}; name it in remote.tokenizer"
            )
        if settings.cut != "refuse" and (self._tokenizer is None or self._limit is None):
            raise ConfigError(
                f'judge.cut = "{settings.cut}" needs the tokenizer of {self.name} and the tokens it reads; name them '
                "in remote.tokenizer and judge.max_length"
            )
        if self._limit is not None and settings.max_tokens >= self._limit:
            raise ConfigError(
                f"max_tokens = {settings.max_tokens} leaves no room for a prompt: "
                f"{self.name} reads and writes {self._limit} tokens in all"
            )

    def _conversations_about(self, query: Query) -> "tuple[Conversation, ...] | Judgment":
        """The prompts about a query; a judgment at once where they cannot be made, or do not fit."""
        try:
            if self._unknown is not None:  # of the comparison alone, not of the judging prompt
                texts = [*map(message_text, query.prompt), *map(text_of, query.responses)]
                self._unknown.check(map(self._unknown.tokenizer.encode, texts))
            return self._prompts(query)
        except DataError as error:  # the format or the chat template does not take it
            return Judgment(Outcome.ERROR, detail=str(error))

    def _prompts(self, query: Query) -> "tuple[Conversation, ...] | Judgment":
        format, max_tokens, cut = (
            format_for(self._formats, len(query.responses)),
            self._settings.max_tokens,
            None,
        )
        if self._tokenizer is not None and self._limit is not None:

            def measure(candidate: Query) -> int:
                return max(self._tokens(messages) for messages in format.render(candidate))

            fitted = fit(query, measure, self._limit - max_tokens, self._tokenizer, self._settings.cut)
            if fitted is None:
                tokens = measure(query)
                room = self._limit - max_tokens
                said = f"the prompt has more than fit beside the answer's {max_tokens:,}"
                detail = f"{tokens:,} > {room:,} tokens; {said}{why_uncut(query, self._settings.cut)}"
                return Judgment(Outcome.TOO_LONG, detail=detail, prompt_tokens=tokens)
            query, cut = fitted
        return tuple(
            Conversation(query, format, number, messages, max_tokens, cut)
            for number, messages in enumerate(format.render(query))
        )

    def _request(self, one: "Conversation", attempt: int) -> Request:
        asked = (one.query.criterion,) if one.query.criterion else ()
        seed = seed_of(self._settings.seed, one.query.id, one.query.trial, attempt, one.number, *asked)
        return Request(one.messages, one.max_tokens, self._settings.temperature, seed)

    def _read(self, one: "Conversation", completion: Completion) -> bool:
        """Reads what the model wrote; prepares the next attempt, if there can be one.

        Returns:
            Whether to ask again.
        """
        if one.attempts == 0:
            counted = completion.prompt_tokens
            one.prompt_tokens = self._writer.tokens(one.messages) if counted is None else counted
        elif completion.outcome is Outcome.TOO_LONG:
            return False  # the reminder did not fit: the answer before it stands
        one.attempts += 1
        one.completion = completion = self._whole(one, completion)
        one.texts.append(_written(completion))
        if completion.outcome not in (Outcome.ANSWERED, Outcome.TRUNCATED):
            return False
        one.verdict = one.format.parse(completion.text, one.query)
        if one.verdict is not None:
            return False
        one.messages = _reminded(one.messages, answer_of(completion.text), one.format.reminder)
        if self._tokenizer is not None and self._limit is not None:
            one.max_tokens = min(one.max_tokens, self._limit - self._tokens(one.messages))
        return one.max_tokens > 0

    def _whole(self, one: "Conversation", completion: Completion) -> Completion:
        """Puts the thought that the prompt opens before a text that was cut off and does not tell of any.

        A text that ended without a tag is left as it is: many servers take thinking out.
        """
        known = completion.thinking or thinking_tags(completion.text)
        if self._tokenizer is None or completion.outcome is not Outcome.TRUNCATED or known:
            return completion
        opened = opened_thought(self._tokenizer.render(one.messages, add_generation_prompt=True))
        return replace(completion, text=opened + completion.text)

    def _tokens(self, messages: Sequence[Message]) -> int:
        tokens = self._writer.tokens(messages)
        assert tokens is not None, "a writer whose tokenizer is known counts"
        return tokens


@dataclass(slots=True)
class Conversation:
    """One prompt on its way to a verdict.

    Attributes:
        query: What is judged, as it is shown: a context that did not fit is cut already.
        format: Reads what the model writes.
        number: Which of the query's prompts this is; a pointwise query has one for each response.
        messages: What is asked next.
        max_tokens: Room for the answer.
        cut: What was cut out of the context.
        attempts: How often the model was asked.
        prompt_tokens: Tokens of the first attempt's prompt; None where nobody counts them.
        texts: What the model wrote at each attempt, thinking included.
        completion: What the model wrote last.
        verdict: What it says.
    """

    query: Query
    format: JudgingFormat
    number: int
    messages: tuple[Message, ...]
    max_tokens: int
    cut: Cut | None
    attempts: int = 0
    prompt_tokens: int | None = None
    texts: list[str] = field(default_factory=list)
    completion: Completion = _NOT_ASKED
    verdict: ParsedVerdict | None = None

    @property
    def outcome(self) -> Outcome:
        """How it ended: answered where there is a verdict."""
        if self.verdict is not None:
            return Outcome.ANSWERED
        outcome = self.completion.outcome
        return Outcome.UNPARSED if outcome is Outcome.ANSWERED else outcome

    @property
    def detail(self) -> str:
        """Why there is no verdict."""
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return self.completion.detail or f"no verdict in the answer after {times}"

    @property
    def transcript(self) -> str:
        """All that the model wrote."""
        return "\n\n[asked again]\n\n".join(self.texts)


def _written(completion: Completion) -> str:
    if not completion.thinking:
        return completion.text
    return f"<think>\n{completion.thinking}\n</think>\n\n{completion.text}"


def _joined_judgment(conversations: tuple[Conversation, ...]) -> Judgment:
    """The judgment of a query from the conversations about it: one verdict, or one score a response."""
    counts = [one.prompt_tokens for one in conversations if one.prompt_tokens is not None]
    verdicts = [one.verdict for one in conversations if one.verdict is not None]
    outcome, detail = Outcome.ANSWERED, ""
    if len(verdicts) < len(conversations):
        worst = min(
            (one for one in conversations if one.verdict is None),
            key=lambda one: WORST_FIRST.index(one.outcome),
        )
        outcome, detail, verdicts = worst.outcome, worst.detail, []
        if len(conversations) > 1:
            detail = f"response {worst.number + 1} of {len(conversations)}: {detail}"
    contradictions = [verdict.contradicted for verdict in verdicts if verdict.contradicted is not None]
    return Judgment(
        outcome,
        scores=tuple(value for verdict in verdicts for value in verdict.values),
        ranking=verdicts[0].order if verdicts else (),
        explanation=_explanation(conversations),
        detail=detail,
        prompt_tokens=max(counts, default=None),
        cut=conversations[0].cut,
        attempts=max(one.attempts for one in conversations),
        contradicted=any(contradictions) if contradictions else None,
    )


def _explanation(conversations: tuple[Conversation, ...]) -> str:
    if len(conversations) == 1:
        return conversations[0].transcript
    return "\n\n".join(f"Response {one.number + 1}:\n{one.transcript}" for one in conversations)


def _reminded(messages: tuple[Message, ...], text: str, reminder: str) -> tuple[Message, ...]:
    """The conversation so far with the reminder; within the last question where nothing was written."""
    if text.strip():
        return (*messages, {"role": "assistant", "content": text}, {"role": "user", "content": reminder})
    *before, last = messages
    return (*before, {**last, "content": f"{message_text(last)}\n\n{reminder}"})


def load_openai(address: str, request: LoadRequest) -> GenerativeRewardModel:
    """Loads `openai:URL#NAME`, such as `openai:http://127.0.0.1:8000/v1#NAME`, without its `openai:`.

    Raises:
        ConfigError: The address is none, or the settings cannot go together.
        ModelError: The tokenizer cannot be loaded.
    """
    client, tokenizer = connect(address, request)
    return GenerativeRewardModel(client, request.judge, tokenizer=tokenizer)


def connect(address: str, request: LoadRequest, path: str = CHAT) -> tuple[OpenAIClient, Tokenizer | None]:
    """A client of an OpenAI-compatible server, and the model's tokenizer where `remote.tokenizer` names it.

    Args:
        address: `URL#NAME`.
        request: How requests are sent, and who is told of answers.
        path: Where requests go, below the URL's path.

    Raises:
        ConfigError: The address is none.
        ModelError: The tokenizer cannot be loaded.
    """
    url, name = split_address(address)
    remote, limit = request.remote, request.judge.max_length
    tokenizer = Tokenizer.load(remote.tokenizer) if remote.tokenizer else None
    count = None if tokenizer is None else lambda messages: len(tokenizer.generation_ids(messages))
    client = OpenAIClient(url, name, remote, limit=limit, count=count, on_usage=request.on_usage, path=path)
    return client, tokenizer
