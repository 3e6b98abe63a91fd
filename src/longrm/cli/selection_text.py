"""What `longrm rank` and `longrm filter` say of their options, and of what they have kept and dropped."""

from typing import TYPE_CHECKING

from longrm.cli.standard_streams import RowFiles
from longrm.cli.terminal import echo
from longrm.errors import DataError, RunError
from longrm.types import Outcome

if TYPE_CHECKING:
    from longrm.scoring.row_selection import SelectionCounts

SCORES_FROM = "Score the rows with this model first, as longrm score does (default: read their scores)."
SCORES_COLUMN = "Column of the scores (default: the one that longrm score writes)."


def print_selection(counts: "SelectionCounts | None", data: str, files: RowFiles) -> None:
    """Prints what became of the rows; a process that wrote none has nothing to say.

    Raises:
        DataError: No row had scores.
        RunError: Rows that were scored now ended in errors.
    """
    if counts is None:
        return
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.dropped.items()))
    echo(
        f"Wrote {counts.written} of {counts.read} rows (format {counts.format}) to {files.named_out}"
        f"{dropped and f'; dropped: {dropped}'}",
        err=files.to_stdout,
    )
    for outcome, first in sorted(counts.first_unscored.items()):
        echo(f"Without scores, {outcome}, first: {first}", err=True)
    unscored = sum(counts.dropped[reason] for reason in ("no scores", *Outcome))
    if unscored == counts.read:
        raise DataError(f"no row of {data} has scores")
    if counts.first_unscored and counts.dropped[Outcome.ERROR]:
        raise RunError(
            f"{counts.dropped[Outcome.ERROR]} of {counts.read} rows ended in errors; the same command tries them again"
        )
