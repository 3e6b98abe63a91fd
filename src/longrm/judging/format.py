"""What all judging formats share: rendering a prompt, and finding the verdict in an answer."""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from longrm.errors import ConfigError, DataError
from longrm.judging.answers import answer_of, boxed, plain, unquoted
from longrm.judging.prompts import OPENING, SOLVE, SOLVED, Template, prompt_text, question_text, response_text
from longrm.reading import is_number
from longrm.types import Message, Query, Scale

_REMINDER = "Your answer contains no verdict. Reply with the verdict only, on one line"


@dataclass(frozen=True, slots=True)
class ParsedVerdict:
    """The verdict of one answer."""

    # Pairwise 1 for the better response and 0 for the other, or 0.5 each; pointwise one score from 0 to 10; listwise
    # empty unless responses tie, then from 1 for the best place to 0 for the last. Published judges have other points.
    values: tuple[float, ...] = ()
    ranking: tuple[int, ...] = ()  # listwise without ties: presented positions, best first; otherwise empty
    contradicted: bool | None = (
        None  # whether the explanation argues for another verdict; None if it does not say
    )


def marked(content: str) -> re.Pattern[str]:
    """Finds content between double square brackets, as in [[A]]."""
    return re.compile(rf"\[\[\s*({content})\s*\]\]", re.IGNORECASE)


# Opens content in double, single or no square brackets; what follows must have those that close it, and no others.
_OPENED = r"(?:\[\[(?=[^\[\]]*\]\][^\[\]]*$)|\[(?=[^\[\]]*\][^\[\]]*$)|(?=[^\[\]]*$))\s*"


def valued(content: str) -> re.Pattern[str]:
    """Matches a text that is nothing but the content, in square brackets or without."""
    # No other signs before it: they may change its meaning, as in "> 7".
    return re.compile(rf"[\s#_:]*+{_OPENED}({content})[\s\].。!]*", re.IGNORECASE)


def labeled(labels: str, content: str) -> re.Pattern[str]:
    """Matches a line with a label and the content, as in "Final verdict: Response A"."""
    return re.compile(
        rf"(?:.*[.!?]\s+)?[\W_]*(?:(?:so|therefore|thus|hence),?\s+)?(?:(?:my|the|final|overall)\s+)*(?:{labels})"
        rf"(?:\s*[:=]|\s+is\b:?)\s*{_OPENED}({content})[\s\].。!]*",
        re.IGNORECASE,
    )


class JudgingFormat(ABC):
    """One way to ask for a judgment and to parse the answer.

    Args:
        template: A jinja2 file with the user's own prompt; see `prompts.Template`. By default the format's prompt.
        verdict: The user's own regular expression, whose one group is the verdict; by default the format's rules. `^`
            and `$` match at line ends, and the last match counts. Pairwise the group matches A, B, C or tie, 1, 2, or a
            relation such as A>B; listwise letters or numbers, best first; pointwise a number from 0 to 10.
    """

    name: ClassVar[str]  # in settings and on the command line
    scale: ClassVar[Scale]  # what a difference of two scores means
    n_responses: ClassVar[range]  # numbers of responses that it can judge
    pointwise: ClassVar[bool] = False  # whether every response is judged in its own prompt
    criteria: ClassVar[bool] = True  # whether it can ask about one criterion
    of_steps: ClassVar[bool] = False  # whether it judges the steps of trajectories, and not responses

    instruction: ClassVar[str]  # follows the conversation and precedes the responses
    by_criterion: ClassVar[str]  # replaces `instruction` for one criterion, which follows the responses
    request: ClassVar[str]  # ends the prompt: what to write, and in which form
    form: ClassVar[str]  # the form of the verdict, in words

    # In these patterns group 1 is the verdict.
    marker: ClassVar[re.Pattern[str]]  # a verdict in the requested form
    labeled: ClassVar[re.Pattern[str]]  # a whole line with a label and a verdict
    value: ClassVar[re.Pattern[str]]  # a whole text that is only a verdict, as in a box or a JSON field
    keys: ClassVar[frozenset[str]]  # names of JSON fields that hold a verdict, lower-case letters only
    boxes: ClassVar[bool] = True  # whether a box on its own line is a verdict

    def __init__(self, template: Path | None = None, verdict: str | None = None) -> None:
        self._template = None if template is None else Template(template, pointwise=self.pointwise)
        self._verdict = None if verdict is None else _verdict_pattern(verdict)
        form = self.form if verdict is None else "in the requested format"
        self.reminder = f"{_REMINDER}: {form}"  # of a retry; empty if the judge knows no second turn

    @property
    def prompt_texts(self) -> tuple[str, ...]:
        """The texts that its prompts are made of, for their hash in manifests."""
        own = (OPENING, SOLVE, SOLVED, self.instruction, self.by_criterion, self.request)
        return (*(own if self._template is None else (self._template.source,)), self.reminder)

    def render(self, query: Query) -> list[tuple[Message, ...]]:
        """The prompts of a query: one, or pointwise one for each response.

        Everything independent of the responses and their order comes first, so that prompts share its tokens.

        Raises:
            DataError: The format cannot judge so many responses, or the template uses a span that is not known.
        """
        return [
            (*({"role": "system", "content": one} for one in [system] if one is not None), _user(text))
            for system, text in self._texts(query)
        ]

    def render_turns(self, query: Query) -> list[tuple[Message, str]]:
        """The same in two turns each: a message that asks for the judge's own answer, and what follows that answer.

        The first one shows no response, so it is the same for all orders and all responses.
        """
        asks = (
            question_text(query)
            if self._template is None
            else self._template.render(query, [], solve=True)[1]
        )
        return [(_user(asks), text) for _, text in self._texts(query, solved=True)]

    def check_count(self, query: Query) -> None:
        """Raises a `DataError` if the format cannot judge these responses, or so many."""
        if query.steps and not (self.of_steps or self.pointwise):
            raise DataError(
                f"'{query.id}': the {self.name} format does not judge steps; use judge.format = 'steps'"
            )
        if self.of_steps and not query.steps:
            raise DataError(
                f"'{query.id}': the {self.name} format judges steps of trajectories, not responses"
            )
        if len(query.responses) not in self.n_responses:
            bounds = " to ".join(map(str, sorted({self.n_responses[0], self.n_responses[-1]})))
            more = len(self.n_responses) == 1 and len(query.responses) > 1
            raise DataError(
                f"comparison '{query.id}': the {self.name} format judges {bounds} responses, not "
                f"{len(query.responses)}; use the {'listwise' if more else 'pointwise'} format"
                + (", or judge.group = 'round-robin'" if more else "")
            )

    def _texts(self, query: Query, *, solved: bool = False) -> list[tuple[str | None, str]]:
        """The system message, None by default, and the user's message of every prompt."""
        self.check_count(query)
        shown = [response_text(response, query) for response in query.responses]
        groups = [[text] for text in shown] if self.pointwise else [shown]
        if self._template is not None:
            return [self._template.render(query, group) for group in groups]
        instruction = self.by_criterion if query.criterion else self.instruction
        return [
            (None, prompt_text(query, group, instruction, self.request, solved=solved)) for group in groups
        ]

    def parse(self, text: str, query: Query) -> ParsedVerdict | None:
        """Parses the last verdict of an answer; None if there is none.

        Thoughts are removed. The user's own pattern is searched in the rest. By default the verdict is the last one in
        double square brackets outside of quotations (none if its line has two different ones), else that of
        `_verdict_at_end`.
        """
        # A judge may repeat the form, which has a verdict in it.
        answer, count = answer_of(text).replace(self.form, ""), len(query.responses)
        explanation = plain(unquoted(answer))
        if self._verdict is not None:
            matches = [match[1] for match in self._verdict.finditer(answer) if match[1]]
            verdict = matches[-1] if matches else None
        elif self.marker.search(explanation):
            verdict = self._marked(explanation, count)
        else:
            verdict = self._verdict_at_end(answer, count)
        return None if verdict is None else self.read(verdict, explanation, count)

    @abstractmethod
    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """Interprets the text of a verdict about so many responses; None if it is not one."""

    def text_of(self, verdict: Any) -> str:
        """The text of a JSON field; empty if its type cannot be a verdict."""
        return str(verdict) if isinstance(verdict, str) or is_number(verdict) else ""

    def claimed(self, line: str) -> str | None:
        """The verdict of a sentence such as "Assistant A wins."."""
        return None

    def _marked(self, text: str, count: int) -> str | None:
        lines = [line for line in text.split("\n") if self.marker.search(line)]
        if not lines:
            return None
        verdicts = [match[1] for match in self.marker.finditer(lines[-1])]
        return verdicts[-1] if len({self.read(verdict, "", count) for verdict in verdicts}) == 1 else None

    def _verdict_at_end(self, answer: str, count: int) -> str | None:
        """The verdict at the end of an answer that has none in brackets outside of quotations.

        In this order: JSON at the end; the last line, if it has brackets in quotation marks or is a box; the whole
        answer; the last line with a label; a heading with a verdict below; a last line that only states a verdict.
        """
        if (verdict := self._verdict_in_json(answer)) is not None:
            return verdict
        lines = [line for line in answer.split("\n") if re.search(r"\w", line)]
        if not lines:
            return None
        box, line = boxed(lines[-1]) if self.boxes else None, plain(lines[-1]).strip().rpartition("\n")[2]
        if (verdict := self._marked(line, count)) is not None:
            return verdict
        if len(lines) == 1 or box is not None:
            whole = self.value.fullmatch(line if box is None else plain(box))
            if whole:
                return whole[1]
        labels = (self.labeled.fullmatch(plain(one).strip().rpartition("\n")[2]) for one in reversed(lines))
        match = next((match for match in labels if match), None)
        if match is None and len(lines) > 1:
            match = self.labeled.fullmatch(f"{plain(lines[-2]).strip(' #_:')}: {line}")
        return match[1] if match else self.claimed(line.strip(" _#.!。"))

    def _verdict_in_json(self, answer: str) -> str | None:
        """The verdict in the JSON at the end of the answer: a list, or an object if one field has a verdict's name.

        The end of the object may be cut. A field counts if its value is complete.
        """
        end = answer.rstrip("` \t\n.")
        if end.endswith("]") and (listed := _list_at_end(end)) is not None:
            return self._value(listed)
        fields = None if end.endswith("}") else _fields_of_cut(end)
        if not end.endswith("}") and fields is None:
            return None
        # The outermost object is tried first. The limit keeps a text full of brackets from taking quadratic time.
        starts = (found.start() for found in re.finditer(r"\{", end)) if fields is None else ()
        for start in islice(starts, 50):
            try:
                fields, stop = json.JSONDecoder().raw_decode(end, start)
            except (ValueError, RecursionError):
                continue
            if stop == len(end):
                break
            fields = None
        if not isinstance(fields, dict):
            return None
        verdicts = [
            value for key, value in fields.items() if re.sub("[^a-z]|^final", "", key.lower()) in self.keys
        ]
        if len(verdicts) != 1:
            return None
        return self._value(verdicts[0])

    def _value(self, verdict: Any) -> str | None:
        match = self.value.fullmatch(plain(self.text_of(verdict)).replace("_", " "))
        return match[1] if match else None


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[][{},]', re.DOTALL)


def _list_at_end(text: str) -> list[Any] | None:
    """The JSON list that ends a text and begins a line, alone or after a label such as "Ranking:"."""
    start = re.compile(r"^[ \t*]*(?:[\w ]{1,20}:[ \t*]*)?(?=\[)", re.MULTILINE)
    for place in islice((found.end() for found in start.finditer(text)), 50):
        try:
            found = json.loads(text[place:])
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, list) else None
    return None


def _fields_of_cut(text: str) -> dict[str, Any] | None:
    """The complete fields of a JSON object that begins a line and is not closed."""
    for found in islice(re.finditer(r'^[ \t]*\{(?=\s*")', text, re.MULTILINE), 50):
        start, depth, comma = found.end() - 1, 0, None
        for token in _JSON_TOKEN.finditer(text, start):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            if depth == 0:
                break  # it is closed
            if depth == 1 and token[0] == ",":
                comma = token.start()
        if depth == 0:
            continue
        # More digits may have followed a number at the end.
        ends = [comma] if text[-1].isdigit() else [len(text), comma]
        for end in ends:
            try:
                fields = json.loads(f"{text[start:end]}}}") if end is not None else None
            except (ValueError, RecursionError):
                continue
            if isinstance(fields, dict):
                return fields
    return None


def _verdict_pattern(expression: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(expression, re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"the verdict pattern {expression!r} is invalid: {error}") from error
    if pattern.groups != 1:
        raise ConfigError(
            f"the verdict pattern {expression!r} has {pattern.groups} groups instead of 1; write others as (?:...)"
        )
    return pattern


class TokenFormat(JudgingFormat):
    """A format whose verdict is one token: nothing is generated or parsed, its probability is read.

    SWE-RM reads the logits of YES and NO in this way, and vLLM serves a language model as such a classifier
    (`classifier_from_token`, `from_2_way_softmax`).
    """

    # One for each response in presented order; pointwise the one for and the one against the response.
    tokens: tuple[str, ...]

    def __init__(self, template: Path | None = None, tokens: Sequence[str] | None = None) -> None:
        super().__init__(template)
        if tokens is None:
            return
        if template is None:
            raise ConfigError("judge.tokens requires judge.template, a prompt that asks for them")
        if len({token.strip() for token in tokens} - {""}) < len(tokens):
            raise ConfigError(f"judge.tokens must be distinct and not blank, got {list(tokens)}")
        ranked = self.name == "listwise"  # the others have one token each for two answers
        if len(tokens) < 2 or (len(tokens) > 2 and not ranked):
            needed = "at least 2" if ranked else "2"
            raise ConfigError(
                f"judge.tokens needs {needed} tokens for the {self.name} format, got {len(tokens)}"
            )
        self.tokens = tuple(tokens)

    def scores(self, logprobs: Sequence[Sequence[float]], responses: int) -> tuple[float, ...]:
        """Scores whose differences are log-odds, from the log-probability of every token after every prompt.

        Pointwise log P(for) - log P(against), else the log-probability of each response's token among those of all.
        """
        if self.pointwise:
            return tuple(yes - no for yes, no in logprobs)
        (row,) = logprobs
        shown = row[:responses]
        highest = max(shown)
        if not math.isfinite(highest):
            return tuple(shown)
        total = highest + math.log(sum(math.exp(value - highest) for value in shown))
        return tuple(value - total for value in shown)

    def explain(self, row: Sequence[float]) -> str:
        """The probabilities among all tokens: if they are small, the model prefers another answer."""
        return ", ".join(
            f"P({token}) = {math.exp(value):.4f}" for token, value in zip(self.tokens, row, strict=False)
        )
