"""The sections of the report, each a function of everything that the report shows."""

from collections.abc import Callable

from longrm.reporting.load import ReportData
from longrm.reporting.sections.accuracy import accuracy, boundary, brief, depth, overall
from longrm.reporting.sections.attention import attention
from longrm.reporting.sections.calibration import calibration
from longrm.reporting.sections.criteria import criteria
from longrm.reporting.sections.evidence_weight import evidence_weight
from longrm.reporting.sections.reliability import agreement, answers, audit, biases
from longrm.reporting.sections.results import baselines, rules, tasks, votes
from longrm.reporting.sections.rollouts import rollouts
from longrm.reporting.sections.runs import differences, outcomes, training
from longrm.reporting.sections.solving import solving
from longrm.reporting.sections.steps import steps
from longrm.reporting.tables import Section

SECTIONS: dict[str, Callable[[ReportData], Section | None]] = {
    "steps": steps,
    "criteria": criteria,
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
    "agreement": agreement,
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
