"""`longrm merge`."""

from pathlib import Path

import click

from longrm.cli.options import PATH
from longrm.cli.terminal import echo


@click.command("merge", short_help="Merge an adapter into its base model.")
@click.argument("run", metavar="RUN", type=PATH)
@click.option("--out", required=True, type=PATH, help="Folder to write the model into.")
def command(run: Path, out: Path) -> None:
    """Merges the adapter and the scalar head of a training run or a model folder into the base model.

    The result is a model folder for transformers, vLLM and SGLang.

    \b
    longrm merge runs/lora --out runs/lora/merged
    """
    from longrm.modeling.saving import merge
    from longrm.training.model_card import card_context_of_run, save_card_context, training_run, write_card

    trained = training_run(run)

    def describe(
        folder: Path,
    ) -> None:  # before the folder gets its name, so that a kill leaves no model without card
        if trained is not None:
            context = card_context_of_run(trained)
            write_card(folder, context)
            save_card_context(folder, context)

    source = run if trained is None else trained / "model"
    merge(source, out, finish=describe)
    echo(f"Wrote {out}")
