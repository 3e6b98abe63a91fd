"""Optional sections of the report: functions of the evaluated models, or of the training runs."""

from collections.abc import Callable, Sequence

from longrm.report.load import Model, Training
from longrm.report.sections.calibration import calibration
from longrm.report.sections.evidence_weight import evidence_weight
from longrm.report.sections.reliability import answers, audit, biases
from longrm.report.sections.results import baselines, rules, tasks, votes
from longrm.report.sections.rollouts import rollouts
from longrm.report.sections.solving import solving
from longrm.report.tables import Section

SECTIONS: dict[str, Callable[[Sequence[Model]], Section | None]] = {
    "answers": answers,
    "solving": solving,
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

TRAINING_SECTIONS: dict[str, Callable[[Sequence[Training]], Section | None]] = {"rollouts": rollouts}
"""The same for training runs; these sections come after all others."""
