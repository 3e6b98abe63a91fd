"""Recipes of the package, by name."""

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.cli.recipe_files import RecipeFile, packaged_recipes, purpose
from longrm.errors import ConfigError
from longrm.reading import read_toml


def run(*arguments):
    return CliRunner().invoke(cli, arguments)


def test_a_recipe_is_listed_printed_and_found_by_its_name(tmp_path):
    listed = run("recipes").output
    for name in ("paper/llama-3.1-8b/logo", "scale/8-a100", "demo/short", "data/vote"):
        assert name in listed
    printed = run("recipes", "paper/llama-3.1-8b/logo").output
    (tmp_path / "mine.toml").write_text(printed)
    assert read_toml(tmp_path / "mine.toml", ConfigError) == read_toml(
        packaged_recipes()["paper/llama-3.1-8b/logo"], ConfigError
    )


def test_every_recipe_says_what_it_is_for():
    for name, path in packaged_recipes().items():
        said = purpose(path)
        assert len(said) > 20, name
        assert said.endswith("."), name
        assert "#" not in said, name


def test_a_file_comes_before_a_recipe_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/short").write_text("seed = 1\n")
    assert RecipeFile().convert("demo/short", None, None).read_text() == "seed = 1\n"
    assert RecipeFile().convert("demo/short.toml", None, None) == packaged_recipes()["demo/short"]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no recipe of that name; did you mean 'demo/short'"):
        RecipeFile().convert("demo/shrt", None, None)


def test_a_plan_takes_the_name_of_a_recipe_and_suggests_devices():
    assert run("plan", "scale/8-a100", "--device", "a100-80gb", "--devices", "8").exit_code == 0
    refused = run("plan", "scale/8-a100", "--device", "h10-80gb")
    assert refused.exit_code == 2
    assert "did you mean 'h100-80gb'" in refused.output
