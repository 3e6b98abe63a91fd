"""What should not move a verdict: the order in which responses are shown, and their length."""

from collections.abc import Sequence

from longrm.report.material import Evaluated
from longrm.report.sections.section import Section
from longrm.report.tables import Column, Table, metric_table, percent_cell, points_cell

_ORDER = (
    Column("same verdict in every order", ("position", "consistency"), percent_cell),
    Column("prefers the first shown", ("position", "first_wins"), percent_cell),
    Column("accuracy of one asking", ("position", "single_order"), percent_cell),
    Column("of all orders together", ("position", "order_cancelled"), percent_cell),
)
_LENGTH = (
    Column("better one is longer", ("length_bias", "better_longer"), percent_cell),
    Column("better one is shorter", ("length_bias", "better_shorter"), percent_cell),
    Column("difference, points", ("length_bias", "difference"), points_cell),
    Column("tied", ("ties",), percent_cell),
)


def biases(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no run was asked in two orders, knows the responses' lengths, or ties."""
    order = metric_table("Order of presentation, with 95% intervals", stages, _ORDER)
    places = _places(stages)
    length = metric_table(
        "Accuracy by which response is longer, and pairs of different gold rank judged equal",
        [stage for stage in stages if stage.summary["length_bias"] or stage.summary["ties"]["value"]],
        _LENGTH,
    )
    tables = tuple(table for table in (order, places, length) if table)
    if not tables:
        return None
    told = (
        "A judge without a bias of position gives the same verdict whichever response it is shown first, and of "
        "pairs prefers the first shown one half of the time. Accuracy of all orders together has that bias canceled. "
        if order
        else ""
    )
    told += (
        "A judge that likes length is right more often where the better response is the longer one. That alone is "
        "no proof: such pairs may also be easier."
        if length and _LENGTH[0].name in length.columns
        else ""
    )
    return Section("biases", "Order and length of the responses", "Biases", told.strip(), tables=tables)


def _places(stages: Sequence[Evaluated]) -> Table | None:
    """How often the response at each place was judged best, where more than two were shown."""
    by_place = [(stage.summary["position"] or {}).get("by_place", {}) for stage in stages]
    sizes = sorted({int(size) for found in by_place for size in found if int(size) > 2})
    columns = [
        Column(f"place {place + 1} of {size}", ("position", "by_place", str(size), str(place)), percent_cell)
        for size in sizes
        for place in range(size)
    ]
    return metric_table("Share of askings that judged the response at this place best", stages, columns)
