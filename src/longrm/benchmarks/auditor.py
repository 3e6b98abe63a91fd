"""What is odd about data: counted while rows stream by, and part of every report."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

from longrm.benchmarks.stratified_sample import sample, stratum_of
from longrm.types import Comparison, text_of

_EXAMPLES = 10
_IN_ALL = {
    "duplicates": "comparisons whose prompt and responses came before",
    "identical_responses": "comparisons with two identical responses; left out where these are ranked apart",
    "empty_responses": "comparisons with an empty response; left out",
    "ties": "comparisons in which gold ranks tie",
}
UNREADABLE: Mapping[str, str] = {"unreadable_rows": "rows that could not be read; left out"}
"""A kind of finding that most benchmarks have."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One kind of finding: what was looked for, in words, how often it was found, and the first of them."""

    what: str
    count: int = 0
    examples: tuple[str, ...] = ()


class FindingCounter:
    """Counts findings by their kind; a kind that is looked for and has not been found has the count 0."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.findings = {kind: AuditFinding(what) for kind, what in kinds.items()}

    def note(self, kind: str, example: str) -> None:
        """Counts one finding; its example is kept while they are few."""
        what, count, examples = astuple(self.findings[kind])
        self.findings[kind] = AuditFinding(what, count + 1, (*examples, example)[:_EXAMPLES])


class Auditor(FindingCounter):
    """Looks at the comparisons of a benchmark for `kinds` beside what every one is searched for; keeps hashes only."""

    def __init__(self, kinds: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(_IN_ALL | dict(kinds))
        self.comparisons = 0
        self._seen: set[bytes] = set()

    def see(self, comparison: Comparison) -> None:
        """Looks at a comparison for all that can be odd about any."""
        self.comparisons += 1
        ranks, responses = comparison.ranks, comparison.responses
        digest = _digest(comparison)
        if digest in self._seen:
            self.note("duplicates", comparison.id)
        self._seen.add(digest)
        if any(one == other for one, other in combinations(responses, 2)):
            self.note("identical_responses", comparison.id)
        if not all(text_of(response).strip() for response in responses):
            self.note("empty_responses", comparison.id)
        if ranks is not None and len({*ranks}) < len(ranks):
            self.note("ties", comparison.id)

    def as_dict(self) -> dict[str, Any]:
        """What was found, as plain JSON values."""
        return {"comparisons": self.comparisons, "findings": findings_as_dict(self.findings)}


def findings_as_dict(findings: Mapping[str, AuditFinding]) -> dict[str, Any]:
    """Findings as plain JSON values."""
    return {kind: asdict(one) | {"examples": list(one.examples)} for kind, one in findings.items()}


class AuditedComparisons:
    """Comparisons that are read anew, from the start, at every iteration.

    `read` yields them, and notes what only the benchmark itself can see: findings of `kinds`, each in words. `audit` is
    what the latest complete iteration has found; None before. With a limit a stratified sample of so many is taken, for
    which all are read once more, first. `sampled_from` is how many there are then; what samples by itself gives it.
    """

    def __init__(
        self,
        read: Callable[[Auditor], Iterable[Comparison]],
        kinds: Mapping[str, str] = MappingProxyType({}),
        limit: int | None = None,
        sampled_from: int | None = None,
    ) -> None:
        self.audit: Auditor | None = None
        self.sampled_from = sampled_from
        self._read, self._kinds, self._limit = read, kinds, limit
        self._taken: frozenset[int] | None = None

    def __iter__(self) -> Iterator[Comparison]:
        auditor = Auditor(self._kinds)
        for comparison in self._sampled(self._read(auditor)):
            auditor.see(comparison)
            yield comparison
        self.audit = auditor

    def _sampled(self, comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
        if self._limit is None:
            yield from comparisons
            return
        if self._taken is None:
            strata = [stratum_of(comparison) for comparison in self._read(Auditor(self._kinds))]
            self._taken = frozenset(sample(self._limit, strata))
            self.sampled_from = len(strata) if len(strata) > self._limit else None
        yield from (one for place, one in enumerate(comparisons) if place in self._taken)


def _digest(comparison: Comparison) -> bytes:
    """A hash of the prompt and the responses, whose order does not matter."""
    texts = [text_of(comparison.prompt), *sorted(text_of(response) for response in comparison.responses)]
    return hashlib.sha256("\x00".join(texts).encode(errors="surrogatepass")).digest()[:16]
