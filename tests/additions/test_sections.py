"""A section of the report is added by one file and one entry: the page shows it and links to it."""

from longrm.report.sections import SECTIONS

FILE = '''
from longrm.report.tables import Cell, Row, Section, Table


def sizes(data):
    """How many groups each model judged."""
    rows = tuple(Row(s.label, (Cell(str(s.summary.counts.groups)),), s.style) for s in data.models)
    table = Table("Groups", ("model", "groups"), rows)
    return Section("Sizes", tables=(table,), terms={"groups": "Each group shares a context."})
'''


def test_an_added_section_is_shown_and_linked(plugin, evaluated, monkeypatch):
    cells = [{"lengths": [64], "depths": [0.5], "groups": 6, "per_group": 2}]
    _, without = evaluated(cells=cells)
    monkeypatch.setitem(SECTIONS, "sizes", plugin(FILE).sizes)
    _, page = evaluated(cells=cells)
    for shown in (
        '<h2 id="sizes">Sizes</h2>',
        '<a href="#sizes">Sizes</a>',
        '<a class="term" href="#term-groups" title="Each group shares a context.">groups</a>',
        '<dt id="term-groups">groups</dt><dd>Each group shares a context.</dd>',
    ):
        assert shown in page
        assert shown not in without
