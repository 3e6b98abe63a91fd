"""`longrm score`."""

from pathlib import Path

import click

from longrm.cli.options import resolve, set_option
from longrm.cli.progress_bar import shared_work
from longrm.cli.terminal import echo
from longrm.errors import DataError, RunError


@click.command("score", short_help="Score the responses in a file of preference data.")
@click.option(
    "--model",
    required=True,
    help="Folder or Hub id (OWNER/NAME@REVISION) of a reward model, or baseline:NAME.",
)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Preference data.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="JSONL or Parquet file to write.")
@click.option("--format", "row_format", help="The rows' format; recognized from the columns by default.")
@click.option("--column", help="Column for the scores (default: scores, or model_scores if that is taken).")
@click.option(
    "--on-bad-row",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What an unreadable row does.",
)
@click.option("--engine", type=click.Choice(["ray"]), help="Have workers of a Ray cluster score.")
@click.option("--workers", type=int, help="How many Ray starts (default: one a GPU, else one a CPU).")
@set_option("judge.max_tokens=64")
def command(
    model: str,
    data: Path,
    out: Path,
    row_format: str | None,
    column: str | None,
    on_bad_row: str,
    engine: str | None,
    workers: int | None,
    assignments: tuple[str, ...],
) -> None:
    """Writes the same rows plus `scores` (one a response, higher is better) and `scores_outcome`.

    The scores follow the row's own order: chosen, then rejected; or candidates as listed. A row that
    the model could not answer has null scores, and its outcome says what happened: too_long; unparsed, where a score
    is no number; error, where memory did not do or nobody answered, which the same command tries again.

    Processes that torchrun starts share the rows. A killed run continues from what OUT.partial holds, whoever scores.

    \b
    longrm score --model runs/demo/training/long/model --data pairs.jsonl --out scored.jsonl
    longrm score --engine ray --model MODEL --data pairs.jsonl --out scored.jsonl
    """
    from longrm.scoring.scored_file import ScoreSettings, score_file

    given = {
        "model": model,
        "data": str(data),
        "on_bad_row": on_bad_row,
        "format": row_format,
        "column": column,
        "engine": engine,
        "workers": workers,
    }
    settings = resolve(ScoreSettings, None, assignments, given)
    with shared_work() as (group, report):
        result = score_file(settings, out, workers=group, progress=report)
    if result is None:
        return
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items()))
    echo(f"Wrote {result.rows} rows (format {result.format}; {outcomes}) to {out}")
    for outcome, first in sorted(result.without.items()):
        echo(f"Without scores, {outcome}, first: {first}", err=True)
    if not result.outcomes["answered"]:
        raise DataError(f"the model could score no row of {data}")
    if result.outcomes["error"]:
        raise RunError(
            f"{result.outcomes['error']} of {result.rows} rows ended in errors; the same command tries them again"
        )
