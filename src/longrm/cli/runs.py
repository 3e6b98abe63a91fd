"""`longrm runs`: lists, shows, merges, exports and removes runs, and prunes caches."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.filesize import decimal as file_size

from longrm.cli.evaluate import percentage, print_result
from longrm.cli.help import Group
from longrm.cli.options import JSON, PATH
from longrm.cli.terminal import echo, print_facts, print_json, print_lines, print_next, terminal_width
from longrm.errors import ConfigError, RunError
from longrm.reading import short, short_name, visible

if TYPE_CHECKING:  # pyarrow is slow to import
    from longrm.evaluation.read_run import Run


class _DefaultToList(Group):
    """Runs `list` where no subcommand is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = not args or args[0] not in {*self.commands, *ctx.help_option_names, "--help-all"}
        return super().parse_args(ctx, ["list", *args] if bare else args)


@click.group("runs", cls=_DefaultToList)
def command() -> None:
    """List, show, merge and remove runs; prune caches.

    \b
    longrm runs
    longrm runs runs/mine --filter kind=evaluation --sort -result
    longrm runs show runs/judge --limit 3
    longrm runs rm runs/old
    longrm runs cache --prune
    """


# --- list ---


_FIELDS = ("path", "kind", "state", "model", "bench", "result", "started", "size")
_SORT_HELP = f"{', '.join(_FIELDS)}; -FIELD for descending order."
_FILTER_HELP = "List only runs with this text in a field; repeatable."


@command.command("list")
@click.argument("folder", default="runs", type=PATH)
@click.option("--sort", default="path", metavar="FIELD", show_default=True, help=_SORT_HELP)
@click.option("--filter", "filters", multiple=True, metavar="FIELD=TEXT", help=_FILTER_HELP)
@click.option("--all", "every", is_flag=True, help="Also list runs inside runs, such as those of a demo.")
@JSON
def list_runs(folder: Path, sort: str, filters: tuple[str, ...], every: bool, as_json: bool) -> None:
    """List every run in a folder.

    \b
    longrm runs list runs --filter state=stopped
    longrm runs list runs --json

    FOLDER is `runs` by default. The list has model, main metric, context boundary, state and size. A run is finished,
    incomplete (rerun its command to retry errors), running, stopped (rerun its command to continue it) or damaged.
    """
    runs = _selected(listed_runs(folder, every=every), filters, sort)
    if as_json:
        print_json({"folder": str(folder), "runs": runs})
    elif not runs:
        echo(f"No run in {folder}" + (" matches" if filters else ""))
    else:
        _print_runs(folder, runs)
        print_lines(*(f"Damaged: {run['problem']}" for run in runs if run["problem"]))
    if evaluated := [
        run["path"] for run in runs if run["kind"] == "evaluation" and run["state"] == "finished"
    ]:
        print_next("runs", "show", evaluated[0], err=as_json)


def listed_runs(top: Path, *, every: bool = False) -> list[dict[str, Any]]:
    """The runs in a folder by path, as `--json` prints them; runs inside other runs only with `every`.

    `state` is "finished", "incomplete", "running", "stopped" (no summary yet) or "damaged" (with a `problem`).
    `result` is the main metric with its interval: main accuracy of an evaluation, the best evaluation of a training.
    Unknown values are None or empty.
    """
    from longrm.runs.removal import run_folders

    if not top.is_dir():
        raise RunError(f"{top} is not a folder")
    folders = list(run_folders(top))
    return [_row(place) for place in folders if every or not any(other in place.parents for other in folders)]


def _row(folder: Path) -> dict[str, Any]:
    from longrm.evaluation.read_run import COMMANDS, Run
    from longrm.evaluation.summary_schema import EvaluationSummary, StepSummary, TrainingSummary
    from longrm.reporting.formatting import STATUSES, boundary_estimate
    from longrm.runs.removal import is_running, size_of

    texts = dict.fromkeys(("kind", "state", "problem", "model", "bench", "metric", "boundary", "started"), "")
    row: dict[str, Any] = {"path": str(folder), **texts, "result": None, "size": size_of(folder)}
    running = is_running(folder)
    try:
        run = Run(folder)
        row |= {"kind": run.kind, "started": run.manifest["started"], "model": _model(run.settings)}
        row["bench"] = run.settings.get("bench") or ""
        summary = run.summary if run.is_finished and run.kind in COMMANDS else None
    except RunError as error:
        # The files of a run that has just started may not be complete.
        return row | ({"state": "running"} if running else {"state": "damaged", "problem": str(error)})
    if running:
        row["state"] = "running"
    elif summary is None:  # the manifest of a finished synthesis has counts instead of a summary
        finished = run.is_finished or run.manifest.get("counts") is not None
        row["state"] = "finished" if finished else "stopped"
    else:
        row["state"] = "finished" if getattr(summary, "complete", True) else "incomplete"
    if isinstance(summary, EvaluationSummary | StepSummary):
        estimate = summary.accuracies.get("all")
        row |= {"model": summary.model, "bench": summary.bench, "metric": summary.main_metric}
        row["result"] = asdict(estimate) if estimate else None
        if boundary := summary.boundary:
            known = boundary.estimate.value is not None
            row["boundary"] = boundary_estimate(boundary) if known else STATUSES[boundary.status]
    elif isinstance(summary, TrainingSummary) and summary.evaluations and summary.evaluations.best:
        best = summary.evaluations.values[str(summary.evaluations.best)]
        row["metric"] = summary.evaluations.metric
        row["result"] = {"value": best, "low": None, "high": None, "n": 1, "groups": 1}
    return row


def _model(settings: Mapping[str, Any]) -> str:
    """The model or judge in a run's settings."""
    for value in (settings.get("model"), settings.get("judge"), settings.get("recorded")):
        name = value.get("path") or value.get("model") if isinstance(value, Mapping) else value
        if isinstance(name, str) and name:
            return name
    return ""


def _selected(runs: list[dict[str, Any]], filters: Sequence[str], sort: str) -> list[dict[str, Any]]:
    """The runs that match every `FIELD=TEXT` filter, sorted; runs without a value come last."""
    named = [given.partition("=") for given in filters]
    field = sort.removeprefix("-")
    if unknown := {field, *(name for name, _, _ in named)} - {*_FIELDS}:
        raise ConfigError(f"--sort and --filter: unknown field '{min(unknown)}'; known: {', '.join(_FIELDS)}")
    for name, _, text in named:
        runs = [run for run in runs if text.lower() in str(run[name]).lower()]

    def value(run: Mapping[str, Any]) -> Any:
        return run["result"]["value"] if field == "result" and run["result"] else run[field]

    known = sorted(
        (run for run in runs if value(run) not in (None, "")), key=value, reverse=sort.startswith("-")
    )
    return known + [run for run in runs if value(run) in (None, "")]


def _print_runs(folder: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """One line per run, with as many columns, the most important first, as fit into the terminal."""
    from longrm.reporting.formatting import MISSING, few_note, shortened
    from longrm.runs.records import Estimate

    table = [["run", "state", "model", "result, %", "boundary", "bench", "kind", "date", "size"]]
    for run in runs:
        path, result = Path(run["path"]), run["result"]
        cells = [
            str(path.relative_to(folder)) if path != folder else run["path"],
            run["state"],
            shortened(short_name(run["model"]), 24),
            percentage(Estimate(**result)) if result else "",
            run["boundary"],
            shortened(short_name(run["bench"]), 24),
            run["kind"],
            run["started"][:10],
            file_size(run["size"]),
        ]
        table.append([visible(cell) or MISSING for cell in cells])
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    fitting = [n for n in range(1, len(widths) + 1) if sum(widths[:n]) + 2 * (n - 1) <= terminal_width()]
    shown = max(fitting, default=1)
    for cells in table:
        padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        echo("  ".join(padded[:shown]).rstrip())
    if hidden := table[0][shown:]:
        print_lines(f"Not shown: {', '.join(hidden)} (use --json, or a wider terminal)")
    print_lines(few_note(cell for cells in table for cell in cells[:shown]))


# --- show ---

_SHOWN_HELP = "Comparisons or prompts to print."


@command.command("show")
@click.argument("run", type=PATH)
@click.option("--limit", metavar="N", type=click.IntRange(1), default=10, show_default=True, help=_SHOWN_HELP)
@click.option("--id", "only", metavar="ID", help="Print only this comparison or prompt.")
@click.option("--verify", is_flag=True, help="Check the files of a training, merge or synthesis instead.")
def show(run: Path, limit: int, only: str | None, verify: bool) -> None:
    """Print a run's verdicts and answers, or a training's result.

    \b
    longrm runs show runs/judge --limit 3
    longrm runs show runs/judge --id ID | less
    longrm runs show runs/rm --verify

    For an evaluation it prints the question, presented orders, verdict, answer and outcome of each comparison; for a
    training by GRPO the judgments of the last prompts with their rewards, for other trainings loss and evaluations.
    --verify compares the sizes and SHA-256
    digests of model files or rows with those recorded when they were written.
    """
    if verify:
        from longrm.runs.folder import FILES, check_files

        folder = run / "model" if (run / "model" / FILES).is_file() else run
        for name in check_files(folder, digests=True):
            echo(f"{folder / name}: unchanged")
        return
    from longrm.evaluation.read_run import COMMANDS, Run
    from longrm.reward_models.trials import best
    from longrm.types import text_of

    opened = Run(run)
    if opened.kind == "training":
        if "rollouts" in opened.settings:
            _show_rollouts(run, limit, only)
        elif only is not None:
            raise RunError(f"{run}: --id is for evaluations and for trainings by GRPO")
        else:
            _show_steps(opened)
        return
    if opened.kind != "evaluation":
        shows = "; longrm report shows it" if opened.kind in COMMANDS else ""
        raise RunError(
            f"{run} is a run of kind {short(opened.kind)}, which has no comparisons to show{shows}"
        )
    judgments = opened.judgments
    rows = [row for row, name in enumerate(judgments.ids) if only in (None, name)]
    if not rows:
        raise RunError(f"{run} has no comparison with id {short(only)}")
    for record in judgments.at(rows[:limit]):
        print_lines(f"{record.id}: {record.outcome}")
        if record.id in opened.examples:  # the question is known if the comparison was kept in full
            question = " ".join(text_of(opened.examples[record.id].prompt).split())
            print_lines(f"  Question: {question if len(question) <= 300 else f'... {question[-300:]}'}")
        if record.committed is not None:
            print_lines(f"  Own answer, {record.committed.status}: {' '.join(record.committed.text.split())}")
        ranks = record.ranks or ()
        gold = [place for place, rank in enumerate(ranks) if rank == min(ranks)]
        trials: Sequence[Any] = record.trials or [record]  # a single trial is stored in the record itself
        for trial in trials:
            of_gold = f", gold {_numbers(gold)}" if gold else ""
            verdict = _numbers(sorted(best(trial))) or "-"
            print_lines(f"  Order {_numbers(trial.order)}; best {verdict}{of_gold}; {trial.outcome}")
            # Why there is no verdict, and what the model wrote
            for text in (trial.detail, trial.explanation):
                print_lines(*(f"    {line}" for line in text.splitlines()))
        echo()
    if len(rows) > limit:
        echo(f"{len(rows) - limit:,} more; show them with --limit {len(rows)}")
    if opened.settings.get("model"):
        print_next("attribute", "--run", run, "--items", judgments.ids[rows[0]], "--out", "RUN")


def _show_steps(run: "Run") -> None:
    from longrm.cli.train import print_trained
    from longrm.runs.logs import STEPS, Log
    from longrm.runs.records import StepRecord

    if run.is_finished:
        summary = run.summary.to_dict()
        evaluations = summary["evaluations"] or {"values": {}}
        for step, value in evaluations["values"].items():
            echo(f"Step {step}: {evaluations['metric']} {'undefined' if value is None else f'{value:.4f}'}")
        print_trained(summary, run.path, lora="lora" in run.settings["model"])
        print_next("report", run.path, "--out", "report.html")
        return
    steps = list(Log(run.path / STEPS, StepRecord))
    reached = f", loss {steps[-1].loss:.4f}" if steps else ""
    print_lines(f"Not finished: {len(steps):,} steps{reached}; continue it with: {run.command()}")


def _show_rollouts(run: Path, limit: int, only: str | None) -> None:
    from longrm.reporting.formatting import judgment_facts
    from longrm.runs.logs import ROLLOUTS, Log
    from longrm.runs.records import RolloutHead, RolloutRecord

    log, found, offsets = run / ROLLOUTS, 0, deque[int](maxlen=limit)
    for offset, head in Log(log, RolloutHead).with_offsets():
        if only in (None, head.id):
            offsets.append(offset)
            found += 1
    if not found:
        what = "sampled no judgments" if only is None else f"sampled no judgments of {short(only)}"
        raise RunError(f"{run} is a training that {what}")
    for record in Log(log, RolloutRecord).at(offsets):
        print_lines(f"Step {record.step}, {record.id}: gold {record.gold}, {record.length:,} tokens")
        for index, text in enumerate(record.texts):
            print_lines(f"  {judgment_facts(record, index)}")
            print_lines(*(f"    {line}" for line in text.splitlines()))
        echo()
    if found > limit:
        echo(f"{found - limit:,} earlier prompts; show them with --limit {found}")
    print_next("report", run, "--out", "report.html")


def _numbers(places: Iterable[int]) -> str:
    """Places of responses, counted from 1."""
    return " ".join(str(place + 1) for place in places)


# --- merge, rm, cache ---


@command.command("merge")
@click.argument("shards", metavar="SHARD...", nargs=-1, required=True, type=PATH)
@click.option("--out", required=True, type=PATH, help="Run folder to write.")
@JSON
def merge(shards: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge the shards of an evaluation into one run.

    \b
    longrm evaluate --model MODEL --bench probe --shard 1/2 --out runs/one
    longrm evaluate --model MODEL --bench probe --shard 2/2 --out runs/two
    longrm runs merge runs/one runs/two --out runs/whole

    Judgments, gold and summary are byte for byte those of a run without shards. Missing, duplicate, unfinished or
    unrelated shards are errors.
    """
    from longrm.evaluation.merged_shards import merge_shards

    print_result(merge_shards(shards, out), out, as_json=as_json)


@command.command("export")
@click.argument("run", type=PATH)
@click.option(
    "--to", "target", type=click.Choice(["cje"]), required=True, help="The format; cje is cje-eval's."
)
@click.option("--out", required=True, type=PATH, help="JSONL file to write.")
def export(run: Path, target: str, out: Path) -> None:
    """Export an evaluation for a tool that calibrates judges to labels.

    \b
    longrm runs export runs/judge --to cje --out judged.jsonl
    cje analyze judged.jsonl

    A row is a response: the judge's preference for it over the others, and gold's where it is known. Texts are there if
    the run keeps the comparison in full.
    """
    from longrm.data.writing import write_rows
    from longrm.evaluation.export import EXPORTS
    from longrm.evaluation.read_run import Run

    echo(f"Wrote {write_rows(out, EXPORTS[target](Run(run))):,} rows to {out}")


@command.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(runs: tuple[Path, ...], yes: bool) -> None:
    """Remove runs.

    \b
    longrm runs rm runs/old runs/older

    A run folder is removed with all its files: logs, summaries, trained models, cached answers. If a folder is not a
    run, or is in use, nothing is removed. Links inside a run are removed, but not their targets.
    """
    from longrm.runs.removal import check_removable, remove_runs, size_of

    for run in runs:
        check_removable(run)
    if not yes:
        print_facts((file_size(size_of(run)), str(run)) for run in runs)
        try:
            agreed = click.confirm("Remove these runs?" if len(runs) > 1 else "Remove this run?")
        except click.Abort:  # no terminal to answer from
            echo()
            agreed = False
        if not agreed:
            raise RunError("nothing was removed (--yes removes without asking)")
    remove_runs(runs)
    echo(f"Removed {', '.join(map(str, runs))}")


@command.command("cache")
@click.argument("folder", default="runs", type=PATH)
@click.option("--prune", is_flag=True, help="Remove them.")
def cache(folder: Path, prune: bool) -> None:
    """Show the size of the cached answers of endpoints, or prune them.

    \b
    longrm runs cache
    longrm runs cache --prune

    The answers are in the runs of FOLDER (default `runs`). Those of unfinished runs are never pruned, because
    continuing would pay for them again.
    """
    from longrm.runs.folder import CACHE
    from longrm.runs.removal import delete, size_of

    runs = listed_runs(folder, every=True) if folder.is_dir() else []
    finished = [Path(run["path"]) for run in runs if run["state"] == "finished"]
    files = [file for run in finished for file in sorted(run.glob(f"{CACHE}*"))]
    echo(f"answers in {folder}: {len(files)} entries, {file_size(sum(map(size_of, files)))}")
    if prune:
        delete(files)
        echo(f"Removed {len(files)} entries")
