"""`longrm filter`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, row_files
from longrm.cli.score import SELECTION_OPTIONS, print_selection
from longrm.cli.terminal import shared_work


@click.command("filter", short_help="Keep rows whose chosen response leads by a margin.")
@click.option("--min-margin", type=float, help="Smallest margin to keep.")
@click.option("--max-margin", type=float, help="Largest margin to keep.")
@click.option("--near-tie", type=float, help="Drop rows with a smaller absolute margin than this.")
@SELECTION_OPTIONS
def command(
    data: str,
    out: Path,
    min_margin: float | None,
    max_margin: float | None,
    near_tie: float | None,
    assignments: tuple[str, ...],
    **flags: Any,
) -> None:
    """Writes the rows whose margin is in range, unchanged, with their scores.

    It reads the scores of longrm score; with --model it scores the rows first, and a killed run continues.

    The margin is the score of the chosen response minus the score of the rejected one: negative if the scores
    contradict the gold order. If several responses are chosen or rejected, the best score on each side counts. Without
    a gold order the response with the best score is the chosen one. Rows without scores, and rows in which all gold
    ranks tie, are dropped and counted.

    \b
    longrm filter --data scored.jsonl --min-margin 0.5 --out clear.jsonl
    longrm filter --model MODEL --data pairs.jsonl --near-tie 0.1 --out c.jsonl
    """
    from longrm.scoring.scored_file import ScoreSettings
    from longrm.scoring.selection import filter_file

    with row_files(data, out) as files:
        settings = resolve(ScoreSettings, None, assignments, {**flags, "data": files.data})
        with shared_work() as (group, report):
            counts = filter_file(
                settings,
                files.out,
                min_margin=min_margin,
                max_margin=max_margin,
                near_tie=near_tie,
                workers=group,
                progress=report,
            )
        print_selection(counts, settings.data, files)
