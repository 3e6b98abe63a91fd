from pathlib import Path

import pytest

from longrm.benchmarks import BenchmarkSource, Leval, LoadedBenchmark, Probe, load

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def bench():
    """Loads a benchmark, with settings of the source as keywords."""

    def find(name: str, leval: Leval | None = None, **source) -> LoadedBenchmark:
        return load(name, source=BenchmarkSource(**source), probe=Probe(), leval=leval or Leval())

    return find


@pytest.fixture
def counts():
    """The findings that are not zero, by kind."""
    return lambda loaded: {kind: f.count for kind, f in loaded.audit.findings.items() if f.count}
