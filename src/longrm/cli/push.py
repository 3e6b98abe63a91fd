"""`longrm push` and `longrm merge`."""

from pathlib import Path

import click

from longrm.cli.help import Command
from longrm.cli.options import PATH
from longrm.cli.terminal import echo, print_next, print_table


@click.command("push", cls=Command)
@click.argument("run", metavar="RUN", type=PATH)
@click.argument("name", metavar="OWNER/NAME")
@click.option(
    "--results",
    metavar="RUN",
    multiple=True,
    type=PATH,
    help="A finished evaluation for the card; repeatable.",
)
@click.option("--private", is_flag=True, help="Make the repository private.")
@click.option("--revision", metavar="BRANCH", help="Branch, created if needed (default main).")
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded; uses no network.")
def command(
    run: Path, name: str, results: tuple[Path, ...], private: bool, revision: str | None, dry_run: bool
) -> None:
    """Upload a trained model to the Hugging Face Hub, with its card.

    \b
    longrm push runs/rm acme/my-reward-model --dry-run
    longrm push runs/rm acme/my-reward-model --results runs/probe --private

    RUN is a training or the output of longrm merge. The card shows accuracy by length from the evaluation during
    training and from --results. Only the model's files and the card are uploaded, in one commit; the card contains no
    local path. The token comes from hf auth login or HF_TOKEN.
    """
    from longrm import hub

    hub.check_new_id(name)
    from longrm.training.model_card import is_model_file, pushed_model

    model = pushed_model(run, name, results)
    sizes = model.sizes()
    total = f"{len(sizes)} files, {sum(sizes.values()):,} bytes"
    print_table(("file", "bytes"), [(file, f"{size:,}") for file, size in sizes.items()])
    if model.left_out:
        echo(f"Not uploaded: {', '.join(model.left_out)}")
    if not model.evaluations:
        echo("The card has no results; evaluate the model and pass the run as --results")
    if dry_run:
        echo(f"Would upload {total} to {name}, with this card:\n")
        echo(model.card, end="")
        evaluations = [word for result in results for word in ("--results", result)]
        print_next("push", run, name, *evaluations, err=True)
        return
    done = hub.upload(
        name,
        model.files,
        stale=is_model_file,
        private=private,
        revision=revision,
        message=f"Upload {name.rpartition('/')[2]} with longrm",
    )
    if done.commit is None:
        echo(f"{done.url} is already up to date")
        return
    if done.was_there:
        removed = f" and removed {', '.join(done.removed)}" if done.removed else ""
        echo(f"Replaced the model that was there, in commit {done.commit[:12]}{removed}")
    echo(f"Uploaded {total} to {done.url}")
    print_next("serve", "--model", name if revision is None else f"{name}@{revision}")


@click.command("merge", cls=Command)
@click.argument("run", metavar="RUN", type=PATH)
@click.option("--out", required=True, type=PATH, help="Folder to write the model into.")
def merge(run: Path, out: Path) -> None:
    """Merge an adapter into its base model.

    \b
    longrm merge runs/lora --out runs/lora/merged

    RUN is a training or a model folder with an adapter. The output is a model folder for transformers, vLLM and
    SGLang.
    """
    from longrm.modeling import saving
    from longrm.training.model_card import card_context_of_run, save_card_context, training_run, write_card

    trained = training_run(run)

    def describe(folder: Path) -> None:
        # Called before the folder gets its name: a kill leaves no model without a card.
        if trained is not None:
            context = card_context_of_run(trained)
            write_card(folder, context)
            save_card_context(folder, context)

    source = run if trained is None else trained / "model"
    saving.merge(source, out, finish=describe)
    echo(f"Wrote {out}")
    print_next("push", out, "OWNER/NAME", "--dry-run")
