"""Accuracy by the number of votes."""

from collections.abc import Sequence

from longrm.report.formatting import defined, plural
from longrm.report.load import Model
from longrm.report.tables import Row, Section, Table, percent_cell


def votes(models: Sequence[Model]) -> Section | None:
    """Left out where no run voted."""
    curves = [
        (model, {int(k): estimate for k, estimate in model.summary.votes.at.items()})
        for model in models
        if model.summary.votes
    ]
    if not curves:
        return None
    counts = sorted({k for _, curve in curves for k in curve})
    rows = [
        Row(model.label, [percent_cell(defined(curve.get(k))) for k in counts], model.style)
        for model, curve in curves
    ]
    columns = ["model", *(plural(k, "vote") for k in counts)]
    return Section(
        "Accuracy by votes",
        "Votes",
        "The accuracy of the first k votes, averaged over which k votes come first. All points come from one run, so "
        "they differ by less than their intervals suggest.",
        tables=[Table("Accuracy by votes per order, with 95% intervals", columns, rows)],
    )
