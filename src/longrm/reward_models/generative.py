"""Generative reward models (judges): a language model writes a verdict, which is parsed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from longrm.clients import Completion, Request, TextGenerator
from longrm.data.tokenizing import Tokenizer, UnknownTokens
from longrm.errors import ConfigError, DataError
from longrm.judging import (
    JUDGING_FORMATS,
    STEP_FORMATS,
    JudgingFormat,
    ParsedVerdict,
    format_for,
    load_formats,
    load_judge,
    prompt_provenance,
    truncate_context,
    why_uncut,
)
from longrm.judging.answers import answer_of, opened_thought, thinking_tags
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import DEFAULT_MODEL, JudgeSettings, ModelSettings
from longrm.rng import seed_of
from longrm.types import CommittedAnswer, Cut, Judgment, Message, Outcome, Query, message_text, text_of

WORST_FIRST = (Outcome.ERROR, Outcome.TOO_LONG, Outcome.REFUSED, Outcome.TRUNCATED, Outcome.UNPARSED)
"""Which outcome a query has if its prompts end in several."""


@dataclass(slots=True)
class Conversation:
    """One prompt on its way to a verdict."""

    query: Query  # as shown, after any cut
    format: JudgingFormat
    number: int  # among the prompts of the query; a pointwise query has one for each response
    messages: tuple[Message, ...]  # of the next attempt
    max_tokens: int  # of the next answer
    cut: Cut | None
    follow_up: str = ""  # with `judge.solve`: the message after the model's own answer
    committed: CommittedAnswer | None = None  # that answer
    attempts: int = 0
    prompt_tokens: int | None = None  # of the first attempt; None if unknown
    texts: list[str] = field(default_factory=list)  # of every attempt, thinking included
    outcome: Outcome = Outcome.ERROR  # of the last attempt
    detail: str = ""  # why there is no verdict
    verdict: ParsedVerdict | None = None


class GenerativeRewardModel(RewardModel):
    """A language model that is asked which response is better, or how good each one is.

    An answer without a verdict is followed by a reminder of the form, up to `judge.retries` times; a published judge
    (`judge.name`) knows no reminder, and its prompt is sampled again. A truncated answer
    is parsed too, and a verdict in it counts, unless the prompt is known to open a thought that is not closed. The
    model's tokenizer is needed to cut contexts and to know in advance which are too long.

    With `judge.solve` the model first answers the question itself: S2J (Solve-to-Judge, arXiv 2509.22099). It does so
    once per comparison, and all orders and votes continue from that answer.
    """

    writes = True
    step_threshold = 0.0

    def __init__(
        self,
        writer: TextGenerator,
        settings: JudgeSettings,
        model_args: ModelSettings = DEFAULT_MODEL,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.name = writer.name
        self.samples = settings.temperature > 0
        self.solves = settings.solve
        self._writer, self._settings, self._cut, self.tokenizer = writer, settings, model_args.cut, tokenizer
        # Only for a local model: `remote.tokenizer` may be another that counts alike.
        own = getattr(writer, "tokenizer", None)
        self._unknown = None if own is None else UnknownTokens(own, writer.name)
        known = [limit for limit in (model_args.max_length, writer.limit) if limit is not None]
        self.limit = min(known, default=None)
        if tokenizer is None and model_args.max_length is not None:
            raise ConfigError(
                f"model_args.max_length requires the tokenizer of {self.name}; set remote.tokenizer"
            )
        if model_args.cut != "refuse" and (tokenizer is None or self.limit is None):
            raise ConfigError(
                f'model_args.cut = "{model_args.cut}" requires the tokenizer and the context window of {self.name}; '
                "set remote.tokenizer and model_args.max_length"
            )
        # Of all answers that a conversation has before it is asked again.
        self._answer_tokens = settings.max_tokens * (2 if settings.solve else 1)
        if self.limit is not None and self._answer_tokens >= self.limit:
            raise ConfigError(
                f"judge.max_tokens = {settings.max_tokens} leaves no room for a prompt: the context window of "
                f"{self.name} has {self.limit} tokens"
            )
        self._formats: Mapping[str, JudgingFormat] = (
            load_formats(JUDGING_FORMATS | STEP_FORMATS, settings.format, settings.template, settings.verdict)
            if settings.name is None
            else load_judge(settings.name, settings.template)
        )
        first = next(iter(self._formats.values()))
        self.scale, self.by_criterion = first.scale, first.criteria
        self.sees_order = not first.pointwise and first.scale != "label"
        self.provenance = prompt_provenance(self._formats)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Sends the prompts of all queries at once, then the reminders to those without a verdict, and so on.

        If the model answers first, those requests come before. A writer that keeps only its last prompts gets the
        requests of one comparison after those of the other, so that it reads every prompt once.
        """
        by_query = [self._start(query) for query in queries]
        waiting = [one for started in by_query if not isinstance(started, Judgment) for one in started]
        batches = [waiting] if waiting else []
        if self.solves and self._writer.keeps_prompt:
            batches = [list(alike) for _, alike in groupby(waiting, _question)]
        steps, done = len(batches) * (2 if self.solves else 1), 0

        def report(share: float) -> None:
            self.on_progress((done + share) / steps)

        for batch in batches:
            self._writer.on_progress = report
            if self.solves:
                batch = self._solve(batch)
                done += 1
            for attempt in range(1 + self._settings.retries):
                if not batch:
                    break
                completions = self._writer.generate([self._request(one, attempt) for one in batch])
                answered = zip(batch, completions, strict=True)
                batch = [one for one, completion in answered if self._read(one, completion)]
                # Later attempts repeat some prompts, which would count twice.
                self._writer.on_progress = TextGenerator.on_progress
            done += 1
        return [one if isinstance(one, Judgment) else _judgment(one) for one in by_query]

    def _start(self, query: Query) -> tuple[Conversation, ...] | Judgment:
        """The prompts of a query, or its judgment if they cannot be rendered or do not fit."""
        cut, policy, max_tokens = None, self._cut, self._settings.max_tokens
        format = format_for(self._formats, len(query.responses))
        try:
            # Only the comparison's texts are checked: the judging prompt is the same for all.
            if self._unknown is not None:
                texts = [*map(message_text, query.prompt), *map(text_of, query.responses)]
                self._unknown.check(map(self._unknown.tokenizer.encode, texts))
            if self.tokenizer is not None and self.limit is not None:

                def measure(candidate: Query) -> int:
                    if not self.solves:
                        return max(map(self._tokens, format.render(candidate)))
                    # In one order of the responses, so that all are cut alike and share the model's own answer.
                    shown = tuple(sorted(candidate.responses, key=text_of))
                    turns = format.render_turns(replace(candidate, responses=shown))
                    return max(self._tokens(_continued((asks,), ".", text)) for asks, text in turns)

                room = self.limit - self._answer_tokens
                fitted = truncate_context(query, measure, room, self.tokenizer, policy)
                if fitted is None:
                    tokens = measure(query)
                    detail = (
                        f"{tokens:,} > {room:,} tokens; the prompt leaves less than "
                        f"{'twice ' if self.solves else ''}judge.max_tokens{why_uncut(query, policy)}"
                    )
                    return Judgment(Outcome.TOO_LONG, detail=detail, prompt_tokens=tokens)
                query, cut = fitted
            if self.solves:
                return tuple(
                    Conversation(query, format, number, (asks,), max_tokens, cut, follow_up)
                    for number, (asks, follow_up) in enumerate(format.render_turns(query))
                )
            return tuple(
                Conversation(query, format, number, messages, max_tokens, cut)
                for number, messages in enumerate(format.render(query))
            )
        except DataError as error:  # the format or the chat template cannot render it
            return Judgment(Outcome.ERROR, detail=str(error))

    def _solve(self, waiting: Sequence[Conversation]) -> list[Conversation]:
        """Requests the model's own answers, one per comparison; returns the conversations that go on to a verdict.

        Without a readable answer, the request for the verdict is appended to the question.
        """
        asked: dict[tuple[str, str], list[Conversation]] = {}
        for one in waiting:
            asked.setdefault(_question(one), []).append(one)
        settings = self._settings
        requests = [
            Request(
                alike[0].messages,
                settings.max_tokens,
                settings.temperature,
                seed_of(settings.seed, name, "solve"),
            )
            for (name, _), alike in asked.items()
        ]
        going_on = []
        for alike, completion in zip(asked.values(), self._writer.generate(requests), strict=True):
            outcome, text = completion.outcome, self._text(alike[0].messages, completion)
            answer = answer_of(text) if outcome in (Outcome.ANSWERED, Outcome.TRUNCATED) else ""
            if outcome is Outcome.ANSWERED and not answer.strip():
                outcome = Outcome.UNPARSED
            for one in alike:
                if outcome in (Outcome.ERROR, Outcome.TOO_LONG):
                    one.attempts, one.outcome, one.detail = 1, outcome, completion.detail
                    one.prompt_tokens = completion.prompt_tokens
                    continue
                one.committed = CommittedAnswer(_with_thinking(text, completion), outcome)
                self._continue(one, answer, one.follow_up)
                one.max_tokens = max(1, one.max_tokens)  # if there is no room, the writer reports it
                going_on.append(one)
        return going_on

    def _request(self, one: Conversation, attempt: int) -> Request:
        criterion = (one.query.criterion,) if one.query.criterion else ()
        seed = seed_of(self._settings.seed, one.query.id, one.query.trial, attempt, one.number, *criterion)
        return Request(one.messages, one.max_tokens, self._settings.temperature, seed)

    def _read(self, one: Conversation, completion: Completion) -> bool:
        """Parses an answer and prepares the next attempt; returns whether there is to be one."""
        if one.attempts == 0:
            counted = completion.prompt_tokens
            one.prompt_tokens = self._writer.tokens(one.messages) if counted is None else counted
        elif completion.outcome is Outcome.TOO_LONG:
            return False  # no room for the reminder: the previous answer stands
        one.attempts += 1
        one.outcome, one.detail = completion.outcome, completion.detail
        text = self._text(one.messages, completion)
        one.texts.append(_with_thinking(text, completion))
        if completion.outcome not in (Outcome.ANSWERED, Outcome.TRUNCATED):
            return False
        one.verdict = one.format.parse(text, one.query)
        if one.verdict is not None:
            one.outcome = Outcome.ANSWERED
            return False
        if completion.outcome is Outcome.ANSWERED:
            one.outcome = Outcome.UNPARSED
        if not one.format.reminder:
            return self.samples  # the same prompt again, with another seed
        self._continue(one, answer_of(text), one.format.reminder)
        return one.max_tokens > 0

    def _text(self, messages: Sequence[Message], completion: Completion) -> str:
        """The text of a completion, with the tag of a thought that the chat template opened before it.

        A truncated text without a closing tag is then unfinished thinking, not an answer. A complete text without a tag
        stays as it is: many servers remove the thinking.
        """
        tagged = completion.thinking or thinking_tags(completion.text)
        if self.tokenizer is None or completion.outcome is not Outcome.TRUNCATED or tagged:
            return completion.text
        return opened_thought(self.tokenizer.render(messages, add_generation_prompt=True)) + completion.text

    def _continue(self, one: Conversation, answer: str, request: str) -> None:
        """Adds an answer and the user's next message to a conversation."""
        one.messages = _continued(one.messages, answer, request)
        if self.tokenizer is not None and self.limit is not None:
            one.max_tokens = min(one.max_tokens, self.limit - self._tokens(one.messages))

    def _tokens(self, messages: Sequence[Message]) -> int:
        tokens = self._writer.tokens(messages)
        assert tokens is not None, "a writer whose tokenizer is known counts"
        return tokens


def _question(one: Conversation) -> tuple[str, str]:
    """What conversations have in common that share an answer; a context check asks without the context."""
    return one.query.id, message_text(one.messages[0])


def _continued(messages: Sequence[Message], answer: str, request: str) -> tuple[Message, ...]:
    if answer.strip():
        return (*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": request})
    # Chat templates may reject an empty turn, so the request extends the last message.
    *before, last = messages
    return (*before, {**last, "content": f"{message_text(last)}\n\n{request}"})


def _with_thinking(text: str, completion: Completion) -> str:
    return f"<think>\n{completion.thinking}\n</think>\n\n{text}" if completion.thinking else text


def _judgment(conversations: tuple[Conversation, ...]) -> Judgment:
    """The judgment of a query from its conversations: one verdict, or one score for each response."""
    counts = [one.prompt_tokens for one in conversations if one.prompt_tokens is not None]
    verdicts = [one.verdict for one in conversations if one.verdict is not None]
    outcome, detail = Outcome.ANSWERED, ""
    transcripts = ["\n\n[asked again]\n\n".join(one.texts) for one in conversations]
    explanation = transcripts[0]
    if len(verdicts) < len(conversations):
        verdicts = []
        unanswered = [one for one in conversations if one.verdict is None]
        worst = min(unanswered, key=lambda one: WORST_FIRST.index(one.outcome))
        times = "1 attempt" if worst.attempts == 1 else f"{worst.attempts} attempts"
        outcome, detail = worst.outcome, worst.detail or f"no verdict in the answer after {times}"
        if len(conversations) > 1:
            detail = f"response {worst.number + 1} of {len(conversations)}: {detail}"
    if len(conversations) > 1:
        explanation = "\n\n".join(
            f"Response {number}:\n{text}" for number, text in enumerate(transcripts, start=1)
        )
    contradictions = [verdict.contradicted for verdict in verdicts if verdict.contradicted is not None]
    return Judgment(
        outcome,
        scores=tuple(value for verdict in verdicts for value in verdict.values),
        ranking=verdicts[0].ranking if verdicts else (),
        explanation=explanation,
        detail=detail,
        prompt_tokens=max(counts, default=None),
        cut=conversations[0].cut,
        attempts=max(one.attempts for one in conversations),
        contradicted=any(contradictions) if contradictions else None,
        committed=conversations[0].committed,
    )
