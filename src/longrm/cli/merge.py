"""`longrm merge`."""

from pathlib import Path

import click

from longrm.cli.terminal import echo
from longrm.errors import RunError
from longrm.runs.folder import CONFIG, MANIFEST, SUMMARY, read_manifest


@click.command(
    "merge", short_help="Merge an adapter into its base model, or write a GGUF file as a model folder."
)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write the model into.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the base model.")
def command(run: Path, out: Path, trust_remote_code: bool) -> None:
    """Merges the adapter of a training run or a model folder, and its scalar head, into the base model.

    Of a GGUF file, or a folder that holds one, it writes the weights as fp32 safetensors, with config and tokenizer.
    transformers, vLLM and SGLang load the folder as it is.

    \b
    longrm merge runs/lora --out runs/lora/merged
    longrm merge model.Q4_K_M.gguf --out models/mine
    """
    from longrm.modeling.saving import merge

    trained = (run / "model").is_dir()
    if not trained and (run / MANIFEST).is_file():
        raise RunError(f"{run} has no model yet: let its training end first, with the same longrm train")
    merge(run / "model" if trained else run, out, trust_remote_code=trust_remote_code)
    if trained and (run / SUMMARY).is_file():
        _write_model_card(run, out)
    echo(f"Wrote {out}")


def _write_model_card(run: Path, out: Path) -> None:
    """Writes the model card of the merged model from what its run folder holds."""
    from longrm.evaluation.summary_schema import read_summary
    from longrm.training.evaluations import evaluation_of
    from longrm.training.model_card import write_card
    from longrm.training.objectives import OBJECTIVES

    summary = read_summary(run)
    recipe = OBJECTIVES[summary["objective"]].settings.resolve(run / CONFIG)
    origin = read_manifest(run).get("model") or {}
    write_card(out, recipe, summary, evaluation=evaluation_of(run, summary["model_step"]), origin=origin)
