import json
from pathlib import Path

import pytest

from longrm.benchmarks import Benchmark, Leval, Probe, Source, load

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def put(tmp_path):
    """Writes rows as JSONL below the temporary folder."""

    def write(name: str, *rows: dict) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def bench():
    """Loads a benchmark, with settings of the source as keywords."""

    def find(name: str, leval: Leval | None = None, **source) -> Benchmark:
        return load(name, source=Source(**source), probe=Probe(), leval=leval or Leval())

    return find


@pytest.fixture
def counts():
    """The findings that are not zero, by kind."""
    return lambda loaded: {kind: f.count for kind, f in loaded.audit.findings.items() if f.count}
