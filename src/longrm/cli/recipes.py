"""`longrm recipes`."""

import click

from longrm.cli.recipe_files import RecipeFile, packaged_recipes, purpose
from longrm.cli.terminal import echo, print_facts


@click.command("recipes", short_help="List the recipes of the package, or print one.")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Lists the recipes that come with the package; with NAME, prints that one, to be changed and saved.

    Every command that takes a file of settings takes these names as well.

    \b
    longrm recipes
    longrm recipes paper/llama-3.1-8b/logo > mine.toml
    longrm train preference --config paper/llama-3.1-8b/logo --out runs/logo
    """
    if name is None:
        print_facts([(known, purpose(path)) for known, path in packaged_recipes().items()])
    else:
        echo(RecipeFile().convert(name, None, None).read_text(encoding="utf-8").rstrip())
