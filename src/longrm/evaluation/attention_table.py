"""Attention over a whole run: means by measure, layer and region, for right and for wrong judgments."""

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.evaluation.table import codes_of
from longrm.modeling.attended_regions import AttendedComparison
from longrm.runs.folder import write_file
from longrm.runs.records import Estimate

ATTENTION_MEASURES = {
    "fr": "FR (LongRM, Eq. 3): share of a region's tokens among the k that a head attends to most",
    "ig": "IG (LongRM, Eq. 4): attention times its gradient, of a region's mean token, as a share over the regions",
    "attention_mass": "share of all attention that a region has (what the source's code plots as FR)",
    "embedding_gradient": "L1 norm of the margin's gradient by the embedding of a region's mean token, as a share over "
    "the regions (what the source's code plots as IG)",
}
"""The measures with their definitions. All are between 0 and 1."""

_COLUMNS = ("measure", "layer", "region", "judged", "value", "low", "high", "n", "groups", "chance")


@dataclass(frozen=True, slots=True)
class AttentionTableRow:
    """One measure of one region in one layer, over all comparisons that were judged right, or wrong."""

    measure: str  # a key of `ATTENTION_MEASURES`
    layer: int | None  # from 0; None for embeddings
    region: str
    right: bool  # whether these are the right judgments
    value: Estimate  # the mean with its interval, clustered on groups
    chance: float  # the mean if attention and gradients did not depend on regions


_Key = tuple[str, int | None, str]  # measure, layer and region
_Pair = tuple[float, float]  # value and chance


def attention_table(
    measured: Sequence[AttendedComparison], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[AttentionTableRow]:
    """Means over comparisons of their means over responses; a comparison without a region is not in its rows.

    Args:
        measured: Comparisons of one model, measured with the same k.
        seed: Seed of the cluster bootstrap.
        resamples: Number of resamples.
    """
    codes = codes_of(one.group for one in measured).tolist()
    rows = []
    for right in (True, False):
        found = defaultdict[_Key, list[tuple[int, float, float]]](list)
        for code, one in zip(codes, measured, strict=True):
            if one.right == right:
                for key, pairs in _of_responses(one).items():
                    values, chances = zip(*pairs, strict=True)
                    found[key].append((code, fmean(values), fmean(chances)))
        for key, cells in found.items():
            group, value, chance = (np.array(column) for column in zip(*cells, strict=True))
            mean = ratio(value, np.ones(len(value)), group, seed=seed, resamples=resamples)
            rows.append(AttentionTableRow(*key, right, mean, float(chance.mean())))
    return rows


def write_attention_table(rows: Sequence[AttentionTableRow], path: Path) -> None:
    """Writes the CSV file `measure,layer,region,judged,value,low,high,n,groups,chance`; embeddings have no layer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        judged, value = "right" if row.right else "wrong", row.value
        numbers = (value.value, value.low, value.high, value.n, value.groups, row.chance)
        writer.writerow((row.measure, row.layer, row.region, judged, *numbers))
    write_file(path, text.getvalue())


def _of_responses(one: AttendedComparison) -> dict[_Key, list[_Pair]]:
    """Every measure of one comparison, once for each response; its embedding gradient once."""
    found = defaultdict[_Key, list[_Pair]](list)
    for response in one.responses:
        layers = len(next(iter(response.regions.values())).fr) if response.regions else 0
        for layer in range(layers):
            shares = _shares({name: region.ig[layer] for name, region in response.regions.items()})
            for name, region in response.regions.items():
                found["fr", layer, name].append((region.fr[layer], response.chance))
                found["attention_mass", layer, name].append(
                    (region.mass[layer], region.tokens / response.tokens)
                )
                if name in shares:
                    found["ig", layer, name].append(shares[name])
    for name, pair in _shares(one.embedding_gradient or {}).items():
        found["embedding_gradient", None, name].append(pair)
    return found


def _shares(values: Mapping[str, float]) -> dict[str, _Pair]:
    """Each value as a share of the total, with the share of equal values; empty if the total is 0."""
    total = sum(values.values())
    return {name: (value / total, 1 / len(values)) for name, value in values.items()} if total else {}
