import pytest

from longrm import benchmarks
from longrm.benchmarks import Leval, Probe


@pytest.fixture
def written_benchmark():
    """Loads, strictly, what was written into a folder in the schema of Long-RewardBench."""

    def load(folder):
        source = benchmarks.BenchmarkSource(strict=True)
        return benchmarks.load(f"long-rewardbench:{folder}", source=source, probe=Probe(), leval=Leval())

    return load
