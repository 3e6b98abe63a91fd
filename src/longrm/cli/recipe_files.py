"""Recipes that come with the package, by name wherever a file of settings is asked for."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from longrm.errors import ConfigError

_FOLDER = Path(str(files("longrm") / "recipes"))


def packaged_recipes() -> dict[str, Path]:
    """The files of all recipes of the package, by name, such as `paper/qwen3-8b/logo`."""
    found = sorted(_FOLDER.rglob("*.toml"))
    return {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in found}


def purpose(recipe: Path) -> str:
    """The first sentence of the comment that a recipe begins with."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in lines[: _rows_of_comment(lines)]]
    return " ".join(comment).partition(". ")[0].rstrip(".") + "."


def _rows_of_comment(lines: list[str]) -> int:
    return next((row for row, line in enumerate(lines) if not line.startswith("#")), len(lines))


class RecipeFile(click.Path):
    """A file of settings: a path, or the name of a recipe of the package."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Finds the file.

        Raises:
            ConfigError: There is neither such a file nor such a recipe.
        """
        path = Path(value)
        if path.exists():
            return path
        known = packaged_recipes()
        recipe = known.get(str(value).removesuffix(".toml"))
        if recipe is None:
            near = get_close_matches(str(value), known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "longrm recipes lists them"
            raise ConfigError(f"there is no file '{value}', and no recipe of that name; {hint}")
        return recipe
