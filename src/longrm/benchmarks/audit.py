"""What is odd about a benchmark: counted while its comparisons stream by, and part of every report."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from longrm.types import Comparison, text_of

_EXAMPLES = 10

FINDINGS: dict[str, str] = {
    "duplicates": "comparisons whose prompt and responses came before",
    "identical_responses": "comparisons with two identical responses; left out where these are ranked apart",
    "empty_responses": "comparisons with an empty response; left out",
    "ties": "comparisons in which gold ranks tie",
    "unreadable_rows": "rows that could not be read; left out",
    "rising_scores": "items whose candidates come best first, but whose scores rise; the order of the file is kept",
    "length_labels_off": "items whose length label is more than twice or less than half of the measured tokens",
    "stated_lengths_off": "items whose `length` is near neither their tokens, words nor characters",
    "word_counts_off": "items whose `words_count` is more than twice or less than half of their words",
    "question_not_found": "items whose question does not stand in their prompt: their context is not known, so it "
    "can be neither cut, compressed nor checked",
    "missing_tasks": "tasks of the benchmark that are not there",
    "repeated_pairs": "rows of a pair that came before, judged by another judge; left out",
    "repeated_documents": "rows that repeat a document with its questions; left out",
    "no_predictions": "tasks that have documents, but no predictions; left out",
    "no_documents": "files of predictions that have no documents; left out",
    "missing_predictions": "questions for which a model's file of predictions has no line",
    "surplus_predictions": "predictions beyond the last question of their task; left out",
    "misaligned_predictions": "predictions for another question or gold answer than their line's; left out",
    "empty_answers": "empty answers; left out",
    "identical_answers": "answers that another model gave word for word; left out",
    "unreadable_choices": "answers to multiple-choice questions that do not say which choice; left out",
    "not_scorable": "questions whose answers can only be rated by a judge; left out",
    "too_few_answers": "questions with fewer scored answers than a comparison needs; left out",
    "no_clear_gap": "questions without answers that are clearly apart; left out",
}
"""Every kind of finding, in words."""

_ALWAYS = ("duplicates", "identical_responses", "empty_responses", "ties")


@dataclass(frozen=True, slots=True)
class Finding:
    """How often something was found, and where first."""

    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """What one pass over a benchmark has found.

    Attributes:
        comparisons: How many comparisons came by.
        findings: Every kind that was looked for, a key of `FINDINGS`; what was not found has the count 0.
    """

    comparisons: int
    findings: Mapping[str, Finding]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values, with what each kind means."""
        findings = {
            kind: {"what": FINDINGS[kind], "count": finding.count, "examples": list(finding.examples)}
            for kind, finding in self.findings.items()
        }
        return {"comparisons": self.comparisons, "findings": findings}


class Auditor:
    """Collects findings; of the comparisons it keeps hashes only.

    Args:
        looks_for: The kinds that this benchmark is searched for beside those that every one is.
    """

    def __init__(self, looks_for: Iterable[str] = ()) -> None:
        self._counts = dict.fromkeys((*_ALWAYS, *looks_for), 0)
        self._examples: dict[str, list[str]] = {kind: [] for kind in self._counts}
        self._seen: set[bytes] = set()
        self._comparisons = 0

    def note(self, kind: str, example: str) -> None:
        """Counts one finding; its example is kept while they are few."""
        self._counts[kind] += 1
        if len(self._examples[kind]) < _EXAMPLES:
            self._examples[kind].append(example)

    def see(self, comparison: Comparison) -> None:
        """Looks at a comparison for all that can be odd about any."""
        self._comparisons += 1
        responses = comparison.responses
        digest = _digest(comparison)
        if digest in self._seen:
            self.note("duplicates", comparison.id)
        self._seen.add(digest)
        if any(one == other for one, other in combinations(responses, 2)):
            self.note("identical_responses", comparison.id)
        if not all(text_of(response).strip() for response in responses):
            self.note("empty_responses", comparison.id)
        if comparison.ranks is not None and len({*comparison.ranks}) < len(comparison.ranks):
            self.note("ties", comparison.id)

    def result(self) -> Audit:
        """What has been found so far."""
        findings = {kind: Finding(count, tuple(self._examples[kind])) for kind, count in self._counts.items()}
        return Audit(self._comparisons, findings)


class Audited:
    """Comparisons that are read anew, from the start, at every iteration.

    Args:
        read: Yields the comparisons, and notes what only the benchmark itself can see.
        looks_for: The kinds that `read` may note.
        limit: Take the first comparisons only.

    Attributes:
        audit: What the latest complete iteration has found; None before.
    """

    def __init__(
        self,
        read: Callable[[Auditor], Iterable[Comparison]],
        looks_for: Iterable[str] = (),
        limit: int | None = None,
    ) -> None:
        self.audit: Audit | None = None
        self._read = read
        self._looks_for = tuple(looks_for)
        self._limit = limit

    def __iter__(self) -> Iterator[Comparison]:
        auditor = Auditor(self._looks_for)
        for comparison in islice(self._read(auditor), self._limit):
            auditor.see(comparison)
            yield comparison
        self.audit = auditor.result()


def _digest(comparison: Comparison) -> bytes:
    """A hash of the prompt and the responses, whose order does not matter."""
    texts = [text_of(comparison.prompt), *sorted(text_of(response) for response in comparison.responses)]
    return hashlib.sha256("\x00".join(texts).encode(errors="surrogatepass")).digest()[:16]
