"""What is counted while the rows of an audit stream by: a few numbers a row are kept, and no text."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import combinations, zip_longest

import numpy as np
from scipy import stats

from longrm.auditing.audited_rows import AuditedRow
from longrm.auditing.result import FINDINGS, AuditSettings, Bias, Depths, Lengths, Votes
from longrm.benchmarks.auditor import AuditFinding
from longrm.benchmarks.benchmark_data import bucket, measure_with
from longrm.evaluation.estimates import ratio
from longrm.synthesis.labels.agreement import Agreement

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_FOR_A_TEST = 50  # five a tenth: fewer make a chi-squared test unreliable
_FINE = 0.05  # share of its context that a piece of evidence takes at most, if depths are to be even
_MEASURED = "approximate tokens"


def check(row: AuditedRow) -> Iterator[tuple[str, str]]:
    """What is odd about one row alone: the kind of finding, and an example."""
    if row.kind in ("comparison", "judgment"):
        if not row.ranks:
            yield "unknown_order", row.id
        elif len({*row.ranks}) == 1:
            yield "ties", row.id
    if not all(response.strip() for response in row.responses):
        yield "empty_responses", row.id
    contrast = "" if row.votes is None else row.votes.contrast
    if contrast == "none":
        yield "without_contrast", row.id
    if contrast == "format":
        yield "contrast_of_form_only", row.id
    if row.places.missing:
        yield "evidence_not_found", row.id


class LengthMeasure:
    """Lengths of prompts, contexts and responses by one tokenizer, or by words and punctuation marks.

    Args:
        tokenizer: "words", or a tokenizer's file, folder or Hub id; None counts words and punctuation marks.

    Raises:
        ModelError: There is no such tokenizer.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self.name = tokenizer or _MEASURED
        self._count: Callable[[str], int] = measure_with(tokenizer)
        self._held = {part: array("Q") for part in ("prompts", "contexts", "responses")}
        self._last = ("", 0)

    def see(self, row: AuditedRow) -> tuple[int, tuple[int, ...]]:
        """Measures a row: its prompt's tokens, and those of its responses."""
        if row.context != self._last[0]:  # rows about one context follow each other
            self._last = (row.context, self._count(row.context))
        context = self._last[1]
        prompt = context if row.prompt == row.context else self._count(row.prompt)
        responses = tuple(map(self._count, row.responses))
        self._held["prompts"].append(prompt)
        if row.context != row.prompt:
            self._held["contexts"].append(context)
        self._held["responses"].extend(responses)
        return prompt, responses

    def result(self) -> dict[str, Lengths]:
        """The lengths of what there was."""
        found = {}
        for part, held in self._held.items():
            if held:
                values = np.array(held)
                quantiles = zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True)
                found[part] = Lengths(
                    len(held),
                    int(values.sum()),
                    {f"{share:g}": float(value) for share, value in quantiles},
                    dict(sorted(Counter(map(bucket, held)).items())),
                )
        return found


class DepthMeasure:
    """Where the evidence of all contexts stands."""

    def __init__(self) -> None:
        self._tenths, self._fine = [0] * 10, [0] * 10
        self._sum = 0.0
        self._seen: set[int] = set()

    def see(self, row: AuditedRow) -> None:
        """Takes in a row's evidence, unless an earlier row shares its context."""
        places = row.places
        key = hash((row.group, places))
        if not places.depths or key in self._seen:
            return
        self._seen.add(key)
        for depth, share in zip_longest(places.depths, places.shares, fillvalue=1.0):
            tenth = min(9, int(depth * 10))
            self._tenths[tenth] += 1
            self._fine[tenth] += share <= _FINE
            self._sum += depth

    def result(self) -> Depths:
        """The spread of the depths."""
        known = sum(self._tenths)
        even = float(stats.chisquare(self._fine).pvalue) if sum(self._fine) >= _FOR_A_TEST else None
        return Depths(known, tuple(self._tenths), self._sum / known if known else None, even)


class BiasMeasure:
    """Whether the place or the length of a response gives away how good it is."""

    def __init__(self, *, listed: bool) -> None:
        """Begins; `listed` says whether the order in which responses are listed is left to the data."""
        self._listed = listed
        self.places: Counter[int] = Counter()
        self._groups: dict[str, int] = {}
        # For every comparison with one best response, and for every pair of which one is better: its group, whether the
        # best is first or the better one longer (a half where neither is), and what chance would make of it.
        self._first = array("q"), array("d"), array("d")
        self._longer = array("q"), array("d"), array("d")

    def see(self, row: AuditedRow) -> None:
        """Takes in a comparison."""
        if row.kind not in ("comparison", "judgment") or not row.ranks:
            return
        group = self._groups.setdefault(row.group, len(self._groups))
        if self._listed and row.ranks.count(min(row.ranks)) == 1:
            place = row.ranks.index(min(row.ranks)) + 1
            self.places[place] += 1
            _add(self._first, group, place == 1, 1 / len(row.ranks))
        for one, other in combinations(range(len(row.ranks)), 2):
            better = row.ranks[other] - row.ranks[one]
            longer = len(row.responses[one]) - len(row.responses[other])  # as the baselines measure
            if better:
                _add(self._longer, group, 0.5 if not longer else (better > 0) == (longer > 0), 0.5)

    def result(self, settings: AuditSettings) -> tuple[Bias, Bias]:
        """How often the best response is listed first, and the better one is the longer one."""
        return _bias(self._first, settings), _bias(self._longer, settings)


class VoteMeasure:
    """Counts the votes of judgment rows again; `rows` told theirs so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts = Counter[str]()
        self._agreement = Agreement()

    def see(self, row: AuditedRow) -> None:
        """Takes in a row that tells its votes."""
        found = row.votes
        if found is None:
            return
        self.rows += 1
        self._agreement.see({vote.judge: vote.score for vote in found.votes}, row.group)
        self._counts.update(
            recorded=bool(found.conf),
            same_clusters=bool(found.conf) and found.same_conf,
            chosen_inside=found.same_consensus,
            chosen_agrees=found.same_chosen,
            rejected=len(found.rejected),
            rejected_outside=len(found.outside),
        )

    def result(self, settings: AuditSettings) -> Votes | None:
        """What was counted."""
        if not self.rows:
            return None
        draws = {"resamples": settings.resamples, "seed": settings.seed}
        alpha, pairwise = self._agreement.alpha(**draws), self._agreement.pairwise(**draws)
        return Votes(rows=self.rows, **self._counts, alpha=alpha, pairwise=pairwise)


_Columns = tuple["array[int]", "array[float]", "array[float]"]


def _add(columns: _Columns, group: int, found: float, chance: float) -> None:
    columns[0].append(group)
    columns[1].append(found)
    columns[2].append(chance)


def length_shortcut(longer: Bias) -> AuditFinding:
    """What a rule that goes by the length alone gets right, where that is more than chance by its 95% interval."""
    what = FINDINGS["length_shortcut"]
    value, low, high = longer.value, longer.low, longer.high
    if value is None or low is None or high is None or low <= 0.5 <= high:
        return AuditFinding(what)
    rule, right = ("longest", value) if value > 0.5 else ("shortest", 1 - value)
    limits = sorted((low, high) if value > 0.5 else (1 - low, 1 - high))
    told = f"baseline:{rule} is right on {right:.1%} of {longer.n:,} pairs [{limits[0]:.1%}, {limits[1]:.1%}]"
    return AuditFinding(what, round(right * longer.n), (told,))


def _bias(columns: _Columns, settings: AuditSettings) -> Bias:
    group, found, chance = np.array(columns[0], np.int64), np.array(columns[1]), np.array(columns[2])
    if not len(group):
        return Bias(None, None, None, 0, 0, None)
    measured = ratio(found, np.ones(len(found)), group, seed=settings.seed, resamples=settings.resamples)
    return Bias(**asdict(measured), chance=float(chance.mean()))
