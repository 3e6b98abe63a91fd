"""How well judges label criteria: their labels against those of people."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from longrm.benchmarks import LoadedBenchmark
from longrm.benchmarks.benchmark import CriterionKey, CriterionLabel
from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import bootstrap_interval, ratio
from longrm.evaluation.table import Bootstrap, FloatArray, IntArray, recoded, resampled_sums
from longrm.runs.records import UNDEFINED, Estimate

Labels = Mapping[CriterionKey, CriterionLabel]


def summarize_criteria(
    bench: LoadedBenchmark, record: str, judges: Mapping[str, Labels], **drawn: Unpack[Bootstrap]
) -> schema.CriteriaSummary:
    """The agreement of every judge with people, on the criteria that both labeled."""
    people = bench.criteria
    assert people is not None, "the caller has checked it"
    return schema.CriteriaSummary(
        model=f"recorded:{record}",
        bench=bench.name,
        summaries=len({(key.group, key.text) for key in people}),
        groups=len({key.group for key in people}),
        criteria=len(people),
        judges={name: _agreement(people, labels, **drawn) for name, labels in judges.items()},
    )


def _agreement(people: Labels, judge: Labels, **drawn: Unpack[Bootstrap]) -> schema.CriteriaAgreement:
    """`display(results)` in section 2 of SummHay's Eval_Benchmarking.ipynb, with intervals over groups."""
    both = [key for key in people if key in judge]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(key.group for key in both))}
    group = np.array([numbers[key.group] for key in both], np.int64)
    gold, judged = (
        np.array([labels[key].coverage for key in both], np.float64) for labels in (people, judge)
    )
    links = np.array([[people[key].link or 0, judge[key].link or 0] for key in both]).reshape(-1, 2)
    linked = links.all(axis=1)
    hits = (links[:, 0] == links[:, 1]) * 1.0
    return schema.CriteriaAgreement(
        correlation=correlation(gold, judged, group, **drawn),
        linking=ratio(hits[linked], np.ones(linked.sum()), recoded(group[linked]), **drawn)
        if linked.any()
        else UNDEFINED,
        unlabeled=len(people) - len(both),
    )


def correlation(one: FloatArray, other: FloatArray, group: IntArray, **drawn: Unpack[Bootstrap]) -> Estimate:
    """Pearson's correlation of two columns, with a bootstrap over the groups; undefined if either is constant."""

    def of(sums: FloatArray) -> FloatArray:
        n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y)))

    if not one.size or not np.ptp(one) or not np.ptp(other):
        return UNDEFINED
    columns = np.stack([np.ones(one.size), one, other, one**2, other**2, one * other], axis=1)
    value = float(of(columns.sum(axis=0)))
    replicates = of(resampled_sums(group, columns, **drawn))
    limits = bootstrap_interval(value, replicates, group, (-1.0, 1.0))
    return Estimate(value, *limits, one.size, int(group.max()) + 1)
