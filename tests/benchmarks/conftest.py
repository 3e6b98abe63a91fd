from pathlib import Path

import pytest

from longrm.benchmarks import BenchmarkSource, LoadedBenchmark, load

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def bench():
    """Loads a benchmark, with settings of the source as keywords."""

    def find(name: str, **source) -> LoadedBenchmark:
        return load(name, source=BenchmarkSource(**source))

    return find


@pytest.fixture
def counts():
    """The findings that are not zero, by kind."""
    return lambda loaded: {kind: f.count for kind, f in loaded.audit.findings.items() if f.count}
