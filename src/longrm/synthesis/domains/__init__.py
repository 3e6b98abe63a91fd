"""The domains of stage-1 data, one file each with its labelling rubric."""

from longrm.synthesis.domains.chat import CHAT
from longrm.synthesis.domains.code import CODE
from longrm.synthesis.domains.domain import SCORE, Domain, Language, Layout, language_of
from longrm.synthesis.domains.qa_faithfulness import QA_FAITHFULNESS
from longrm.synthesis.domains.qa_helpfulness import QA_HELPFULNESS
from longrm.synthesis.domains.safety import SAFETY
from longrm.synthesis.domains.summary import SUMMARY

__all__ = ["DOMAINS", "SCORE", "Domain", "Language", "Layout", "language_of"]

DOMAINS: dict[str, Domain] = {
    domain.name: domain for domain in (QA_FAITHFULNESS, QA_HELPFULNESS, SUMMARY, SAFETY, CODE, CHAT)
}
"""The domains by name."""
