"""`longrm score`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, scoring_options
from longrm.cli.progress_bar import shared_work
from longrm.cli.standard_streams import RowFiles, row_files
from longrm.cli.terminal import echo
from longrm.errors import DataError, RunError


@click.command("score", short_help="Score the responses in a file of preference data.")
@scoring_options(
    model="Folder or Hub id (OWNER/NAME@REVISION) of a reward model, likelihood:MODEL[#REFERENCE], tokens:MODEL, "
    "or another kind that evaluate takes.",
    column="Column for the scores (default: scores, or model_scores if that is taken).",
    required=True,
)
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Writes the same rows plus `scores`, one per response, higher is better.

    Beside them come `scores_outcome`, and `scores_by`: the model that was asked.

    Scores follow the row's own order: chosen, then rejected; or candidates as listed. Rows without an answer have null
    scores, and an outcome that says why: too_long; unparsed (a score is NaN); error (out of memory, or no reply).
    The same command tries errors again.

    Processes that torchrun starts share the rows. A killed run continues from OUT.partial, with or without torchrun
    and Ray.

    \b
    longrm score --model runs/demo/training/long/model --data pairs.jsonl --out scored.jsonl
    longrm score --engine ray --model MODEL --data pairs.jsonl --out scored.jsonl
    longrm score --model MODEL --data - --out - < pairs.jsonl > scored.jsonl
    """
    with row_files(data, out) as files:
        _score(files, assignments, flags)


def _score(files: RowFiles, assignments: tuple[str, ...], flags: Mapping[str, Any]) -> None:
    from longrm.scoring.scored_file import ScoreSettings, score_file

    settings = resolve(ScoreSettings, None, assignments, {**flags, "data": files.data})
    with shared_work() as (group, report):
        result = score_file(settings, files.out, workers=group, progress=report)
    if result is None:
        return
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items()))
    wrote = f"Wrote {result.rows} rows (format {result.format}; {outcomes}) to {files.named_out}"
    echo(wrote, err=files.to_stdout)
    for outcome, first in sorted(result.first_unscored.items()):
        echo(f"Without scores, {outcome}, first: {first}", err=True)
    if not result.outcomes["answered"]:
        raise DataError(f"the model could score no row of {settings.data}")
    if result.outcomes["error"]:
        raise RunError(
            f"{result.outcomes['error']} of {result.rows} rows ended in errors; the same command tries them again"
        )
