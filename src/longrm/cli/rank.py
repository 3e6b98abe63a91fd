"""`longrm rank`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, row_files, setting
from longrm.cli.score import SELECTION_OPTIONS, print_selection
from longrm.cli.terminal import shared_work


@click.command("rank", short_help="Order responses by their scores; keep the best, or make pairs.")
@setting("--best", "best", "Keep the K best responses of each row.", int, metavar="K")
@setting("--pairs", "pairs", "Write the best against the worst: chosen, rejected.", bool)
@SELECTION_OPTIONS
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Writes rows with their responses sorted by score, the best first.

    Scores are those that longrm score wrote; with --model the rows are scored first, and a killed run continues.

    Rows are written as `prompt`, `responses` and `ranks`, where equal scores tie; with --best 1 as `prompt` and
    `completion`; with --pairs as `prompt`, `chosen` and `rejected`. The scores move with the responses, and `order`
    has each response's index in the input row, from 0. Of identical responses the first is kept. Rows without scores
    are dropped and counted.

    \b
    longrm rank --data scored.jsonl --best 1 --out best.jsonl
    longrm rank --model MODEL --data candidates.jsonl --pairs --out pairs.jsonl
    """
    from longrm.scoring.ranked_file import RankSettings, rank_file

    with row_files(data, out) as files:
        settings = resolve(RankSettings, None, assignments, {**flags, "data": files.data})
        with shared_work() as (group, report):
            counts = rank_file(settings, files.out, workers=group, progress=report)
        print_selection(counts, settings.data, files)
