"""Optional sections of the report, one function and one file each."""

from collections.abc import Callable, Sequence

from longrm.report.load import Model
from longrm.report.sections.answers import answers
from longrm.report.sections.audit import audit
from longrm.report.sections.baselines import baselines
from longrm.report.sections.biases import biases
from longrm.report.sections.calibration import calibration
from longrm.report.sections.evidence_weight import evidence_weight
from longrm.report.sections.rules import rules
from longrm.report.sections.tasks import tasks
from longrm.report.sections.votes import votes
from longrm.report.tables import Section

SECTIONS: dict[str, Callable[[Sequence[Model]], Section | None]] = {
    "answers": answers,
    "tasks": tasks,
    "evidence-weight": evidence_weight,
    "baselines": baselines,
    "biases": biases,
    "calibration": calibration,
    "votes": votes,
    "rules": rules,
    "audit": audit,
}
"""Every section by its anchor, in the order of the page; a function returns None where it has nothing to show."""
