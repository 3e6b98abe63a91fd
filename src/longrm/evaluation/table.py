"""Scored judgments as columns: what every metric, interval and curve is computed from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from longrm.evaluation.area import RankedSample, margins, pooled
from longrm.evaluation.intervals import FloatArray, IntArray
from longrm.evaluation.scoring import (
    OrderScore,
    chance_score,
    is_scored,
    judged_values,
    score_order,
)
from longrm.runs.records import JudgmentRecord

OrderMetric = Literal["pair_accuracy", "top1", "exact_order", "position_match", "kendall_tau"]
AreaMetric = Literal["auc_margin", "auc_pooled"]
MetricName = Literal[OrderMetric, AreaMetric]

ORDER_METRICS: tuple[OrderMetric, ...] = get_args(OrderMetric)
AREA_METRICS: tuple[AreaMetric, ...] = get_args(AreaMetric)
PAIR_METRICS: tuple[MetricName, ...] = ("pair_accuracy", "auc_margin", "auc_pooled")
"""What is reported where every comparison has two responses: the other metrics would repeat them."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The scored records as columns, one row a record.

    Attributes:
        group: Code of the row's group, 0 .. groups - 1, every code in use.
        length: Length bucket in tokens, -1 where unknown.
        depth: Evidence depth, NaN where unknown.
        size: Number of responses.
        pairs: Number of gold-ordered pairs.
        order: Per order metric, the row's total (of pairs in `pair_accuracy`).
        chance: Per order metric, the total a random order would earn.
        area: Per AUC, the values it ranks.
    """

    group: IntArray
    length: IntArray
    depth: FloatArray
    size: IntArray
    pairs: FloatArray
    order: Mapping[OrderMetric, FloatArray]
    chance: Mapping[OrderMetric, FloatArray]
    area: Mapping[AreaMetric, RankedSample]

    @classmethod
    def of(cls, records: Sequence[JudgmentRecord]) -> Self:
        """Scores every record that can be scored.

        Raises:
            ValueError: If an answer does not fit its gold ranks.
        """
        scored = [record for record in records if is_scored(record)]
        judged = [judged_values(record) for record in scored]
        scores = [record.scores if values else () for record, values in zip(scored, judged, strict=True)]
        ranks = [record.ranks or () for record in scored]
        random = [chance_score(gold) for gold in ranks]
        earned = [score_order(v, gold) if v else None for v, gold in zip(judged, ranks, strict=True)]

        def columns(source: Sequence[OrderScore | None]) -> dict[OrderMetric, FloatArray]:
            return {
                name: np.array([getattr(score, name) if score else 0.0 for score in source], np.float64)
                for name in ORDER_METRICS
            }

        return cls(
            group=codes_of(record.group for record in scored),
            length=np.array([-1 if r.length is None else r.length for r in scored], np.int64),
            depth=np.array([np.nan if r.depth is None else r.depth for r in scored], np.float64),
            size=np.array([len(gold) for gold in ranks], np.int64),
            pairs=np.array([score.pairs for score in random], np.float64),
            order=columns(earned),
            chance=columns(random),
            area={"auc_margin": margins(scores, ranks), "auc_pooled": pooled(scores, ranks)},
        )

    @property
    def groups(self) -> int:
        """Number of groups in the table."""
        return int(self.group.max()) + 1 if self.group.size else 0

    def subset(self, kept: npt.NDArray[np.bool_]) -> Self:
        """The table of the kept rows alone."""
        return replace(
            self,
            group=np.unique(self.group[kept], return_inverse=True)[1].astype(np.int64),
            length=self.length[kept],
            depth=self.depth[kept],
            size=self.size[kept],
            pairs=self.pairs[kept],
            order={name: column[kept] for name, column in self.order.items()},
            chance={name: column[kept] for name, column in self.chance.items()},
            area={name: sample.subset(kept) for name, sample in self.area.items()},
        )

    def with_area(self, name: AreaMetric) -> Self:
        """The rows whose scores an AUC can rank."""
        kept = np.zeros(self.size.shape, np.bool_)
        kept[self.area[name].positive_row] = True
        return self if kept.all() else self.subset(kept)

    def weight(self, name: OrderMetric) -> FloatArray:
        """What a row's total is divided by: its pairs, or one comparison."""
        return self.pairs if name == "pair_accuracy" else np.ones_like(self.pairs)

    def names(self) -> tuple[MetricName, ...]:
        """The metrics worth reporting on these rows."""
        return (*ORDER_METRICS, *AREA_METRICS) if bool((self.size > 2).any()) else PAIR_METRICS


def codes_of(groups: Iterable[str]) -> IntArray:
    """Numbers names from 0 in the order in which they occur."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(group, len(codes)) for group in groups], np.int64)
