"""`longrm merge`."""

from pathlib import Path

import click

from longrm.cli.terminal import echo
from longrm.errors import RunError
from longrm.runs.folder import CONFIG, MANIFEST, SUMMARY, read_manifest, read_summary


@click.command("merge", short_help="Make one model of an adapter and its base.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write the model into.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the base.")
def command(run: Path, out: Path, trust_remote_code: bool) -> None:
    """Merges the adapter of a training run, or of a model folder, into its base, the scalar head included.

    The model that it writes is loaded by transformers, vLLM and SGLang as it is.

    \b
    longrm merge runs/lora --out runs/lora/merged
    """
    from longrm.modeling.merging import merge

    trained = (run / "model").is_dir()
    if not trained and (run / MANIFEST).is_file():
        raise RunError(f"{run} has no model yet: let its training end first, with the same longrm train")
    merge(run / "model" if trained else run, out, trust_remote_code=trust_remote_code)
    if trained:
        _tell_whence(run, out)
    echo(f"Wrote {out}")


def _tell_whence(run: Path, out: Path) -> None:
    """The model card of the merged model, from what its run folder holds."""
    from longrm.training.card import write_card
    from longrm.training.evaluations import evaluation_of
    from longrm.training.run import RECIPES

    if not (run / SUMMARY).is_file():
        return
    summary = read_summary(run)
    recipe = RECIPES[summary["objective"]].resolve(run / CONFIG)
    commit = (read_manifest(run).get("model") or {}).get("commit")
    write_card(out, recipe, summary, evaluation=evaluation_of(run, summary["model_step"]), commit=commit)
