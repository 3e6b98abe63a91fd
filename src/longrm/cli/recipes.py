"""`longrm recipes`."""

from itertools import takewhile
from pathlib import Path

import click

from longrm.cli.options import packaged_recipes, recipe_file
from longrm.cli.terminal import echo, print_facts


@click.command("recipes", short_help="List the recipes of the package, or print one.")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Lists the recipes of the package; with NAME, prints one for you to edit and save.

    Wherever a command accepts a settings file, it also accepts the name of a recipe.

    \b
    longrm recipes
    longrm recipes paper/llama-3.1-8b/logo > mine.toml
    longrm train preference --config paper/llama-3.1-8b/logo --out runs/logo
    """
    if name is None:
        print_facts([(known, _purpose(path)) for known, path in packaged_recipes().items()])
    else:
        echo(recipe_file(name).read_text(encoding="utf-8").rstrip())


def _purpose(recipe: Path) -> str:
    """The first sentence of the comment at the top of a recipe."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    return " ".join(comment).partition(". ")[0].rstrip(".") + "."
