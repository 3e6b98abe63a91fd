"""What is measured while rows stream by: a few numbers per row are kept, and no text."""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations, zip_longest

import numpy as np
from scipy import stats

from longrm.auditing.rows import AuditedRow
from longrm.benchmarks.benchmark import bucket, measure_with
from longrm.evaluation.estimates import ratio
from longrm.runs.records import Estimate
from longrm.synthesis.voting import Agreement

RESAMPLES = 1000
"""Of the bootstrap."""

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in tokens."""

    texts: int
    total: int
    quantiles: Mapping[str, float]  # by the share of the texts that are no longer: 0, 0.05, 0.25, 0.5, ...
    buckets: Mapping[int, int]  # texts by the power of two that their length is rounded up to


class LengthMeasure:
    """Lengths by one tokenizer, or by words and punctuation marks."""

    def __init__(self, tokenizer: str | None) -> None:
        self.name = tokenizer or "approximate tokens"
        self._count: Callable[[str], int] = measure_with(tokenizer)
        self._lengths = {part: array("Q") for part in ("prompts", "contexts", "responses")}
        self._last_context = ("", 0)

    def see(self, row: AuditedRow) -> tuple[int, tuple[int, ...]]:
        """Measures a row: the tokens of its prompt, and of each response."""
        if row.context != self._last_context[0]:  # rows about one context usually follow each other
            self._last_context = (row.context, self._count(row.context))
        context = self._last_context[1]
        prompt = context if row.prompt == row.context else self._count(row.prompt)
        responses = tuple(map(self._count, row.responses))
        self._lengths["prompts"].append(prompt)
        if row.context != row.prompt:
            self._lengths["contexts"].append(context)
        self._lengths["responses"].extend(responses)
        return prompt, responses

    def result(self) -> dict[str, Lengths]:
        """Lengths of prompts, contexts and responses, where there were any."""
        found = {}
        for part, lengths in self._lengths.items():
            if lengths:
                values = np.array(lengths)
                quantiles = zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True)
                found[part] = Lengths(
                    len(lengths),
                    int(values.sum()),
                    {f"{share:g}": float(value) for share, value in quantiles},
                    dict(sorted(Counter(map(bucket, lengths)).items())),
                )
        return found


@dataclass(frozen=True, slots=True)
class Depths:
    """Depths of evidence: the share of the rest of the context that precedes it, from 0 to 1."""

    known: int  # pieces of evidence whose depth is known; rows with the same context count once
    tenths: tuple[int, ...]  # how many are in each tenth of the depth
    mean: float | None
    # The p-value of a chi-squared test that depths are uniform, over pieces of at most a twentieth of their context:
    # large pieces have few possible depths. None for fewer than 50 pieces.
    even: float | None


class DepthMeasure:
    """Depths of the evidence of all contexts."""

    def __init__(self) -> None:
        self._tenths, self._small = [0] * 10, [0] * 10
        self._sum = 0.0
        self._seen: set[int] = set()

    def see(self, row: AuditedRow) -> None:
        """Takes in a row's evidence, unless an earlier row has the same context."""
        key = hash((row.group, row.depths, row.shares, row.evidence_missing))
        if not row.depths or key in self._seen:
            return
        self._seen.add(key)
        for depth, share in zip_longest(row.depths, row.shares, fillvalue=1.0):
            tenth = min(9, int(depth * 10))
            self._tenths[tenth] += 1
            self._small[tenth] += share <= 0.05
            self._sum += depth

    def result(self) -> Depths:
        """The distribution of the depths."""
        known = sum(self._tenths)
        # Fewer than five expected in each tenth would make the test unreliable.
        even = float(stats.chisquare(self._small).pvalue) if sum(self._small) >= 50 else None
        return Depths(known, tuple(self._tenths), self._sum / known if known else None, even)


@dataclass(frozen=True, slots=True)
class Bias(Estimate):
    """How often an irrelevant feature goes with the better response, and how often it would by chance."""

    chance: float | None


class _Shares:
    """For each observation: its group, whether it holds (a half at a tie), and the probability by chance."""

    def __init__(self) -> None:
        self._groups, self._found, self._chance = array("q"), array("d"), array("d")

    def add(self, group: int, found: float, chance: float) -> None:
        self._groups.append(group)
        self._found.append(found)
        self._chance.append(chance)

    def bias(self, seed: int) -> Bias:
        if not self._groups:
            return Bias(None, None, None, 0, 0, None)
        group, found = np.array(self._groups, np.int64), np.array(self._found)
        estimate = ratio(found, np.ones(len(found)), group, seed=seed, resamples=RESAMPLES)
        return Bias(**asdict(estimate), chance=float(np.array(self._chance).mean()))


class BiasMeasure:
    """Whether the place or the length of a response gives away how good it is.

    Args:
        listed: Whether the format leaves the order of responses to the data.
    """

    def __init__(self, *, listed: bool) -> None:
        self._listed = listed
        self.places: Counter[int] = Counter()
        self._groups: dict[str, int] = {}
        self._first, self._longer = _Shares(), _Shares()

    def see(self, row: AuditedRow) -> None:
        """Takes in a row, if it is a comparison."""
        if row.kind not in ("comparison", "judgment") or not row.ranks:
            return
        group = self._groups.setdefault(row.group, len(self._groups))
        if self._listed and row.ranks.count(min(row.ranks)) == 1:
            place = row.ranks.index(min(row.ranks)) + 1
            self.places[place] += 1
            self._first.add(group, place == 1, 1 / len(row.ranks))
        for one, other in combinations(range(len(row.ranks)), 2):
            better = row.ranks[other] - row.ranks[one]
            longer = len(row.responses[one]) - len(
                row.responses[other]
            )  # in characters, as the baselines measure
            if better:
                self._longer.add(group, 0.5 if not longer else (better > 0) == (longer > 0), 0.5)

    def result(self, seed: int) -> tuple[Bias, Bias]:
        """How often the best response is listed first, and the better one is the longer one."""
        return self._first.bias(seed), self._longer.bias(seed)


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of judgment rows, counted again by the rules of the run that wrote them, if its folder has them.

    Otherwise judges with equal scores form a cluster, and the only largest one decides. Rows without a decision were
    not kept, so these votes are a selection.
    """

    rows: int  # rows that record each judge's score
    recorded: int  # of these, rows that record the sizes of their clusters
    same_clusters: int  # of these, rows whose clusters have the recorded sizes
    chosen_inside: int  # rows whose chosen judgment is in the only largest cluster
    chosen_agrees: int  # of these, rows in which no other explanation agrees better with those of the cluster
    rejected: int  # rejected judgments
    rejected_outside: int  # of these, those outside the cluster or without a score
    alpha: Estimate  # Krippendorff's alpha over all scores
    pairwise: Estimate  # the share of pairs of scores that are equal


class VoteMeasure:
    """Counts the votes of judgment rows again; `rows` is how many have votes."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts = Counter[str]()
        self._agreement = Agreement()

    def see(self, row: AuditedRow) -> None:
        """Takes in a row, if it has votes."""
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

    def result(self, seed: int) -> Votes | None:
        """The counts, and how far the judges agree."""
        if not self.rows:
            return None
        alpha = self._agreement.alpha(resamples=RESAMPLES, seed=seed)
        pairwise = self._agreement.pairwise(resamples=RESAMPLES, seed=seed)
        return Votes(rows=self.rows, **self._counts, alpha=alpha, pairwise=pairwise)
