"""Reports about run folders in which something is wrong."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import folders, hostile

PRELOAD = ("longrm.report", "longrm.report.figures", "longrm.report.sections")


SPACE = 1 << 40
"""What the engine that draws reserves."""


def make(rng: random.Random, folder: Path) -> list[str]:
    """One run folder or two, of which one is damaged."""
    files = rng.choice([folders.evaluation, folders.evaluation, folders.training, folders.demo])()
    run = folders.lay(folder / "run", files)
    read = [
        name
        for name in files
        if Path(name).name
        not in (".lock", "results.csv", "items.parquet", "items.csv", "contexts.jsonl", "data.json")
    ]
    summaries = [name for name in read if name == "summary.json"]
    if rng.random() < 0.4:
        text = (run / "summary.json").read_text()
        (run / "summary.json").write_text(json.dumps(_odd(rng, json.loads(text))))
    else:
        folders.damage(rng, run, summaries if rng.random() < 0.5 else read)
    more = []
    if rng.random() < 0.2:
        more = [str(folders.lay(folder / "other", folders.evaluation()))]
    return ["report", str(run), *more, "--out", str(folder / "report.html")]


def _odd(rng: random.Random, summary: Any) -> Any:
    """A summary whose values are of the right kinds, and odd."""
    for _ in range(rng.choice([1, 2, 5, 20])):
        *above, last = rng.choice(hostile.places(summary))
        holder = summary
        for key in above:
            holder = holder[key]
        match holder[last]:
            case bool(value):
                holder[last] = not value
            case int():
                holder[last] = rng.choice([0, 1, 7, 2**53, 2**62])
            case float():
                holder[last] = rng.choice([0.0, 1.0, -0.5, 2.0, 1e308, -1e308, 5e-324])
            case str():
                holder[last] = rng.choice(["", "\x1b[31m", "\ufffe", "x" * 5000, "<b>", "[/b]", "{{ x }}"])
            case dict(value) if value:
                del value[rng.choice(list(value))]
            case _:
                pass
    return summary


def _without(folder: Path, files: folders.Files, *keys: str) -> list[str]:
    run = folders.lay(folder / "run", files)
    summary = json.loads((run / "summary.json").read_text())
    held = summary
    for key in keys[:-1]:
        held = held[key]
    del held[keys[-1]]
    (run / "summary.json").write_text(json.dumps(summary))
    return ["report", str(run), "--out", str(folder / "report.html")]


def _nested(folder: Path) -> list[str]:
    run = folders.lay(folder / "run", folders.evaluation())
    (run / "summary.json").write_text('{"a": ' * 100_000)
    return ["report", str(run), "--out", str(folder / "report.html")]


def _missing(folder: Path) -> list[str]:
    return ["report", str(folder / ("x" * 300)), "--out", str(folder / "report.html")]


def _not_text(folder: Path) -> list[str]:
    run = folders.lay(folder / "run\udcff\x1b[31m", folders.evaluation())
    return ["report", str(run), "--out", str(folder / "report.html")]


CORPUS: dict[str, Callable[[Path], list[str]]] = {
    **{
        f"without {'.'.join(keys)}": lambda folder, keys=keys: _without(folder, folders.evaluation(), *keys)
        for keys in (("metrics",), ("counts", "trials"), ("chance",), ("boundary", "estimate"), ("kind",))
    },
    "a demo without stages": lambda folder: _without(folder, folders.demo(), "stages"),
    "a demo without a seed": lambda folder: _without(folder, folders.demo(), "seed"),
    "a training without steps": lambda folder: _without(folder, folders.training(), "steps"),
    "nested 100,000 deep": _nested,
    "a name over 255 bytes": _missing,
    "a name that is not UTF-8": _not_text,
}
