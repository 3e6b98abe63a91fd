"""Leakage: what a data set shares with the benchmarks that its users want to measure on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longrm.auditing.audited_rows import AuditedRow, benchmark, of_comparison
from longrm.auditing.result import AuditSettings
from longrm.auditing.shingles import Numbers, every, shingles
from longrm.data.chunking import words_of


@dataclass(frozen=True, slots=True)
class Shared:
    """What a text shares with the texts of benchmarks; `name` is that of the one that shares the most.

    `of_row` is the share of the row's n-grams that benchmark texts hold, all of them together, for a long context may
    be made of several; `of_benchmark` the share of the named text's n-grams that the row holds.
    """

    name: str
    of_row: float
    of_benchmark: float

    @property
    def most(self) -> float:
        """The larger share: a short text within a long one, whichever is which, is shared as well."""
        return max(self.of_row, self.of_benchmark)


class TextIndex:
    """Which of the named texts hold an n-gram: 12 bytes for every one that is looked at."""

    def __init__(self, texts: Iterable[tuple[str, Numbers]]) -> None:
        self._names: list[str] = []
        pieces, owners, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int32)], []
        for name, numbers in texts:
            owners.append(np.full(len(numbers), len(self._names), np.int32))
            self._names.append(name)
            pieces.append(numbers)
            sizes.append(len(numbers))
        held, owner = np.concatenate(pieces), np.concatenate(owners)
        order = np.argsort(held, kind="stable")
        self._held, self._owner = held[order], owner[order]
        self._sizes: npt.NDArray[np.int64] = np.array(sizes, np.int64)

    def most_shared(self, numbers: Numbers) -> Shared | None:
        """What texts share with these n-grams; None where none shares any."""
        low = np.searchsorted(self._held, numbers, "left")
        high = np.searchsorted(self._held, numbers, "right")
        counts = high - low
        if not counts.any():
            return None
        places = np.repeat(high - np.cumsum(counts), counts) + np.arange(counts.sum())  # low .. high of each
        found = np.bincount(self._owner[places], minlength=len(self._names))
        shares = np.maximum(found / len(numbers), found / np.maximum(self._sizes, 1))
        best = int(np.argmax(shares))
        return Shared(
            self._names[best],
            float(np.count_nonzero(counts) / len(numbers)),
            float(found[best] / self._sizes[best]),
        )


class Leakage:
    """Compares rows with benchmarks: contexts and responses by runs of words, questions word for word.

    Args:
        settings: Which benchmarks, and how closely.
        rows: The benchmarks' rows, each with the benchmark's name; loaded by name where not given.

    Raises:
        ConfigError: An unknown benchmark.
        DataError: A benchmark that cannot be read.
    """

    def __init__(self, settings: AuditSettings, rows: Iterable[tuple[str, AuditedRow]] | None = None) -> None:
        self._settings = settings
        self._questions: dict[str, str] = {}
        contexts: dict[str, Numbers] = {}
        responses: dict[str, Numbers] = {}
        seen: set[str] = set()
        known: set[str] = set()
        if rows is None:
            rows = (
                (name, of_comparison(comparison))
                for name in settings.against
                for comparison in benchmark(name).comparisons
            )
        for name, row in rows:
            where = f"{name} {row.id}"
            if row.group not in seen:
                seen.add(row.group)
                contexts[where] = self._of_context(row)
            if _plain(row.question):
                self._questions.setdefault(_plain(row.question), where)
            for place, response in enumerate(row.responses, start=1):
                if self._long_enough(response) and response not in known:
                    known.add(response)
                    responses[f"{where}, response {place}"] = self._of(response)
        self._contexts, self._responses = TextIndex(contexts.items()), TextIndex(responses.items())

    def see(self, row: AuditedRow) -> Iterator[tuple[str, str]]:
        """What a row shares: the kind of finding, and an example."""
        if self._long_enough(row.context):
            yield from self._told("leaked_contexts", row, [self._of_context(row)], self._contexts)
        asked = self._questions.get(_plain(row.question))
        if asked is not None:
            yield "leaked_questions", f"{row.id}: {asked}"
        texts = [self._of(text) for text in row.responses if self._long_enough(text)]
        yield from self._told("leaked_responses", row, texts, self._responses)

    def _told(
        self, kind: str, row: AuditedRow, texts: Sequence[Numbers], index: TextIndex
    ) -> Iterator[tuple[str, str]]:
        found = [shared for numbers in texts if (shared := index.most_shared(numbers)) is not None]
        worst = max(found, key=lambda shared: shared.most, default=None)
        if worst is not None and worst.most >= self._settings.leakage_threshold:
            yield (
                kind,
                f"{row.id}: {worst.of_row:.0%} of it stands in benchmarks, most of it in {worst.name}, of which "
                f"{worst.of_benchmark:.0%} stands here",
            )

    def _of(self, text: str) -> Numbers:
        return shingles(text, self._settings.ngram)

    def _of_context(self, row: AuditedRow) -> Numbers:
        return every(self._of(row.context), self._settings.ngram_sampling)

    def _long_enough(self, text: str) -> bool:
        """Whether a text has an n-gram at all: shorter ones are shared by chance."""
        return len(words_of(text)) >= self._settings.ngram


def _plain(text: str) -> str:
    """A question as its words alone."""
    return " ".join(words_of(text))
