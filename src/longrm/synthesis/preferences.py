"""Preferences as inputs of recipes: reading them, and verdicts on a pair in both orders."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from longrm.clients import Completion
from longrm.column_names import ColumnNames
from longrm.data import ComparisonRow, read
from longrm.errors import DataError
from longrm.judging.pairwise import Pairwise
from longrm.reading import located
from longrm.synthesis.models import failure_of
from longrm.synthesis.settings import SourceSettings
from longrm.types import Comparison, Query, query_of

_PAIRWISE = Pairwise()


class PreferenceSettings(SourceSettings):
    """The preferences.

    Attributes:
        path: A file or folder of comparisons, in any format that longrm reads, with a known gold order.
        columns: Names of columns in the file, by longrm's names, such as `prompt = "question"`.
    """

    columns: ColumnNames | None = None

    def read(self) -> Iterator[ComparisonRow]:
        """Reads the comparisons; raises `DataError` for rows whose responses are judgments."""
        for row in islice(read(self.place, columns=self.columns), self.limit):
            if row.comparison.role == "judgment":
                problem = "its responses are judgments of one response, not responses to a prompt"
                raise DataError(located(row.place, problem))
            yield row


def best_and_worst(comparison: Comparison) -> tuple[int, int] | None:
    """The first of the best responses and the last of the worst; None if all tie. Needs known ranks."""
    first, *_, last = comparison.best_first()
    assert comparison.ranks is not None, "checked by best_first"
    return None if comparison.ranks[first] == comparison.ranks[last] else (first, last)


def pair_queries(comparison: Comparison, pair: tuple[int, int], criterion: str = "") -> list[Query]:
    """The pair in both orders, first as given."""
    one, other = pair
    return [
        replace(query_of(comparison, order, trial), criterion=criterion)
        for trial, order in enumerate(((one, other), (other, one)))
    ]


def lead_in_both_orders(queries: Sequence[Query], replies: Sequence[Completion]) -> tuple[str, float]:
    """Reads a judge's replies to `pair_queries`.

    Returns:
        Why there is no verdict, or an empty text; and the lead of the pair's first response in both: 1, 0 or -1.
    """
    leads = []
    for query, sign, reply in zip(queries, (1, -1), replies, strict=True):
        if reason := failure_of(reply):
            return reason, 0.0
        verdict = _PAIRWISE.parse(reply.text, query)
        if verdict is None:
            return "no_verdict", 0.0
        if verdict.contradicted:
            return "contradicted", 0.0
        first_points, second_points = verdict.values
        leads.append(sign * (first_points - second_points))
    return ("", leads[0]) if leads[0] == leads[1] else ("depends_on_order", 0.0)
