"""The rules by which published benchmarks sum a run up, beside our own figures."""

from collections.abc import Callable, Sequence
from typing import Any

from longrm.evaluation.rules.judgebench import judgebench
from longrm.evaluation.rules.release import release
from longrm.evaluation.rules.rewardbench import rewardbench, rewardbench_2
from longrm.runs.records import JudgmentRecord
from longrm.types import Scale

__all__ = ["RULES", "release"]

RULES: dict[str, Callable[[Sequence[JudgmentRecord], Scale], dict[str, Any]]] = {
    "judgebench": judgebench,
    "rewardbench": rewardbench,
    "rewardbench-2": rewardbench_2,
}
