"""`longrm rank`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, row_files
from longrm.cli.score import SELECTION_OPTIONS, print_selection
from longrm.cli.terminal import shared_work


@click.command("rank", short_help="Order responses by their scores; keep the best, or make pairs.")
@click.option("--best", type=click.IntRange(1), metavar="K", help="Keep the K best responses of each row.")
@click.option(
    "--pairs", is_flag=True, help="Write pairs: the best response as chosen, the worst as rejected."
)
@SELECTION_OPTIONS
def command(
    data: str, out: Path, best: int | None, pairs: bool, assignments: tuple[str, ...], **flags: Any
) -> None:
    """Writes rows with their responses sorted by score, best first.

    It reads the scores of longrm score; with --model it scores the rows first, and a killed run continues.

    The output has `prompt`, `responses` and `ranks`, where equal scores tie; with --best 1 `prompt` and `completion`;
    with --pairs `prompt`, `chosen` and `rejected`. Scores are sorted with their responses, and `order` has each
    response's index in the input row, from 0. Of identical responses the first is kept. Rows without scores are
    dropped and counted.

    \b
    longrm rank --data scored.jsonl --best 1 --out best.jsonl
    longrm rank --model MODEL --data candidates.jsonl --pairs --out pairs.jsonl
    """
    from longrm.scoring.scored_file import ScoreSettings
    from longrm.scoring.selection import rank_file

    with row_files(data, out) as files:
        settings = resolve(ScoreSettings, None, assignments, {**flags, "data": files.data})
        with shared_work() as (group, report):
            counts = rank_file(settings, files.out, best=best, pairs=pairs, workers=group, progress=report)
        print_selection(counts, settings.data, files)
