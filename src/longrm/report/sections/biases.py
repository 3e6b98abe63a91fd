"""What should not affect a verdict: the order in which responses are presented, and their length."""

from collections.abc import Sequence

from longrm.evaluation.summaries import EvaluationSummary
from longrm.report.load import Model
from longrm.report.tables import Column, Section, estimate_table
from longrm.runs.records import Estimate

_ORDER: tuple[Column, ...] = (
    ("same verdict in every order", lambda s: s.position.consistency if s.position else None),
    ("prefers the first shown", lambda s: s.position.first_wins if s.position else None),
    ("accuracy of one trial", lambda s: s.position.single_order if s.position else None),
    ("of all orders together", lambda s: s.position.order_cancelled if s.position else None),
)
_DIFFERENCE = "difference, points"
_LENGTH: tuple[Column, ...] = (
    ("chosen is longer", lambda s: s.length_bias.better_longer if s.length_bias else None),
    ("chosen is shorter", lambda s: s.length_bias.better_shorter if s.length_bias else None),
    (_DIFFERENCE, lambda s: s.length_bias.difference if s.length_bias else None),
    ("tied", lambda s: s.ties),
)


def biases(models: Sequence[Model]) -> Section | None:
    """Left out where no run used two orders, knows the responses' lengths, or has ties."""
    order = estimate_table("Order of presentation, with 95% intervals", models, _ORDER)
    positions = [model.summary.position.by_place for model in models if model.summary.position]
    sizes = sorted({int(size) for by_place in positions for size in by_place if int(size) > 2})
    places = [_place_column(size, place) for size in sizes for place in range(size)]
    by_place = estimate_table("Share of trials that prefer the response at each place", models, places)
    length = estimate_table(
        "Accuracy by which response is longer, and gold-ordered pairs judged equal",
        [model for model in models if model.summary.length_bias or model.summary.ties.value],
        _LENGTH,
        in_points=[_DIFFERENCE],
    )
    tables = [table for table in (order, by_place, length) if table]
    if not tables:
        return None
    meaning = []
    if order:
        meaning.append(
            "Without position bias a judge gives the same verdict in both orders, and prefers the first response shown "
            "in half of the pairs. Accuracy over all orders together cancels the bias."
        )
    if length and _LENGTH[0][0] in length.columns:
        meaning.append(
            "A judge that favors long responses is right more often where the chosen response is the longer one; such "
            "pairs may also be easier."
        )
    return Section("Order and length of the responses", "Biases", " ".join(meaning), tables=tables)


def _place_column(size: int, place: int) -> Column:
    def find(summary: EvaluationSummary) -> Estimate | None:
        return summary.position.by_place.get(str(size), {}).get(str(place)) if summary.position else None

    return f"place {place + 1} of {size}", find
