"""What should not move a verdict: the order in which responses are shown, and their length."""

from collections.abc import Sequence

from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import EstimateColumn, Table, estimate_table, points_cell

_ORDER = (
    EstimateColumn("same verdict in every order", lambda s: s.position.consistency if s.position else None),
    EstimateColumn("prefers the first shown", lambda s: s.position.first_wins if s.position else None),
    EstimateColumn("accuracy of one trial", lambda s: s.position.single_order if s.position else None),
    EstimateColumn("of all orders together", lambda s: s.position.order_cancelled if s.position else None),
)
_LENGTH = (
    EstimateColumn("better one is longer", lambda s: s.length_bias.better_longer if s.length_bias else None),
    EstimateColumn(
        "better one is shorter", lambda s: s.length_bias.better_shorter if s.length_bias else None
    ),
    EstimateColumn(
        "difference, points", lambda s: s.length_bias.difference if s.length_bias else None, points_cell
    ),
    EstimateColumn("tied", lambda s: s.ties),
)


def biases(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no run was asked in two orders, knows the responses' lengths, or ties."""
    order = estimate_table("Order of presentation, with 95% intervals", stages, _ORDER)
    places = _places(stages)
    length = estimate_table(
        "Accuracy by which response is longer, and pairs of different gold rank judged equal",
        [stage for stage in stages if stage.summary.length_bias or stage.summary.ties.value],
        _LENGTH,
    )
    tables = tuple(table for table in (order, places, length) if table)
    if not tables:
        return None
    meaning = (
        "A judge without a bias of position gives the same verdict whichever response it is shown first, and of "
        "pairs prefers the first shown one half of the time. Accuracy of all orders together has that bias canceled. "
        if order
        else ""
    )
    meaning += (
        "A judge that likes length is right more often where the better response is the longer one. That alone is "
        "no proof: such pairs may also be easier."
        if length and _LENGTH[0].name in length.columns
        else ""
    )
    return Section("Order and length of the responses", "Biases", meaning.strip(), tables=tables)


def _places(stages: Sequence[EvaluatedModel]) -> Table | None:
    """How often the response at each place was judged best, where more than two were shown."""
    by_place = [stage.summary.position.by_place if stage.summary.position else {} for stage in stages]
    sizes = sorted({int(size) for found in by_place for size in found if int(size) > 2})

    def column(size: int, place: int) -> EstimateColumn:
        key = str(size), str(place)
        return EstimateColumn(
            f"place {place + 1} of {size}",
            lambda s: s.position.by_place.get(key[0], {}).get(key[1]) if s.position else None,
        )

    columns = [column(size, place) for size in sizes for place in range(size)]
    return estimate_table("Share of trials that judged the response at this place best", stages, columns)
