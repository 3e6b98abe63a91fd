"""One section of a report: a question, its answer in tables and perhaps a figure, and what these do not say."""

from dataclasses import dataclass

from longrm.report.drawing import Figure
from longrm.report.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """What the template prints as one section: the first table beside the figure, and the note in small print.

    `link` is what the navigation calls it; `folded` tables open on a click on `fold`.
    """

    title: str
    link: str
    meaning: str
    tables: tuple[Table, ...] = ()
    figure: Figure | None = None
    folded: tuple[Table, ...] = ()
    fold: str = ""
    note: str = ""
