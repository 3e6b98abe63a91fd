"""Run folders that were damaged before the same command continues them."""

import random
from collections.abc import Callable
from pathlib import Path

from . import folders

PRELOAD = ("longrm.cli.train", "longrm.training.train", "longrm.reward_models.simulated")


def make(rng: random.Random, folder: Path) -> list[str]:
    """A run folder in which something is wrong, and the command that continues it."""
    if rng.random() < 0.15:
        return _training(rng, folder)
    files = dict(folders.evaluation())
    if rng.random() < 0.5:
        del files["summary.json"]
    if rng.random() < 0.5:  # killed after some judgments
        name = "judgments.jsonl"
        files[name] = files[name][: rng.randrange(len(files[name]))]
    if rng.random() < 0.3:
        files["judgments.part-1.jsonl"] = folders.evaluation()["judgments.jsonl"]
    run = folders.lay(folder / "run", files)
    folders.damage(
        rng, run, [name for name in files if name not in ("results.csv", "items.parquet", "items.csv")]
    )
    return [*folders.EVALUATE, "--out", str(run)]


def _training(rng: random.Random, folder: Path) -> list[str]:
    files = folders.training()
    run = folders.lay(folder / "run", files)
    (folder / "recipe.toml").write_text(folders.RECIPE)
    folders.damage(rng, run, [name for name in files if name != ".lock"])
    return ["train", "bradley-terry", "--config", str(folder / "recipe.toml"), "--out", str(run)]


def _whole(folder: Path, change: Callable[[Path], object]) -> list[str]:
    run = folders.lay(folder / "run", folders.evaluation())
    change(run)
    return [*folders.EVALUATE, "--out", str(run)]


def _locked_by_a_pipe(run: Path) -> None:
    import os

    (run / ".lock").unlink()
    os.mkfifo(run / ".lock")


CORPUS: dict[str, Callable[[Path], list[str]]] = {
    "a pipe in place of the lock": lambda folder: _whole(folder, _locked_by_a_pipe),
    "a group of the settings is a number": lambda folder: _whole(
        folder, lambda run: (run / "config.toml").write_text("remote = 5\njudge = 3\n")
    ),
    "no kind": lambda folder: _whole(folder, lambda run: (run / "manifest.json").write_text("{}")),
    "a run folder that is a file": lambda folder: _file(folder),
}


def _file(folder: Path) -> list[str]:
    (folder / "run").write_text("a file")
    return [*folders.EVALUATE, "--out", str(folder / "run")]
