"""What every format of judging has: how a judge is asked, and how its answer is read."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from longrm.errors import DataError
from longrm.judging.answers import answer_of, last_line_unquoted, plain, quotations_blanked, squeezed
from longrm.judging.endings import (
    box_at_end,
    follows_an_end,
    is_own_sentence,
    json_at_end,
    reports_others_words,
    values_under,
)
from longrm.judging.explanations import only_explains, verdict_first
from longrm.judging.prompts import prompt_text, response_text
from longrm.judging.templates import Template
from longrm.judging.verdicts import last_match, last_verdict
from longrm.reading import is_number
from longrm.types import Message, Query, Scale, message_text, text_of

_REMINDER = "Your answer holds no verdict that can be read. Reply with the verdict only, alone on one line"


@dataclass(frozen=True, slots=True)
class ParsedVerdict:
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


class JudgingFormat(ABC):
    """One way to ask for a judgment and to read it.

    Attributes:
        name: How settings and the command line call it.
        scale: What a difference of two scores means.
        counts: How many responses it can judge.
        alone: Whether every response is judged in a prompt of its own.
        instruction: Stands between the conversation and the responses.
        by_criterion: Stands there where one criterion is asked about, which is named behind the responses.
        request: Ends the prompt: what to write, and in which form.
        form: The form of the verdict, in words.
        reminder: The user's message of a retry, which asks for the verdict only.
        marker: Finds a verdict in the form asked for; group 1 is what it says.
        worded: Finds a verdict in unmistakable words on a line, or as a whole answer, likewise.
        telling: Of what a sentence must speak for a marker in it to be a verdict. Numbers may be references.
        value: Finds a verdict that is all of a text, as in a box or a field of JSON; group 1 is what it says.
        keys: The fields of JSON that hold a verdict, by their letters in lower case.
        boxes: Whether a box on a line of its own holds a verdict. A number in it answers the question far more often.
    """

    name: ClassVar[str]
    scale: ClassVar[Scale]
    counts: ClassVar[range]
    alone: ClassVar[bool] = False
    instruction: ClassVar[str]
    by_criterion: ClassVar[str]
    request: ClassVar[str]
    form: ClassVar[str]
    marker: ClassVar[re.Pattern[str]]
    worded: ClassVar[re.Pattern[str]]
    telling: ClassVar[re.Pattern[str]] = re.compile("")
    value: ClassVar[re.Pattern[str]]
    keys: ClassVar[frozenset[str]]
    boxes: ClassVar[bool] = True

    def __init__(self, template: Template | None = None, verdict: re.Pattern[str] | None = None) -> None:
        self._template, self._verdict = template, verdict
        form = self.form if verdict is None else "in the form that was asked for"
        self.reminder = f"{_REMINDER}: {form}"

    def render(self, query: Query) -> list[tuple[Message, ...]]:
        """The prompts of a query: one, or one for each response where they are judged alone.

        What depends on neither the responses nor their order comes first, so that its tokens are shared; the
        criterion comes last but for the request.

        Raises:
            DataError: The format cannot show so many responses, or the template shows what is not known.
            ConfigError: The template cannot be rendered.
        """
        if len(query.responses) not in self.counts:
            bounds = " to ".join(map(str, sorted({self.counts[0], self.counts[-1]})))
            raise DataError(
                f"comparison '{query.id}': the {self.name} format judges {bounds} responses, and there are "
                f"{len(query.responses)}; use the {'listwise' if len(self.counts) == 1 else 'pointwise'} format"
            )
        shown = [response_text(response, query) for response in query.responses]
        groups = [[text] for text in shown] if self.alone else [shown]
        if self._template is not None:
            texts = [self._template.render(query, group) for group in groups]
        else:
            instruction = self.by_criterion if query.criterion else self.instruction
            texts = [prompt_text(query, group, instruction, self.request) for group in groups]
        return [({"role": "user", "content": text},) for text in texts]

    def parse(self, text: str, query: Query) -> ParsedVerdict | None:
        """Reads the last verdict of an answer; None where there is none that can be taken without guessing.

        Thinking and quotations are set aside. A verdict that stands in the query in the same words is a quotation.
        """
        answer, count = answer_of(text), len(query.responses)
        sources = [*map(message_text, query.prompt), *map(text_of, query.responses), query.criterion]
        own_words = plain(quotations_blanked(answer))
        if self._verdict is not None:
            verdict = last_match(answer, self._verdict, [self.request, *sources])
        else:
            verdict = self._last_verdict(answer, sources, count) or self._first_verdict(
                answer, sources, count
            )
        return None if verdict is None else self.read(verdict, own_words, count)

    @abstractmethod
    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """Reads what a verdict says about so many responses; None where it says nothing that can be."""

    def text_of(self, verdict: Any) -> str:
        """What a field of JSON says, as text; empty where it is of no kind that could be a verdict."""
        return str(verdict) if isinstance(verdict, str) or is_number(verdict) else ""

    def claimed_verdict(self, own_words: str, sources: Sequence[str]) -> str | None:
        """A verdict in the words of a whole last line; most formats have none."""
        return None

    def _first_verdict(self, answer: str, sources: Sequence[str], count: int) -> str | None:
        """The verdict that an answer without brackets states before it explains it."""
        if self.marker.search(answer):
            return None
        for before, explanation in verdict_first(answer):
            named = len(before.split()) < 3 and self.value.fullmatch(plain(before))
            if named and ("\n" in answer.strip() or answer.strip()[len(before) :].lstrip(" *_")[:1] in "(:"):
                continue  # a name may be a heading
            if json_at_end(before) is None and not follows_an_end(before.rpartition("\n")[0]):
                continue  # so may a line above
            verdict = self._last_verdict(before, sources, count)
            if verdict is not None and only_explains(plain(explanation), verdict):
                return None if not named and _stands_in(before, sources) else verdict
        return None

    def _last_verdict(self, answer: str, sources: Sequence[str], count: int) -> str | None:
        """The last verdict in the answer's own words, else one in a form of its own that the answer ends with."""
        own_words = plain(quotations_blanked(answer))
        found = json_at_end(answer)
        if found is not None:
            before, written, value = found
            own_words = plain(quotations_blanked(before))
            verdict = self._verdict_in(own_words, sources)
            earlier = json_at_end(before)
            if verdict is None and earlier and values_under(self.keys, earlier[2]):
                return None  # one of several
            return verdict or self._verdict_in_json(own_words, written, value, sources, count)
        verdict = self._verdict_in(own_words, sources)
        if verdict is None and not self.marker.search(own_words):
            verdict = self._verdict_in_box(answer, sources) or self.claimed_verdict(own_words, sources)
        return verdict or self._verdict_in_quotes(answer, own_words, sources)

    def _verdict_in(self, own_words: str, sources: Sequence[str]) -> str | None:
        return last_verdict(own_words, (self.marker, self.worded), [self.request, *sources], self.telling)

    def _verdict_in_json(
        self, before: str, written: str, value: Any, sources: Sequence[str], count: int
    ) -> str | None:
        """What the object says under the keys of a verdict, if it says one thing and no source holds the object."""
        if before.strip() and (_stands_in(written, sources) or reports_others_words(before)):
            return None
        texts = [self.text_of(verdict) for verdict in values_under(self.keys, value)]
        matches = [self.value.fullmatch(plain(text).replace("_", " ")) for text in texts]
        readings = {match and self.read(match[1], "", count) for match in matches}
        verdict = next((match[1] for match in matches if match), None)
        if len(readings) != 1 or None in readings or verdict is None:
            return None
        return self._verdict_in(f"{before} verdict [[{verdict}]]", sources)

    def _verdict_in_box(self, answer: str, sources: Sequence[str]) -> str | None:
        """What stands in the box that is the last line, where a box is no answer to the question."""
        found = box_at_end(answer) if self.boxes else None
        content = found and self.value.fullmatch(plain(found[1]))
        if not found or not content or _stands_in(f"\\boxed{{{found[1]}}}", sources):
            return None
        before = plain(quotations_blanked(found[0]))
        if reports_others_words(before):
            return None
        return self._verdict_in(f"{before}\nverdict [[{content[1]}]]", sources)

    def _verdict_in_quotes(self, answer: str, own_words: str, sources: Sequence[str]) -> str | None:
        """The verdict on the last line, if that is all of it or it states it, and no source holds the line."""
        before, line = map(plain, last_line_unquoted(answer))
        stated = bool(self.marker.fullmatch(line.strip(" \t\n.")) or self.worded.search(line))
        if not stated and is_own_sentence(line, self.marker):
            stated = not self.marker.search(own_words.rstrip().rpartition("\n")[2])
        if not stated or (before.strip() and _stands_in(line, sources)) or reports_others_words(before):
            return None
        return self._verdict_in(f"{before}\n{line}" if before.strip() else line, sources)


def _stands_in(text: str, sources: Sequence[str]) -> bool:
    wanted = squeezed(text)
    return any(wanted in squeezed(source) for source in sources)
