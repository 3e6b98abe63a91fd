"""The ways in which judges fail on long contexts (LongRM, section 3), counted."""

from collections.abc import Sequence

from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import EstimateColumn, estimate_table

_COLUMNS = (
    EstimateColumn("format missed", lambda s: s.failures.format_missed),
    EstimateColumn("context ignored", lambda s: s.failures.context_ignored, missing="not asked"),
    EstimateColumn("explanation contradicts", lambda s: s.failures.contradicted),
    EstimateColumn("criteria against", lambda s: s.failures.criteria_against),
)


def failures(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no model writes and none was asked without the context."""
    shown = []
    for stage in stages:
        found = stage.summary.failures
        told = (found.context_ignored, found.contradicted, found.criteria_against)
        if any(rate is not None for rate in told) or (found.format_missed and found.format_missed.value):
            shown.append(stage)
    table = estimate_table("Share of trials that failed in this way, with 95% intervals", shown, _COLUMNS)
    if table is None:
        return None
    unasked = [stage.label for stage in shown if stage.summary.failures.context_ignored is None]
    return Section(
        "How it fails",
        "Failures",
        "Format missed: the text holds no verdict. Context ignored: the verdict stays when the context is taken away "
        "or swapped for another; a judge that then guesses keeps it for half of the pairs by luck. Explanation "
        "contradicts: it argues for another response than the verdict names, as far as its words tell. Criteria "
        "against: of the criteria that tell responses apart, those by which another is best than was judged.",
        tables=(table,),
        note="Whether the context is ignored was not asked; to ask, add --set judging.context_check=swapped."
        if unasked
        else "",
    )
