"""A section of the report is added by one file and one entry: the page shows it and links to it."""

from longrm.report.sections import SECTIONS

FILE = '''
from longrm.report.tables import Cell, Row, Section, Table


def sizes(models):
    """How many groups each model judged."""
    rows = tuple(Row(s.label, (Cell(str(s.summary.counts.groups)),), s.style) for s in models)
    table = Table("Groups", ("model", "groups"), rows)
    return Section("How many groups there are", "Sizes", "Each group shares a context.", tables=(table,))
'''


def test_an_added_section_is_shown_and_linked(plugin, evaluated, monkeypatch):
    cells = [{"lengths": [64], "depths": [0.5], "groups": 6, "per_group": 2}]
    _, without = evaluated(cells=cells)
    monkeypatch.setitem(SECTIONS, "sizes", plugin(FILE).sizes)
    _, page = evaluated(cells=cells)
    for shown in (
        '<h2 id="sizes">How many groups there are</h2>',
        '<a href="#sizes">Sizes</a>',
        "Each group shares a context.",
    ):
        assert shown in page
        assert shown not in without
