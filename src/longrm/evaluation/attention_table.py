"""Attention over a whole run: means by measure, layer and region, for right and for wrong judgments."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.modeling.attended_regions import AttendedComparison, ResponseAttention
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
    codes = {group: code for code, group in enumerate(dict.fromkeys(one.group for one in measured))}
    rows = []
    for right in (True, False):
        judged = [(codes[one.group], _of_comparison(one)) for one in measured if one.right == right]
        for key in dict.fromkeys(key for _, values in judged for key in values):
            found = [(code, *values[key]) for code, values in judged if key in values]
            group, value, chance = (np.array(column) for column in zip(*found, strict=True))
            mean = ratio(value, np.ones(len(value)), group, seed=seed, resamples=resamples)
            rows.append(AttentionTableRow(*key, right, mean, float(chance.mean())))
    return rows


def write_attention_table(rows: Sequence[AttentionTableRow], path: Path) -> None:
    """Writes the CSV file `measure,layer,region,judged,value,low,high,n,groups,chance`; embeddings have no layer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        value = row.value
        judged = "right" if row.right else "wrong"
        numbers = (value.value, value.low, value.high, value.n, value.groups, row.chance)
        writer.writerow((row.measure, row.layer, row.region, judged, *numbers))
    write_file(path, text.getvalue())


def _of_comparison(one: AttendedComparison) -> dict[_Key, _Pair]:
    found: defaultdict[_Key, list[_Pair]] = defaultdict(list)
    for response in one.responses:
        for key, pair in _of_response(response):
            found[key].append(pair)
    means = {
        key: (fmean(values), fmean(chances))
        for key, pairs in found.items()
        for values, chances in [zip(*pairs, strict=True)]
    }
    if one.embedding_gradient:
        means |= {
            ("embedding_gradient", None, name): pair for name, pair in _shares(one.embedding_gradient).items()
        }
    return means


def _of_response(one: ResponseAttention) -> Iterator[tuple[_Key, _Pair]]:
    layers = len(next(iter(one.regions.values())).fr) if one.regions else 0
    for layer in range(layers):
        shares = _shares({name: region.ig[layer] for name, region in one.regions.items()})
        for name, region in one.regions.items():
            yield ("fr", layer, name), (region.fr[layer], one.chance)
            yield ("attention_mass", layer, name), (region.mass[layer], region.tokens / one.tokens)
            if name in shares:
                yield ("ig", layer, name), shares[name]


def _shares(values: Mapping[str, float]) -> dict[str, _Pair]:
    """Each value as a share of the total, with the share of equal values; empty if the total is 0."""
    total = sum(values.values())
    return {name: (value / total, 1 / len(values)) for name, value in values.items()} if total else {}
