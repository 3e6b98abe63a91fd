"""`longrm score`, `longrm rank` and `longrm filter`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from longrm.cli.help import Command
from longrm.cli.options import MODEL_HELP, ROWS_HELP, resolve, row_files, scoring_options
from longrm.cli.terminal import echo, print_next, shared_work
from longrm.errors import DataError, RunError
from longrm.types import Outcome


@click.command("score", cls=Command, common=ROWS_HELP)
@scoring_options(
    model=MODEL_HELP,
    column="Column for the scores (default: scores, or model_scores if that is taken).",
    model_required=True,
)
def command(data: str, out: Path, assignments: tuple[str, ...], **flags: Any) -> None:
    """Score the responses in a file of preference data.

    \b
    longrm score --model MODEL --data pairs.jsonl --out scored.jsonl
    longrm score --model MODEL --data - --out - < pairs.jsonl > scored.jsonl

    The output has the same rows plus `scores`, one per response in the order of the row (chosen before rejected);
    higher is better.
    \f

    It also has `scores_outcome`, `scores_by` (the model) and, with judge.group, `scores_se` (standard errors). A row
    that cannot be scored has null scores, and its outcome is the reason: too_long, unparsed (a score is NaN) or error
    (out of memory, or no reply). Rerun to retry errors.

    A killed run continues from OUT.partial. Processes started by torchrun share the rows, and so do Ray workers:

    \b
    longrm score --engine ray --model MODEL --data pairs.jsonl --out scored.jsonl
    """
    from longrm.scoring.scored_file import ScoreSettings, score_file

    with row_files(data, out) as (source, target, name):
        settings = resolve(ScoreSettings, None, assignments, {**flags, "data": source})
        with shared_work() as (group, report):
            result = score_file(settings, target, workers=group, progress=report)
        if result is None:  # another process writes the file
            return
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items()))
        echo(
            f"Wrote {result.rows} rows (format {result.format}; {outcomes}) to {name}",
            err=str(out) == "-",
        )
        for outcome, first in sorted(result.first_unscored.items()):
            echo(f"No scores ({outcome}), first: {first}", err=True)
        _echo_incomplete(result.incomplete)
        if not result.outcomes["answered"]:
            raise DataError(f"{settings.data}: the model scored no row")
        if errors := result.outcomes["error"]:
            raise RunError(f"{errors} of {result.rows} rows ended in errors; the same command retries them")
        if str(out) != "-":
            print_next("rank", "--data", out, "--best", 1, "--out", "best.jsonl")


def _echo_incomplete(rows: int) -> None:
    if rows:
        echo(f"Scored without some of their verdicts: {rows} rows", err=True)


# --- rank and filter ---

_SELECTION_OPTIONS = scoring_options(
    model="Score the rows first (default: they have scores).",
    column="Column of the scores (default: that of longrm score).",
    model_required=False,
)


@click.command("rank", cls=Command, common={"Selection": "--best --pairs"} | ROWS_HELP)
@click.option("--best", type=click.IntRange(1), metavar="K", help="Keep the K best responses of each row.")
@click.option(
    "--pairs", is_flag=True, help="Write pairs: the best response as chosen, the worst as rejected."
)
@_SELECTION_OPTIONS
def rank(best: int | None, pairs: bool, **flags: Any) -> None:
    """Sort responses by score; keep the best, or make pairs.

    \b
    longrm rank --data scored.jsonl --best 1 --out best.jsonl
    longrm rank --model MODEL --data candidates.jsonl --pairs --out pairs.jsonl

    The output has `prompt`, `responses` and `ranks`, best first; with --best 1 `prompt` and `completion`; with --pairs
    `prompt`, `chosen` and `rejected`.
    \f

    Equal scores tie. Scores are sorted with their responses, and `order` has each response's index in the input row,
    from 0. Of identical responses the first is kept. Rows without scores are dropped and counted. With --model, a
    killed run continues.
    """
    from longrm.scoring.selection import rank_file

    objective = "sft" if best == 1 else "bradley-terry"
    _select(rank_file, {"best": best, "pairs": pairs}, objective, **flags)


@click.command(
    "filter", cls=Command, common={"Selection": "--min-margin --max-margin --near-tie"} | ROWS_HELP
)
@click.option("--min-margin", type=float, metavar="X", help="Smallest margin to keep.")
@click.option("--max-margin", type=float, metavar="X", help="Largest margin to keep.")
@click.option("--near-tie", type=float, metavar="X", help="Drop rows with a smaller absolute margin.")
@_SELECTION_OPTIONS
def filter_(min_margin: float | None, max_margin: float | None, near_tie: float | None, **flags: Any) -> None:
    """Keep rows whose chosen response leads by a margin.

    \b
    longrm filter --data scored.jsonl --min-margin 0.5 --out clear.jsonl
    longrm filter --model MODEL --data pairs.jsonl --near-tie 0.1 --out c.jsonl

    The margin is the score of the chosen response minus that of the rejected one. Rows are written unchanged, with
    their scores.
    \f

    A margin is negative if the scores contradict the gold order. If several responses are chosen or rejected, the best
    score on each side counts. Without a gold order, the response with the best score is the chosen one. Rows without
    scores, and rows in which all gold ranks tie, are dropped and counted. With --model, a killed run continues.
    """
    from longrm.scoring.selection import filter_file

    margins = {"min_margin": min_margin, "max_margin": max_margin, "near_tie": near_tie}
    _select(filter_file, margins, "bradley-terry", **flags)


def _select(
    select: Callable[..., Any],
    options: dict[str, Any],
    objective: str,
    *,
    data: str,
    out: Path,
    assignments: tuple[str, ...],
    **flags: Any,
) -> None:
    """Ranks or filters the rows, scoring them first if a model is given; `objective` trains on the result."""
    from longrm.scoring.scored_file import ScoreSettings

    with row_files(data, out) as (source, target, name):
        settings = resolve(ScoreSettings, None, assignments, {**flags, "data": source})
        with shared_work() as (group, report):
            counts = select(settings, target, **options, workers=group, progress=report)
        if counts is None:  # another process writes the file
            return
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.dropped.items()))
        echo(
            f"Wrote {counts.written} of {counts.rows} rows (format {counts.format}) to {name}"
            f"{dropped and f'; dropped: {dropped}'}",
            err=str(out) == "-",
        )
        for outcome, first in sorted(counts.first_unscored.items()):
            echo(f"No scores ({outcome}), first: {first}", err=True)
        _echo_incomplete(counts.incomplete)
        if sum(counts.dropped[reason] for reason in ("no scores", *Outcome)) == counts.rows:
            raise DataError(f"{settings.data}: no row has scores")
        errors = counts.dropped[Outcome.ERROR]
        if counts.first_unscored and errors:
            raise RunError(f"{errors} of {counts.rows} rows ended in errors; the same command retries them")
        if counts.written and str(out) != "-":
            data, model = f"data.path={out}", "model.path=MODEL"
            print_next("train", objective, "--set", data, "--set", model, "--out", "RUN")
