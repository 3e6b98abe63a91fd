"""What every format of judging has: how a judge is asked, and how its answer is read."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from longrm.errors import DataError
from longrm.judging.answers import answer_of, last_line_unquoted, plain, quotations_blanked
from longrm.judging.prompts import prompt_text, response_text
from longrm.judging.templates import Template
from longrm.judging.verdicts import last_match, last_verdict, squeezed
from longrm.types import Message, Query, Scale, message_text, text_of

_REMINDER = "Your answer holds no verdict that can be read. Reply with the verdict only, alone on one line"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one answer of a judge says.

    Attributes:
        values: Pairwise: 1 for the better response and 0 for the other, or 0.5 each. Pointwise: one score from 0
            to 10. Listwise: empty unless responses tie, then from 1 for the best place to 0 for the last.
        order: Listwise without ties: presented positions from the best response to the worst. Otherwise empty.
        contradicted: Whether the explanation argues for another verdict; None where nothing tells.
    """

    values: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    contradicted: bool | None = None


class Format(ABC):
    """One way to ask for a judgment and to read it.

    Attributes:
        name: How settings and the command line call it.
        scale: What a difference of two scores means.
        counts: How many responses it can judge.
        alone: Whether every response is judged in a prompt of its own.
        instruction: Stands between the conversation and the responses.
        request: Ends the prompt: what to write, and in which form.
        form: The form of the verdict, in words.
        reminder: The user's message of a retry, which asks for the verdict only.
        marker: Finds a verdict in the form asked for; group 1 is what it says.
        worded: Finds a verdict in unmistakable words on a line, or as a whole answer, likewise.
        telling: Of what a sentence must speak for a marker in it to be a verdict. Numbers may be references.
    """

    name: ClassVar[str]
    scale: ClassVar[Scale]
    counts: ClassVar[range]
    alone: ClassVar[bool] = False
    instruction: ClassVar[str]
    request: ClassVar[str]
    form: ClassVar[str]
    marker: ClassVar[re.Pattern[str]]
    worded: ClassVar[re.Pattern[str]]
    telling: ClassVar[re.Pattern[str]] = re.compile("")

    def __init__(self, template: Template | None = None, verdict: re.Pattern[str] | None = None) -> None:
        self._template, self._verdict = template, verdict
        form = self.form if verdict is None else "in the form that was asked for"
        self.reminder = f"{_REMINDER}: {form}"

    def render(self, query: Query) -> list[tuple[Message, ...]]:
        """The prompts of a query: one, or one for each response where they are judged alone.

        What depends on neither the responses nor their order comes first, so that its tokens are shared.

        Raises:
            DataError: The format cannot show so many responses, or the template shows what is not known.
            ConfigError: The template cannot be rendered.
        """
        self._check(query)
        shown = [response_text(response, query) for response in query.responses]
        groups = [[text] for text in shown] if self.alone else [shown]
        return [({"role": "user", "content": self._text(query, group)},) for group in groups]

    def parse(self, text: str, query: Query) -> Reading | None:
        """Reads the last verdict of an answer; thinking and quotations are set aside.

        Args:
            text: What the model wrote.
            query: What it was asked about: a verdict that stands there in the same words is a quotation.

        Returns:
            None where there is no verdict, or none that can be taken without guessing.
        """
        answer, count = answer_of(text), len(query.responses)
        sources = [*map(message_text, query.prompt), *map(text_of, query.responses)]
        own = plain(quotations_blanked(answer))
        if self._verdict is not None:
            said = last_match(answer, self._verdict, [self.request, *sources])
        else:
            said = self._said(own, sources) or self._said_in_quotes(answer, sources)
        return None if said is None else self.read(said, own, count)

    @abstractmethod
    def read(self, said: str, explanation: str, responses: int) -> Reading | None:
        """Reads what a verdict says about so many responses; None where it says nothing that can be."""

    def _said(self, own: str, sources: Sequence[str]) -> str | None:
        return last_verdict(own, (self.marker, self.worded), [self.request, *sources], self.telling)

    def _said_in_quotes(self, answer: str, sources: Sequence[str]) -> str | None:
        """The verdict that is all of the last line but for quotation marks, if no source holds it."""
        before, line = map(plain, last_line_unquoted(answer))
        whole = self.marker.fullmatch(line.strip(" \t\n.")) or self.worded.search(line)
        if whole is None or (
            before.strip() and any(squeezed(line) in squeezed(source) for source in sources)
        ):
            return None
        return self._said(f"{before}\n{line}" if before.strip() else line, sources)

    def _check(self, query: Query) -> None:
        if len(query.responses) not in self.counts:
            bounds = " to ".join(map(str, sorted({self.counts[0], self.counts[-1]})))
            raise DataError(
                f"comparison '{query.id}': the {self.name} format judges {bounds} responses, and there are "
                f"{len(query.responses)}; use the {'listwise' if len(self.counts) == 1 else 'pointwise'} format"
            )

    def _text(self, query: Query, shown: Sequence[str]) -> str:
        if self._template is not None:
            return self._template.render(query, shown)
        return prompt_text(query.prompt, shown, self.instruction, self.request)
