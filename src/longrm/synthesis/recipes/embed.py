"""`longrm synthesize embed`: short comparisons become long ones, each conversation one item of an inbox.

The gold order stays that of the input; no model is asked.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from longrm import benchmarks
from longrm.benchmarks import OwnTokenizer
from longrm.data.formats import to_native_row
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.rng import Rng, hash_fraction
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.chunks import BETWEEN, DocumentChunk
from longrm.synthesis.long_context import lay_out
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import ComparisonRecipe, Lengths
from longrm.types import Comparison, Message, Response, Span, as_messages, text_of
from longrm.worlds.prose.word_lists import FIRST_NAMES, SURNAMES
from longrm.worlds.words_tokenizer import load_tokenizer

SENDER = "From: {}"
INSTRUCTION = "Write the next reply to {}."

FILLED = 0.9
"""The share of its length that a prompt reaches at least; from there on the first item that does not fit ends it."""

_TRIES = 8  # to fill a context with whole items, each time with others


class EmbedRecipe(ComparisonRecipe):
    """Settings of `longrm synthesize embed`.

    Attributes:
        lengths: Tokens of the prompts with the tokenizer's chat template; a prompt has at least 90% of them and is
            never longer. Every comparison that fits is embedded at every length.
        contexts: Contexts per length. The first ones are about the same comparisons at all lengths, as far as these
            fit; further ones repeat comparisons among other items. By default as many as there are comparisons.
        pairs: "preference", the comparison of the input, and "relevance": the best response to this conversation, and
            the best one to another conversation of the context, once for each of the two senders.
        relevance_share: Of the contexts, how many have a relevance pair, which makes two rows.
        answered: Of the other conversations, how many are shown with their best response. Those that are asked about
            never are.
        tokenizer: "words", "approximate", or the tokenizer's file, folder or Hub id of the model that will be trained.
        max_prompt: Skip comparisons whose conversation has more tokens.
    """

    lengths: Lengths = (4096,)
    contexts: int | None = Field(None, ge=1)
    pairs: tuple[Literal["preference", "relevance"], ...] = Field(("preference",), min_length=1)
    relevance_share: float = Field(0.5, ge=0.0, le=1.0)
    answered: float = Field(0.0, ge=0.0, le=1.0)
    tokenizer: str = "approximate"
    max_prompt: int | None = Field(None, ge=1)


RECIPE = EmbedRecipe


def synthesize(recipe: EmbedRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes long comparisons into the run folder `out`, continuing what is there."""
    name = recipe.tokenizer
    bench = benchmarks.load(
        recipe.source,
        source=recipe.reading,
        own=lambda: OwnTokenizer(name, name),
    )
    sources = recipe.provenance(bench)
    with open_run("embed", recipe, out, {}, sources, {"embed": [SENDER, INSTRUCTION]}) as run:
        inboxes = Inboxes(recipe, load_tokenizer(name), bench.comparisons)
        inputs = inboxes.plan()
        return run.write(inputs, inboxes.make_rows, total=len(inputs), progress=progress)


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """A prompt of the input as an item of an inbox."""

    text: str
    tokens: int  # with the line break before it
    group: str
    prompt: tuple[Message, ...]
    answers: list[Response] = field(default_factory=list)  # the best response of each of its comparisons


class Question(NamedTuple):
    """A comparison to embed at a length, or the reason why it is not."""

    id: str
    comparison: Comparison
    conversation: Conversation
    length: int
    problem: str = ""
    again: bool = False  # not its first context of this length


class ReplyRequest(NamedTuple):
    """A request to reply to one conversation of an inbox."""

    conversation: Conversation
    fields: dict[str, Any]  # of its comparison: the prompt and the spans in it
    columns: dict[str, Any]  # its metadata


class Inboxes:
    """Makes the contexts. Every conversation of the input is tokenized once and kept in memory."""

    def __init__(self, recipe: EmbedRecipe, tokenizer: Tokenizer, comparisons: Iterable[Comparison]) -> None:
        self._recipe, self._tokenizer = recipe, tokenizer
        # Distractors are the conversations of comparisons that are not skipped, each once.
        self._conversations: dict[str, Conversation] = {}
        # With the reason why a comparison is skipped, or "".
        self._comparisons: list[tuple[Comparison, Conversation, str]] = []
        for comparison in comparisons:
            text = shown(comparison.prompt)
            known = self._conversations.get(text)
            conversation = known or Conversation(
                text, tokenizer.count("\n" + text), comparison.group, comparison.prompt
            )
            reason = self._why_skipped(comparison, conversation)
            self._comparisons.append((comparison, conversation, reason))
            if not reason:
                self._conversations[text] = conversation
                conversation.answers.append(best_response(comparison))
        self._answered = cache(self._with_answer)
        self._header = cache(lambda sender: tokenizer.count(BETWEEN + SENDER.format(sender)))
        longest = " ".join(max(names, key=tokenizer.count) for names in (FIRST_NAMES, SURNAMES))
        self._overhead = len(tokenizer.prompt_ids(asking(item(SENDER.format(longest), ""), longest)))

    def _with_answer(self, conversation: Conversation) -> tuple[str, int]:
        """The text of a conversation with its first answer, and its tokens."""
        text = shown((*conversation.prompt, *conversation.answers[0]))
        return text, self._tokenizer.count("\n" + text)

    def _why_skipped(self, comparison: Comparison, conversation: Conversation) -> str:
        recipe, ranks = self._recipe, comparison.ranks
        if comparison.role == "judgment":
            raise DataError(
                f"{recipe.source}: comparison '{comparison.id}' has judgments of one response; embedding needs "
                "responses to a prompt"
            )
        if ranks is None:
            return "order_unknown"
        if len(set(ranks)) == 1:
            return "tied"
        if comparison.tools:
            return "has_tools"  # an inbox cannot show them
        if recipe.max_prompt is not None and conversation.tokens > recipe.max_prompt:
            return "prompt_too_long"
        return ""

    def plan(self) -> list[Question]:
        """What to embed, for every length; comparisons that are not embedded are listed with the reason."""
        planned: list[Question] = []
        for length in self._recipe.lengths:
            fitting: list[Question] = []
            for comparison, conversation, reason in self._comparisons:
                if not reason and conversation.tokens + self._overhead > length:
                    reason = "too_long"
                question = Question(f"{comparison.id}@{length}", comparison, conversation, length, reason)
                (planned if reason else fitting).append(question)
            for number in range((self._recipe.contexts or len(fitting)) if fitting else 0):
                time, place = divmod(number, len(fitting))
                if place == 0:
                    # By a hash, so that all lengths begin with the same comparisons.
                    fitting.sort(key=lambda one: hash_fraction(self._recipe.seed, time, one.comparison.id))
                question = fitting[place]
                planned.append(
                    question._replace(id=f"{question.id}#{time + 1}", again=True) if time else question
                )
            if self._recipe.contexts is not None:
                planned += [one._replace(problem="not_drawn") for one in fitting[self._recipe.contexts :]]
        return planned

    async def make_rows(self, question: Question) -> InputOutcome:
        """The rows of one context."""
        recipe, comparison, steps = self._recipe, question.comparison, Steps()
        if not question.again:
            steps["comparisons", question.problem or KEPT] += 1
        if question.problem:
            return InputOutcome(question.id, (), steps)
        requests = self._fill(question)
        if isinstance(requests, str):
            steps["contexts", requests] += 1
            return InputOutcome(question.id, (), steps)
        steps["contexts", KEPT] += 1
        rows = []
        if "preference" in recipe.pairs:
            # Evaluations are broken down by task and subtype, so the input's task becomes the subtype.
            subtype = comparison.metadata.get("task") or comparison.metadata.get("subtype")
            metadata = {**comparison.metadata, "task": "preference", **requests[0].columns}
            metadata |= {"subtype": subtype} if subtype else {}
            rows.append(replace(comparison, id=question.id, metadata=metadata, **requests[0].fields))
        if len(requests) == 2:
            rng, best = Rng(recipe.seed, question.id, "responses"), best_response(comparison)
            other = rng.choice([one for one in requests[1].conversation.answers if one != best])
            listed = [*rng.order((0, 1))]
            # Both rows list the same responses, and each is chosen once: a reader of responses alone gets exactly half.
            rows += [
                Comparison(
                    id=f"{question.id}:relevance-{at + 1}",
                    group=comparison.group,
                    responses=tuple((best, other)[one] for one in listed),
                    ranks=tuple(1 if one == at else 2 for one in listed),
                    metadata={"task": "relevance", **request.columns},
                    **request.fields,
                )
                for at, request in enumerate(requests)
            ]
        if self._wants_relevance(question):
            steps["relevance", KEPT if len(requests) == 2 else "no_other_conversation"] += 1
        return InputOutcome(question.id, [to_native_row(row) for row in rows], steps)

    def _wants_relevance(self, question: Question) -> bool:
        recipe = self._recipe
        drawn = hash_fraction(recipe.seed, question.id, "relevance") < recipe.relevance_share
        return "relevance" in recipe.pairs and drawn

    def _fill(self, question: Question) -> list[ReplyRequest] | str:
        """Fills a context to its length, or returns the reason why it is dropped.

        The requests are for the comparison's own conversation and then, for relevance, for another one.
        """
        recipe, own, key = self._recipe, question.conversation, (self._recipe.seed, question.id)
        most, fewest = question.length, math.ceil(FILLED * question.length)
        best = best_response(question.comparison)
        name = next(senders(Rng(*key, "senders")))
        base = len(self._tokenizer.prompt_ids(asking(item(SENDER.format(name), own.text), name)))
        room = most - base
        if room < 0:
            return "too_long"
        for attempt in range(_TRIES):
            rng = Rng(*key, attempt)
            padding, left = list[DocumentChunk](), room
            names = senders(Rng(*key, "senders"))
            asked, sender = [(own, next(names))], next(names)
            wants_second = self._wants_relevance(question)
            for other in rng.order([*self._conversations.values()]):
                if other is own or other.group == own.group:
                    continue
                is_second = wants_second and any(answer != best for answer in other.answers)
                text, tokens = other.text, other.tokens
                if not is_second and rng.fraction() < recipe.answered:
                    text, tokens = self._answered(other)
                tokens += self._header(sender)
                if tokens > left:
                    if left <= most - fewest:
                        break
                    continue
                left -= tokens
                if is_second:
                    asked.append((other, sender))
                    wants_second = False
                else:
                    text = item(SENDER.format(sender), text)
                    padding.append(DocumentChunk(len(padding), 0, len(text), text, tokens=tokens))
                sender = next(names)
            if left > most - fewest:
                continue

            rng.shuffle(asked)  # because the layout keeps the order of the texts that it places
            texts = [item(SENDER.format(name), conversation.text) for conversation, name in asked]
            context = lay_out("scattered", texts, (), padding, "", rng)
            found = []
            for (conversation, name), (start, end) in zip(asked, context.evidence, strict=True):
                prompt, size = asking(context.text, name), len(context.text)
                others = size - (end - start)
                fields = {
                    "prompt": prompt,
                    "context": (Span(0, 0, size),),
                    "question": Span(0, size + len(BETWEEN), len(text_of(prompt))),
                    "evidence": (Span(0, start, end),),
                }
                columns = {
                    "length": question.length,
                    "depth": round(start / others, 4) if others else 0.5,  # in characters of the other items
                    "tokens": len(self._tokenizer.prompt_ids(prompt)),
                    "items": len(asked) + len(padding),
                    "sender": name,
                    "embedded": question.comparison.id,
                }
                found.append(ReplyRequest(conversation, fields, columns))
            counts = [one.columns["tokens"] for one in found]
            if fewest <= min(counts) and max(counts) <= most:
                found.sort(key=lambda one: one.conversation is not own)
                return found
            # The sum of the items is exact if the tokenizer splits at line breaks, and otherwise off by this much.
            room = most - base - (max(counts) - (base + room - left))
        return f"cannot_fill_{most}_tokens"


def best_response(comparison: Comparison) -> Response:
    """The first of the responses that gold ranks best."""
    return comparison.responses[comparison.best_first()[0]]


def shown(messages: Sequence[Message]) -> str:
    """A conversation as text, with roles if it has several turns."""
    if len(messages) == 1:
        return text_of(messages).strip()
    return "\n".join(f"{str(one.get('role')).capitalize()}: {text_of([one]).strip()}" for one in messages)


def item(header: str, text: str) -> str:
    """An item of an inbox."""
    return f"{header}\n{text}"


def asking(context: str, sender: str) -> tuple[Message, ...]:
    """The prompt that asks for the reply to one of the senders."""
    return as_messages(context + BETWEEN + INSTRUCTION.format(sender), "user")


def senders(rng: Rng) -> Iterator[str]:
    """Names in a drawn order, without repetition."""
    first, last = [*rng.order(FIRST_NAMES)], [*rng.order(SURNAMES)]
    different = math.lcm(len(first), len(last))  # pairs before the first one comes again
    for number in count():
        name = f"{first[number % len(first)]} {last[number % len(last)]}"
        yield name if number < different else f"{name} {number // different + 1}"
