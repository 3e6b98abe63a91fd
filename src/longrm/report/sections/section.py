"""One section of a report: a question, its answer in tables and perhaps a figure, and what these do not say."""

from dataclasses import dataclass

from longrm.report.drawing import Figure
from longrm.report.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """What the template prints as one section.

    Attributes:
        title: Its heading.
        link: What the navigation calls it.
        meaning: What it means, in a few plain sentences.
        tables: Its tables; the first stands beside the figure.
        figure: Its figure.
        folded: Tables that open on a click.
        fold: What the fold is called.
        note: What else must be known, in small print.
    """

    title: str
    link: str
    meaning: str
    tables: tuple[Table, ...] = ()
    figure: Figure | None = None
    folded: tuple[Table, ...] = ()
    fold: str = ""
    note: str = ""
