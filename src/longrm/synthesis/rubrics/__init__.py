"""The domains of synthesized judgments, one file each with its rubric."""

from longrm.errors import ConfigError
from longrm.synthesis.rubrics.chat import CHAT
from longrm.synthesis.rubrics.code import CODE
from longrm.synthesis.rubrics.qa_faithfulness import QA_FAITHFULNESS
from longrm.synthesis.rubrics.qa_helpfulness import QA_HELPFULNESS
from longrm.synthesis.rubrics.rubric import (
    LANGUAGES,
    SCORE_LINE,
    ContextLayout,
    Domain,
    Language,
    language_of,
)
from longrm.synthesis.rubrics.safety import SAFETY
from longrm.synthesis.rubrics.summarization import SUMMARY

__all__ = [
    "DOMAINS",
    "LANGUAGES",
    "SCORE_LINE",
    "ContextLayout",
    "Domain",
    "Language",
    "check_language",
    "language_of",
]

DOMAINS: dict[str, Domain] = {
    domain.name: domain for domain in (QA_FAITHFULNESS, QA_HELPFULNESS, SUMMARY, SAFETY, CODE, CHAT)
}
"""The domains by name."""


def check_language(domain: str, language: Language, asked_by: str = "the setting `language`") -> None:
    """Refuses, before any work, a domain without instructions and rubric in a language that is needed.

    Raises:
        ConfigError: It has none; the message names what needs them.
    """
    known = DOMAINS[domain].wordings
    if language not in known:
        others = " or ".join(f'"{other}"' for other in known)
        raise ConfigError(
            f"the domain '{domain}' has no {LANGUAGES[language]} rubric, which {asked_by} asks for; set language = "
            f"{others}, or give the domain wordings in '{language}'"
        )
