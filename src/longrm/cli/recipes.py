"""`longrm recipes`."""

from itertools import takewhile
from pathlib import Path

import click

from longrm.cli.help import Command
from longrm.cli.options import recipe_option
from longrm.cli.terminal import echo, print_facts, print_next
from longrm.config import packaged_recipes


@click.command("recipes", cls=Command)
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the recipes of the package, or print one.

    \b
    longrm recipes
    longrm recipes paper/llama-3.1-8b/logo > mine.toml
    longrm train preference --config paper/llama-3.1-8b/logo --out runs/logo

    Wherever a command accepts a settings file, it also accepts the name of a recipe.
    """
    if name is None:
        print_facts([(known, _purpose(path)) for known, path in packaged_recipes().items()])
        print_next("recipes", "NAME")
        return
    echo(recipe_option(name).read_text(encoding="utf-8").rstrip())
    if name.startswith("data/"):
        subcommand = name.removeprefix("data/").removesuffix(".toml").replace("_", "-")
        print_next("synthesize", subcommand, "--config", name, "--out", "RUN", err=True)
    else:
        print_next("plan", name, err=True)


def _purpose(recipe: Path) -> str:
    """The first sentence of the comment at the top of a recipe."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    return " ".join(comment).partition(". ")[0].rstrip(".") + "."
