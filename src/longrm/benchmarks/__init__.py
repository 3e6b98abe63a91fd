"""Readers of published benchmarks, by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from longrm.benchmarks.agentprocessbench import load_agentprocessbench
from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    BenchmarkSource,
    LoadedBenchmark,
    OwnTokenizer,
    load_comparison_file,
)
from longrm.benchmarks.fc_rewardbench import load_fc_rewardbench
from longrm.benchmarks.if_rewardbench import load_if_rewardbench
from longrm.benchmarks.judgebench import load_judgebench
from longrm.benchmarks.judgelrm import load_judgelrm
from longrm.benchmarks.leval import load_leval
from longrm.benchmarks.long_form_rewardbench import load_long_form_rewardbench
from longrm.benchmarks.long_rewardbench import load_long_rewardbench
from longrm.benchmarks.memrewardbench import load_memrewardbench
from longrm.benchmarks.plan_rewardbench import load_plan_rewardbench
from longrm.benchmarks.ppe import load_ppe
from longrm.benchmarks.probe import Probe, ProbeCell, load_probe
from longrm.benchmarks.qa_feedback import load_qa_feedback
from longrm.benchmarks.rewardbench import load_rewardbench, load_rewardbench_2
from longrm.benchmarks.rm_bench import load_rm_bench
from longrm.benchmarks.rmb import load_rmb
from longrm.benchmarks.squality import load_squality
from longrm.benchmarks.summhay import load_summhay
from longrm.benchmarks.tau_bench import load_tau_bench, load_tau_bench_trajectories
from longrm.benchmarks.who_and_when import load_who_and_when
from longrm.data.memory import IN_MEMORY
from longrm.errors import ConfigError, nearest

__all__ = [
    "BENCHMARKS",
    "BenchmarkEntry",
    "BenchmarkName",
    "BenchmarkRequest",
    "BenchmarkSource",
    "LoadedBenchmark",
    "OwnTokenizer",
    "Probe",
    "ProbeCell",
    "load",
]


class BenchmarkEntry(NamedTuple):
    """A benchmark of the registry.

    Attributes:
        load: Loads its comparisons.
        rule: The scoring rule of its authors, a name of `longrm.evaluation.rules.RULES`; empty if they have none.
        needs_path: Whether a path follows its name.
        own_columns: Whether the rows are the user's own, so that their columns may have other names.
    """

    load: Callable[[BenchmarkRequest], LoadedBenchmark]
    rule: str = ""
    needs_path: bool = True
    own_columns: bool = False


BENCHMARKS: dict[str, BenchmarkEntry] = {
    "probe": BenchmarkEntry(load_probe, needs_path=False),
    "file": BenchmarkEntry(load_comparison_file, own_columns=True),
    "long-rewardbench": BenchmarkEntry(load_long_rewardbench),
    "rewardbench": BenchmarkEntry(load_rewardbench, rule="rewardbench"),
    "rewardbench-2": BenchmarkEntry(load_rewardbench_2, rule="rewardbench-2"),
    "judgebench": BenchmarkEntry(load_judgebench, rule="judgebench"),
    "rm-bench": BenchmarkEntry(load_rm_bench, rule="rm-bench"),
    "ppe": BenchmarkEntry(load_ppe),
    "rmb": BenchmarkEntry(load_rmb, rule="rmb"),
    "judgelrm": BenchmarkEntry(load_judgelrm, rule="judgelrm"),
    "memrewardbench": BenchmarkEntry(load_memrewardbench, rule="memrewardbench"),
    "if-rewardbench": BenchmarkEntry(load_if_rewardbench, rule="if-rewardbench"),
    "long-form-rewardbench": BenchmarkEntry(load_long_form_rewardbench, rule="long-form-rewardbench"),
    "leval": BenchmarkEntry(load_leval),
    "leval-all": BenchmarkEntry(load_leval),
    "fc-rewardbench": BenchmarkEntry(load_fc_rewardbench),
    "plan-rewardbench": BenchmarkEntry(load_plan_rewardbench, rule="plan-rewardbench"),
    "squality": BenchmarkEntry(load_squality),
    "qa-feedback": BenchmarkEntry(load_qa_feedback),
    "tau-bench": BenchmarkEntry(load_tau_bench),
    "tau-bench-trajectories": BenchmarkEntry(load_tau_bench_trajectories),
    "agentprocessbench": BenchmarkEntry(load_agentprocessbench),
    "who-and-when": BenchmarkEntry(load_who_and_when),
    "summhay": BenchmarkEntry(load_summhay),
}
"""The registry of benchmarks: a new one is one file and one entry."""


def _with_kind(bench: str) -> str:
    """`file:PATH` for an existing path or rows in memory, unless it begins with the name of a benchmark."""
    is_path = bench.partition(":")[0] not in BENCHMARKS and (Path(bench).exists() or bench in IN_MEMORY)
    return f"file:{bench}" if is_path else bench


BenchmarkName = Annotated[str, AfterValidator(_with_kind)]
"""A setting: a benchmark as `load` takes it, or the path of the user's own data."""


def load(
    bench: str,
    *,
    source: BenchmarkSource | None = None,
    probe: Probe | None = None,
    own: Callable[[], OwnTokenizer | None] = lambda: None,
) -> LoadedBenchmark:
    """Loads a benchmark by its name: `probe`, or another name of `BENCHMARKS` with a path, such as `file:pairs.jsonl`.

    `own` finds the tokenizer of the model that will judge, for benchmarks that need it; None if there is none.

    Raises:
        ConfigError: An unknown name, a name without its path, or columns renamed in a benchmark with fixed columns.
        DataError: There is nothing to read at the path.
        ModelError: The tokenizer that measures lengths cannot be loaded.
    """
    name, _, path = bench.partition(":")
    source = source or BenchmarkSource()
    entry = BENCHMARKS.get(name)
    if entry is None or bool(path) != entry.needs_path:
        usage = [f"{known}:PATH" if one.needs_path else known for known, one in BENCHMARKS.items()]
        exists = entry is not None and Path(bench).exists()
        hint = f"write '{bench}:{bench}' or 'file:{bench}'" if exists else nearest(name, usage)
        raise ConfigError(f"no file and no benchmark '{bench}'; {hint}")
    if source.columns and not entry.own_columns:
        raise ConfigError(f"--columns is only supported with file:PATH; {name} has fixed columns")
    return replace(entry.load(BenchmarkRequest(bench, path, source, probe or Probe(), own)), rule=entry.rule)
