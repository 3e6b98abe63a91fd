"""`longrm attribute`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.evaluate import percentage
from longrm.cli.help import Command
from longrm.cli.options import HTML_FILE, MODEL_OPTIONS, PATH, RUN_OPTIONS, columns_option, resolve, setting
from longrm.cli.terminal import echo, print_json, print_lines, print_next, print_table, progress
from longrm.errors import ConfigError, RunError, require
from longrm.reading import cut, short

if TYPE_CHECKING:
    from longrm.attribution.records import AttributionRecord
    from longrm.evaluation.summary_schema import AttributionSummary
    from longrm.types import Comparison

_LIMIT_HELP = "Explain a sample, spread over lengths and tasks."
_REMOVAL_HELP = "How to remove a sentence (default filler: other text with as many tokens)."
_ATTENTION_HELP = "Also measure FR and IG, the attention of a scalar model by layer."
_HTML_HELP = "Also write a report with shaded sentences (of --run, too)."
_COMMON = {
    "Model and data": "--run --model --data --bench --items --limit",
    "Method": "--removal --attention --device",
    "Run": "--out --html --set --json",
}


@click.command("attribute", cls=Command, common=_COMMON)
@setting("--model", "model", "A model, as for longrm evaluate (default: that of --run).", metavar="MODEL")
@click.option("--data", metavar="PATH", help="Your preference data; the same as --bench PATH.")
@setting("--bench", "bench", "A benchmark, as for longrm evaluate.", metavar="NAME:PATH")
@click.option("--run", "run", metavar="RUN", type=PATH, help="Explain comparisons of this evaluation.")
@click.option("--items", metavar="ID,ID", help="Explain these comparisons only.")
@setting("--limit", "source.limit", _LIMIT_HELP, int, "N")
@setting("--removal", "removal", _REMOVAL_HELP, ["filler", "deletion"])
@setting("--attention", "attention", _ATTENTION_HELP, bool)
@click.option("--html", "page", metavar="FILE", type=HTML_FILE, help=_HTML_HELP)
@MODEL_OPTIONS
@columns_option("source.columns")
@RUN_OPTIONS
def command(
    data: str | None,
    run: Path | None,
    items: str | None,
    page: Path | None,
    out: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Find the sentences of a context that moved a score.

    \b
    longrm attribute --run runs/probe --items ID --out runs/why
    longrm attribute --model MODEL --data pairs.jsonl --limit 10 --out runs/why

    Sentences are removed and the model judges again. If fresh prompts do not confirm the result, the reason is printed
    in place of the sentences.
    \f

    OUT/attributions.jsonl has a line for each comparison: all sentences with their weights, and the checks.
    """
    from longrm.attribution.run import AttributionSettings, run_attribution
    from longrm.reporting import report

    if data is not None:
        if flags["bench"] is not None:
            raise ConfigError("--data and --bench exclude each other")
        flags["bench"] = f"file:{data}"
    if items is not None:
        flags["items"] = [item.strip() for item in items.split(",")]
    given = {key: value for key, value in flags.items() if value is not None}
    if run is not None:
        given = _settings_of(run) | given
    if config_file is None and not assignments and not {"model", "bench"} <= given.keys():
        raise ConfigError("give --model with --data or --bench, or --run with the folder of an evaluation")
    settings = resolve(AttributionSettings, config_file, assignments, given)
    if page is not None:
        require("altair", "vl_convert", user="--html")
    with progress() as shown:
        records, summary, comparisons = run_attribution(settings, out, progress=shown)
    if page is not None:
        report([out] if run is None else [run, out], page)
        echo(f"Wrote {page}", err=as_json)
    if as_json:
        print_json(summary.to_dict())
    else:
        _print(records, summary, comparisons)
        echo(f"{summary.prompts:,} prompts, {summary.tokens_computed:,} tokens computed. Saved to {out}")
    if records and all(record.trust is None for record in records):
        raise RunError(f"no comparison could be explained, first: '{records[0].id}': {records[0].detail}")
    print_next("report", out, "--out", "report.html", err=as_json)


def _settings_of(run: Path) -> dict[str, Any]:
    """The settings of an evaluation that define its model and its comparisons."""
    from longrm.evaluation.evaluate import Evaluation
    from longrm.runs.folder import CONFIG, read_manifest

    kind = read_manifest(run)["kind"]
    if kind != "evaluation":
        raise RunError(f"--run {run} is a run of kind {short(kind)}; name an evaluation")
    stored = Evaluation.resolve(run / CONFIG).model_dump(exclude_unset=True)
    names = ("model", "bench", "source", "probe", "model_args", "judge", "remote")
    return {name: stored[name] for name in names if stored.get(name) is not None}


def _print(
    records: "Sequence[AttributionRecord]",
    summary: "AttributionSummary",
    comparisons: "Mapping[str, Comparison]",
) -> None:
    """Prints the strongest sentences of each comparison, or why there are none, and a table by length."""
    from longrm.reporting.attribution import attribution_map
    from longrm.reporting.formatting import few_note

    for record in records:
        trust = record.trust
        if trust is None:
            print_lines(f"{record.id}: not explained, {record.detail}")
        elif not trust.shown:
            print_lines(f"{record.id}: not shown, {trust.reason}")
        else:
            target, last = record.target, trust.tops[-1]
            over = "" if target.against is None else f" over response {target.against + 1}"
            lead = f"lead of response {target.response + 1}{over} {trust.score:.2f}"
            print_lines(f"{record.id}: {lead}, without the top {last.k} {trust.score - last.drop:.2f}")
            ranked = attribution_map(record, comparisons[record.id])["ranked"][:3]
            print_lines(*(f"  {one['weight']}  {cut(' '.join(one['text'].split()), 66)}" for one in ranked))
    parts = {"all": summary.overall, **{f"{int(n):,}": part for n, part in summary.by_length.items()}}
    rows = [
        (name, *map(percentage, (part.shown, part.evidence_auc, part.evidence_share)))
        for name, part in parts.items()
    ]
    print_table(("tokens", "shown, %", "evidence AUC, %", "weight on evidence, %"), rows)
    print_lines(few_note(cell for row in rows for cell in row))
