"""The domains of synthesized judgments: one TOML file each, with its rubric in several languages."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from longrm.data.chunking import words_of
from longrm.errors import ConfigError
from longrm.judging.prompts import free_name
from longrm.rng import Rng

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "Chinese"}

ContextLayout = Literal["scattered", "document", "segment", "short"]
"""Where the critical chunks go. "scattered": each at its own depth, without tags. "document": together, among discarded
chunks of their document, with a tag pair around all of these. "segment": together, with a tag pair around them alone.
"short": there is no context, and nothing is padded."""

SCORE_LINE = r"\[\[(10|[0-9])\]\]"
"""The last line that the prompts ask for, as a regular expression."""

_REQUEST = {
    "en": (
        "First write a short analysis: say what decides and quote the passages that show it, instead of describing "
        "where they are. Then write the score on the last line, a whole number from 0 to 10 in double square brackets, "
        "in this format: [[5]]"
    ),
    "zh": (
        "请先写一段简短的分析：说明起决定作用的地方，并直接引用能证明它的原文，不要用位置来指代原文。"
        "然后在最后一行单独写出分数，即 0 到 10 之间的一个整数，放在双方括号内，形式如下：[[5]]。"
    ),
}
_TAGGED = {
    "en": "The question is about the text between <{tag}> and </{tag}>. Ignore everything else.",
    "zh": "问题针对的是 <{tag}> 与 </{tag}> 之间的内容，其余内容与问题无关。",
}
_LABELS = {
    "en": "Use these levels; an odd number is between its neighbors. Do not mention the levels.",
    "zh": "请按以下等级打分，奇数表示介于相邻两级之间。分析中不要提及这些等级。",
}
_TAG_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowels, so that no draw spells a word


@dataclass(frozen=True, slots=True)
class Domain:
    """One kind of question: its rubric by language, and where critical chunks go in its contexts."""

    name: str  # its name in settings and rows
    layout: ContextLayout  # see `ContextLayout`
    # by language, what is judged and by which merit; part of the judge's prompt and of the row's
    tasks: Mapping[Language, str]
    # by language, what 10, 8, 6, 4, 2 and 0 points mean; shown to the labeling judge only
    levels: Mapping[Language, Sequence[str]]

    @classmethod
    def parse(cls, name: str, text: str) -> "Domain":
        """Reads a domain from TOML: `layout`, and for each language a table with `task` and six `levels`."""
        table = tomllib.loads(text)
        languages: list[Language] = [language for language in LANGUAGES if language in table]
        return cls(
            name,
            table["layout"],
            {language: table[language]["task"] for language in languages},
            {language: table[language]["levels"] for language in languages},
        )

    def rubric(self, language: Language) -> str:
        """The levels as the judge reads them."""
        levels = zip(range(10, -1, -2), self.levels[language], strict=True)
        return "\n".join([_LABELS[language], *(f"{points}: {level}" for points, level in levels)])

    def prompt(
        self, language: Language, context: str, question: str, response: str, *, tag: str, rubric: bool
    ) -> str:
        """The judging prompt. Context and question come first, so that all responses share them as a prefix.

        `tag` names the tag pair in the context that the question is about. The rubric is for the labeling judge, and
        not in the row. Context and tag may be empty.
        """
        given = {"context": context, "question": question, "response": response}
        blocks = {
            name: wrapped(free_name(name, list(given.values())), text) for name, text in given.items() if text
        }
        parts = [
            blocks.get("context", ""),
            blocks["question"],
            self.tasks[language],
            tag_hint(language, tag) if tag else "",
            self.rubric(language) if rubric else "",
            blocks["response"],
            _REQUEST[language],
        ]
        return "\n\n".join(filter(None, parts))

    def texts(self) -> list[str]:
        """All texts that its prompts are made of, for their hash."""
        return [
            text
            for language in sorted(self.tasks)
            for text in (self.tasks[language], self.rubric(language), _TAGGED[language], _REQUEST[language])
        ]

    def check_language(self, language: Language, needed_by: str) -> None:
        """Raises `ConfigError` if the domain has no rubric in a language."""
        if language not in self.tasks:
            raise ConfigError(
                f"the domain '{self.name}' has no {LANGUAGES[language]} rubric, which {needed_by} needs; "
                f"add a table [{language}] to it"
            )


DOMAINS: dict[str, Domain] = {
    name: Domain.parse(name, (files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
    for name in ("qa_faithfulness", "qa_helpfulness", "summary", "safety", "code", "chat")
}
"""The domains by name."""


def language_of(text: str) -> Language:
    """Chinese if more than a third of the words are Chinese characters, else English."""
    found = words_of(text)
    chinese = sum("\u3400" <= word[0] <= "\u9fff" for word in found)
    return "zh" if 3 * chinese > len(found) else "en"


def tag_hint(language: Language, tag: str) -> str:
    """Says that the question is about the text between these tags."""
    return _TAGGED[language].format(tag=tag)


def draw_tag(texts: Sequence[str], rng: Rng) -> str:
    """Draws the name of a tag pair that occurs in none of these texts (paper, section 3)."""
    while True:
        name = "".join(rng.choice(_TAG_LETTERS) for _ in range(5))
        if not any(name in text for text in texts):
            return name


def wrapped(tag: str, text: str) -> str:
    """A text between the tags of a pair; the text itself if there is no tag."""
    return f"<{tag}>\n{text}\n</{tag}>" if tag else text
