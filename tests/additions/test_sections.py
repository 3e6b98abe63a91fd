"""A section of the report is added by one file and one entry: the page shows it and links to it."""

from longrm.benchmarks import Probe
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.report import build
from longrm.report.sections import SECTIONS

FILE = '''
from longrm.report.tables import Cell, Row, Section, Table


def sizes(stages):
    """How many groups each model judged."""
    rows = tuple(Row(s.label, (Cell(str(s.summary.counts.groups)),), s.style) for s in stages)
    table = Table("Groups", ("model", "groups"), rows)
    return Section("How many groups there are", "Sizes", "Each group shares a context.", tables=(table,))
'''


def test_a_section_that_is_entered_is_shown_and_linked(plugin, tmp_path, monkeypatch):
    cells = ({"lengths": (64,), "depths": (0.5,), "groups": 6, "per_group": 2},)
    settings = Evaluation(model="baseline:overlap", bench="probe", probe=Probe(cells=cells))
    run_evaluation(settings, tmp_path / "run")
    build([tmp_path / "run"], tmp_path / "without.html")
    monkeypatch.setitem(SECTIONS, "sizes", plugin(FILE).sizes)
    build([tmp_path / "run"], tmp_path / "with.html")
    without, page = ((tmp_path / name).read_text() for name in ("without.html", "with.html"))
    for shown in (
        '<h2 id="sizes">How many groups there are</h2>',
        '<a href="#sizes">Sizes</a>',
        "Each group shares a context.",
    ):
        assert shown in page
        assert shown not in without
