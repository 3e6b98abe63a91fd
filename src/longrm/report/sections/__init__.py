"""The sections of the report, each a function of everything that the report shows."""

from collections.abc import Callable

from longrm.report.load import ReportData
from longrm.report.sections.accuracy import accuracy, boundary, brief, depth, overall
from longrm.report.sections.attention import attention
from longrm.report.sections.calibration import calibration
from longrm.report.sections.evidence_weight import evidence_weight
from longrm.report.sections.reliability import answers, audit, biases
from longrm.report.sections.results import baselines, rules, tasks, votes
from longrm.report.sections.rollouts import rollouts
from longrm.report.sections.runs import differences, outcomes, training
from longrm.report.sections.solving import solving
from longrm.report.tables import Section

SECTIONS: dict[str, Callable[[ReportData], Section | None]] = {
    "accuracy": accuracy,
    "differences": differences,
    "boundary": boundary,
    "overall": overall,
    "depth": depth,
    "brief": brief,
    "answers": answers,
    "solving": solving,
    "tasks": tasks,
    "evidence-weight": evidence_weight,
    "attention": attention,
    "baselines": baselines,
    "biases": biases,
    "calibration": calibration,
    "votes": votes,
    "rules": rules,
    "audit": audit,
    "training": training,
    "rollouts": rollouts,
    "outcomes": outcomes,
}
"""Every section by its anchor, in the order of the page; a function returns None where it has nothing to show."""
