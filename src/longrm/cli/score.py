"""`longrm score`, and the output that `longrm rank` and `longrm filter` share with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import MODEL_HELP, RowFiles, resolve, row_files, scoring_options
from longrm.cli.terminal import echo, shared_work
from longrm.errors import DataError, RunError
from longrm.types import Outcome

if TYPE_CHECKING:
    from longrm.scoring.scored_file import RowCounts

SELECTION_OPTIONS = scoring_options(
    model="Score the rows with this model first, as longrm score does (default: read scores from the rows).",
    column="Column of the scores (default: the one that longrm score writes).",
    model_required=False,
)


@click.command("score", short_help="Score the responses in a file of preference data.")
@scoring_options(
    model=MODEL_HELP,
    column="Column for the scores (default: scores, or model_scores if that is taken).",
    model_required=True,
)
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Writes the same rows plus `scores`, one per response; higher is better.

    It also adds `scores_outcome`, and `scores_by`, the model. Scores have the order of the row: chosen, then rejected,
    or the candidates as listed. Rows without an answer have null scores, and an outcome with the reason: too_long,
    unparsed (a score is NaN) or error (out of memory, or no reply). The same command retries errors.

    Processes started by torchrun share the rows. A killed run continues from OUT.partial, with or without torchrun
    and Ray.

    \b
    longrm score --model runs/demo/training/long/model --data pairs.jsonl --out scored.jsonl
    longrm score --engine ray --model MODEL --data pairs.jsonl --out scored.jsonl
    longrm score --model MODEL --data - --out - < pairs.jsonl > scored.jsonl
    """
    from longrm.scoring.scored_file import ScoreSettings, score_file

    with row_files(data, out) as files:
        settings = resolve(ScoreSettings, None, assignments, {**flags, "data": files.data})
        with shared_work() as (group, report):
            result = score_file(settings, files.out, workers=group, progress=report)
        if result is None:  # another process writes the file
            return
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items()))
        echo(
            f"Wrote {result.rows} rows (format {result.format}; {outcomes}) to {files.out_name}",
            err=files.to_stdout,
        )
        for outcome, first in sorted(result.first_unscored.items()):
            echo(f"No scores, {outcome}, first: {first}", err=True)
        if not result.outcomes["answered"]:
            raise DataError(f"{settings.data}: the model scored no row")
        if errors := result.outcomes["error"]:
            raise RunError(f"{errors} of {result.rows} rows ended in errors; the same command retries them")


def print_selection(counts: "RowCounts | None", data: str, files: RowFiles) -> None:
    """Prints how many rows rank or filter wrote and dropped; None in a process that does not write."""
    if counts is None:
        return
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.dropped.items()))
    echo(
        f"Wrote {counts.written} of {counts.rows} rows (format {counts.format}) to {files.out_name}"
        f"{dropped and f'; dropped: {dropped}'}",
        err=files.to_stdout,
    )
    for outcome, first in sorted(counts.first_unscored.items()):
        echo(f"No scores, {outcome}, first: {first}", err=True)
    if sum(counts.dropped[reason] for reason in ("no scores", *Outcome)) == counts.rows:
        raise DataError(f"{data}: no row has scores")
    errors = counts.dropped[Outcome.ERROR]
    if counts.first_unscored and errors:
        raise RunError(f"{errors} of {counts.rows} rows ended in errors; the same command retries them")
