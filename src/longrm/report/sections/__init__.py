"""What a report says about the judging itself, one file a theme; each is left out where nothing is to be said."""

from collections.abc import Callable, Sequence

from longrm.report.material import Evaluated
from longrm.report.sections.answers import answers
from longrm.report.sections.audit import audit
from longrm.report.sections.baselines import baselines
from longrm.report.sections.biases import biases
from longrm.report.sections.calibration import calibration
from longrm.report.sections.failures import failures
from longrm.report.sections.rules import rules
from longrm.report.sections.section import Section
from longrm.report.sections.tasks import tasks
from longrm.report.sections.votes import votes

SECTIONS: tuple[Callable[[Sequence[Evaluated]], Section | None], ...] = (
    answers,
    tasks,
    baselines,
    biases,
    calibration,
    votes,
    failures,
    rules,
    audit,
)
"""In the order of the page."""


def sections(stages: Sequence[Evaluated]) -> list[Section]:
    """Every section that these models have something to show in."""
    return [section for make in SECTIONS if (section := make(stages))]
