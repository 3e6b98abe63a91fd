"""Valid run folders and models, made once by the real classes, and how anything in them is damaged."""

import contextlib
import io
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from . import hostile

Files = Mapping[str, bytes]


def longrm(*args: str) -> None:
    """Runs a command line in this process, and needs it to end well."""
    from longrm.cli.commands import cli

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main(list(args), prog_name="longrm", standalone_mode=False)


def files_in(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SMALL = (
    "--set",
    "probe.cells=[{lengths=[64, 128], groups=3, per_group=2}]",
    "--set",
    "judging.resamples=100",
)
EVALUATE = ("evaluate", "--model", "simulated:0.2", "--bench", "probe", *SMALL)
"""An evaluation of a moment."""


@cache
def evaluation() -> Files:
    """The folder of a finished evaluation."""
    with tempfile.TemporaryDirectory() as scratch:
        longrm(*EVALUATE, "--out", f"{scratch}/run")
        return files_in(Path(scratch) / "run")


@cache
def training() -> Files:
    """The folder of a finished training, without its model and its checkpoints."""
    with tempfile.TemporaryDirectory() as scratch:
        recipe = Path(scratch) / "recipe.toml"
        recipe.write_text(RECIPE)
        longrm("train", "bradley-terry", "--config", str(recipe), "--out", f"{scratch}/run")
        found = files_in(Path(scratch) / "run")
    return {name: content for name, content in found.items() if "/" not in name}


RECIPE = """\
model.new = {layers = 1, hidden = 8, heads = 1, head_dim = 8, intermediate = 8}
data.world = {tokens_per_step = 64, responses_per_step = 2}
curriculum.lengths = [64]
optimizer = {steps = 3, learning_rate = 0.01}
"""


@cache
def demo() -> Files:
    """The folder of a demo of two stages, put together from an evaluation and a training."""
    evaluated, trained = evaluation(), training()
    summary = json.loads(evaluated["summary.json"])
    metric = summary["ties"]
    whole = {
        "schema_version": 1,
        "kind": "demo",
        "seed": 0,
        "complete": True,
        "stages": {name: summary | {"best_of_4": summary} for name in ("short", "long", "control_short")},
        "contrasts": {"long_vs_control_short": {"by_length": {"64": metric, "128": metric}}},
        "controls": {"unrelated_context": metric},
        "notes": {"start": "it begins"},
        "seconds": {"total": 1.0},
    }
    manifest = json.loads(evaluated["manifest.json"]) | {"kind": "demo"}
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "config.toml": b"seed = 0\n",
        "summary.json": json.dumps(whole).encode(),
    }
    files |= {f"stages/long/pairs/{name}": content for name, content in evaluated.items()}
    return files | {f"training/short/{name}": content for name, content in trained.items()}


def lay(folder: Path, files: Files) -> Path:
    """Writes files into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def damage(rng: random.Random, folder: Path, names: Sequence[str]) -> None:
    """Does something bad to one of the files of a folder, or to several."""
    for name in rng.sample(list(names), min(len(names), rng.choice([1, 1, 1, 2]))):
        _damage(rng, folder / name)


def _damage(rng: random.Random, path: Path) -> None:
    content = path.read_bytes()
    match rng.randrange(12):
        case 0:
            path.write_bytes(hostile.damaged(rng, content))
        case 1:
            path.unlink()
        case 2:
            path.unlink()
            hostile.put(rng, path, content)
        case 3:
            path.unlink()
            _instead(rng, path)
        case 4:
            path.write_bytes(content[: rng.randrange(len(content) + 1)])
        case 5 if path.suffix == ".jsonl":
            lines = content.splitlines(keepends=True)
            rng.shuffle(lines)
            path.write_bytes(b"".join(lines + rng.choices(lines or [b"{}\n"], k=rng.randrange(3))))
        case _ if path.suffix in (".json", ".jsonl"):
            path.write_bytes(_changed(rng, content, path.suffix == ".jsonl"))
        case _:
            path.write_bytes(hostile.damaged(rng, content))


def _changed(rng: random.Random, content: bytes, lines: bool) -> bytes:
    texts = content.decode().splitlines() if lines else [content.decode()]
    if not texts:
        return b"{}\n"
    at = rng.randrange(len(texts))
    try:
        texts[at] = hostile.written(rng, hostile.changed(rng, json.loads(texts[at])))
    except (ValueError, RecursionError):  # the half of a line; deeper than can be written
        return hostile.damaged(rng, content)
    return "\n".join([*texts, ""]).encode(errors="surrogatepass")


def _instead(rng: random.Random, path: Path) -> None:
    match rng.randrange(6):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.symlink_to("/dev/zero")
        case 4:
            with path.open("wb") as file:
                file.truncate(rng.choice([1 << 20, 300 << 20, 1 << 30]))
        case _:
            path.write_bytes(b"\0" * rng.choice([1, 4096]))
