"""What all published judges share: prompts that they were trained on, and answers in a form of their own."""

import re
import sys
from pathlib import Path
from typing import ClassVar

from longrm.errors import ConfigError
from longrm.judging.answers import answer_of, argues_otherwise, plain, unquoted
from longrm.judging.format import JudgingFormat, ParsedVerdict
from longrm.types import Query, Scale

_POINTS = {"A": (1.0, 0.0), "1": (1.0, 0.0), "B": (0.0, 1.0), "2": (0.0, 1.0)}


class NamedJudge(JudgingFormat):
    """A model that was trained to judge in one form: `judge.name`.

    A subclass has the form of the answers. The prompt is the judge's own text, which longrm does not contain:
    `judge.template` is a jinja2 file with it. A judge is not asked again in a second turn, which it does not know.

    Args:
        template: The judge's prompt; see `prompts.Template`.

    Raises:
        ConfigError: A template is missing, or given to a judge whose prompt is its chat template.
    """

    scale: ClassVar[Scale] = "verdict"
    n_responses = range(2, 3)
    form = ""

    source: ClassVar[str]  # the prompt and the form of the answer, as they were read
    pattern: ClassVar[re.Pattern[str]]  # group 1 is the verdict
    needs_template: ClassVar[bool] = True

    def __init__(self, template: Path | None = None) -> None:
        if self.needs_template and template is None:
            raise ConfigError(
                f"judge.name = '{self.name}' requires judge.template (--template), a jinja2 file with the prompt of "
                f"{self.source}"
            )
        if template is not None and not self.needs_template:
            raise ConfigError(
                f"judge.template does not apply to judge.name = '{self.name}', whose prompt is its chat template"
            )
        super().__init__(template)
        self.reminder = ""
        lines = self._template.source.splitlines() if self._template else []
        # A judge may repeat its prompt, in which some line has an example of a verdict in a sentence.
        self._examples = [
            line for line in lines if re.search(r"\w", rest := self.pattern.sub("", line)) and rest != line
        ]

    @property
    def prompt_texts(self) -> tuple[str, ...]:
        """The name, and the template if there is one."""
        return (self.name, self._template.source if self._template else "")

    def parse(self, text: str, query: Query) -> ParsedVerdict | None:
        """The last verdict after the thoughts; None without one, or if its line has two different ones."""
        answer = self.answer(text)
        found = [*self.pattern.finditer(answer)]
        if not found:
            return None
        line = answer.rfind("\n", 0, found[-1].start())
        verdicts = {match[1] for match in found if match.start() > line}
        return self.read(verdicts.pop(), plain(unquoted(answer)), 2) if len(verdicts) == 1 else None

    def answer(self, text: str) -> str:
        """A text without thoughts and without the prompt's examples of verdicts."""
        answer = answer_of(text)
        for example in self._examples:
            answer = answer.replace(example, "")
        return answer

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """A, B, 1 or 2 as the points of the two responses."""
        points = _POINTS[verdict]
        return ParsedVerdict(points, (), argues_otherwise(explanation, points))


class FivePoints(NamedJudge):
    """Rates one response at a time from 1 to 5, which become 0 to 10, the points of all pointwise judgments."""

    scale = "points"
    n_responses = range(1, sys.maxsize)
    pointwise = True

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """An integer from 1 to 5."""
        return ParsedVerdict((2.5 * (int(verdict) - 1),))
