"""What a domain is: how its answers are judged, and how its contexts are laid out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from longrm.data.chunking import words_of
from longrm.synthesis.prompt_tags import free_name

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "Chinese"}
"""What messages call the languages."""

ContextLayout = Literal["scattered", "document", "segment", "short"]
"""Where critical chunks stand. "scattered": each at a depth of its own, without tags. "document": together, among
discarded chunks of their document, and a tag pair around all of these. "segment": together, a tag pair around them
alone. "short": there is no context, and nothing is padded."""

_REQUEST = {
    "en": (
        "Write a short analysis first: name what decides, and quote the passages that show it instead of saying where "
        "they stand. Then end with the score, a whole number from 0 to 10, alone on the last line between double "
        "square brackets, in this form: [[5]]."
    ),
    "zh": (
        "请先写一段简短的分析：说明起决定作用的地方，并直接引用能证明它的原文，不要用位置来指代原文。"
        "然后在最后一行单独写出分数，即 0 到 10 之间的一个整数，放在双方括号内，形式如下：[[5]]。"
    ),
}
SCORE_LINE = r"\[\[(10|[0-9])\]\]"
"""The last line that the prompts ask for, as a regular expression."""
_TAGGED = {
    "en": "The question is about what stands between <{tag}> and </{tag}>; everything else is beside the point.",
    "zh": "问题针对的是 <{tag}> 与 </{tag}> 之间的内容，其余内容与问题无关。",
}
_LABELS = {
    "en": "Grade by these levels; an odd number lies between its neighbors. Do not mention the levels.",
    "zh": "请按以下等级打分，奇数表示介于相邻两级之间。分析中不要提及这些等级。",
}


@dataclass(frozen=True, slots=True)
class RubricWording:
    """A domain's words in one language.

    `task` says what is to be judged, and by which merit; it is in both prompts. `levels` are what 10, 8, 6, 4, 2 and 0
    mean, shown to the labelling judge alone.
    """

    task: str
    levels: tuple[str, str, str, str, str, str]

    def rubric(self, language: Language) -> str:
        """The levels as the judge reads them."""
        marks = range(10, -1, -2)
        lines = [f"{mark}: {level}" for mark, level in zip(marks, self.levels, strict=True)]
        return "\n".join([_LABELS[language], *lines])


@dataclass(frozen=True, slots=True)
class Domain:
    """One kind of question: its rubric by language, and where critical chunks stand in its contexts."""

    name: str
    layout: ContextLayout
    wordings: Mapping[Language, RubricWording]

    def prompt(
        self, language: Language, context: str, question: str, response: str, *, tag: str, rubric: bool
    ) -> str:
        """The judging prompt: context and question first, which all responses share.

        Context and tag are empty where there is none. The rubric is shown to the labelling judge only.
        """
        wording = self.wordings[language]
        given = {"context": context, "question": question, "response": response}
        blocks = {
            name: _block(free_name(name, list(given.values())), text) for name, text in given.items() if text
        }
        parts = [
            blocks.get("context", ""),
            blocks["question"],
            wording.task,
            self.about(language, tag) if tag else "",
            wording.rubric(language) if rubric else "",
            blocks["response"],
            _REQUEST[language],
        ]
        return "\n\n".join(filter(None, parts))

    def about(self, language: Language, tag: str) -> str:
        """Says that the question is about what stands between these tags."""
        return _TAGGED[language].format(tag=tag)

    def texts(self) -> list[str]:
        """Everything that its prompts are made of, for their hash."""
        return [
            text
            for language, wording in sorted(self.wordings.items())
            for text in (wording.task, wording.rubric(language), _TAGGED[language], _REQUEST[language])
        ]


def language_of(text: str) -> Language:
    """Chinese where more than a third of the words are Chinese characters, else English."""
    found = words_of(text)
    chinese = sum("\u3400" <= word[0] <= "\u9fff" for word in found)
    return "zh" if 3 * chinese > len(found) else "en"


def _block(name: str, text: str) -> str:
    return f"<{name}>\n{text}\n</{name}>"
