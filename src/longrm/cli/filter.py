"""`longrm filter`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, row_files, setting
from longrm.cli.score import SELECTION_OPTIONS, print_selection
from longrm.cli.terminal import shared_work


@click.command("filter", short_help="Keep rows whose chosen response leads by a margin.")
@setting("--min-margin", "min_margin", "Smallest margin to keep.", float)
@setting("--max-margin", "max_margin", "Largest margin to keep.", float)
@setting("--near-tie", "near_tie", "Drop rows whose absolute margin is smaller than this.", float)
@SELECTION_OPTIONS
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Writes the rows whose margin is in range, unchanged, with their scores.

    Scores are those that longrm score wrote; with --model the rows are scored first, and a killed run continues.

    The margin is the score of the chosen response minus that of the rejected one, so it is negative where the scores
    contradict the gold order; of several chosen or rejected responses, the best-scored one counts on each side.
    Without a gold order the response with the best score is the chosen one. Rows without scores, and rows whose gold
    ranks all tie, are dropped and counted.

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
