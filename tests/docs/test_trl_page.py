"""docs/coming_from_trl.md has every argument of TRL's configurations."""

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_argument_of_trl_has_a_row():
    script = runpy.run_path(str(DOCS / "trl_page.py"))
    page = (DOCS / "coming_from_trl.md").read_text()
    first = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in page.splitlines() if line.startswith("|")]
    rows = [name for names in first for name in names]
    assert len(rows) == len(set(rows))
    assert set(rows) == script["fields"]().keys()
    assert len(rows) > 200
    tables = [*script["same_names"](), *script["others"]()]
    assert all(row in page.splitlines() for row in tables), "run `make docs`"
