"""`longrm filter`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, scoring_options
from longrm.cli.progress_bar import shared_work
from longrm.cli.selection_text import SCORES_COLUMN, SCORES_FROM, print_selection
from longrm.cli.standard_streams import row_files


@click.command("filter", short_help="Keep the rows whose chosen response leads by a margin.")
@click.option("--min-margin", type=float, help="Smallest margin of a row that is kept.")
@click.option("--max-margin", type=float, help="Largest margin of a row that is kept.")
@click.option(
    "--near-tie", type=float, help="Drop rows whose margin is nearer to 0 than this, on either side."
)
@scoring_options(model=SCORES_FROM, column=SCORES_COLUMN, required=False)
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Writes the rows whose margin is as asked, as they are, with their scores.

    Scores are those that longrm score has written; with --model the rows are scored first, as longrm score does, and a
    killed run continues.

    The margin is the score of the chosen response minus that of the rejected one, so that it is below 0 where the
    scores contradict the gold order; of several chosen or rejected ones, the best-scored of either side count.
    Without a gold order the response with the best score is the chosen one. Rows without scores, and rows whose gold
    ranks all tie, are dropped, and counted.

    \b
    longrm filter --data scored.jsonl --min-margin 0.5 --out clear.jsonl
    longrm filter --model MODEL --data pairs.jsonl --near-tie 0.1 --out c.jsonl
    """
    from longrm.scoring.filtered_file import FilterSettings, filter_file

    with row_files(data, out) as files:
        settings = resolve(FilterSettings, None, assignments, {**flags, "data": files.data})
        with shared_work() as (group, report):
            counts = filter_file(settings, files.out, workers=group, progress=report)
        print_selection(counts, settings.data, files)
