import pytest

from longrm import benchmarks
from longrm.benchmarks import Leval, Probe


@pytest.fixture
def written_benchmark():
    """Loads a folder in the schema of Long-RewardBench."""

    def load(folder):
        source = benchmarks.BenchmarkSource()
        return benchmarks.load(f"long-rewardbench:{folder}", source=source, probe=Probe(), leval=Leval())

    return load
