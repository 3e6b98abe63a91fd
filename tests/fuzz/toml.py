"""Settings: TOML files, `--set`, flags and names on the command line, of every command that takes settings."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import hostile, seeds

PRELOAD = ("longrm.cli.train", "longrm.cli.plan", "longrm.training.train", "longrm.planning.training_plan")

NAMES_SETTINGS = True
"""A refusal may name a setting in place of a file."""

_WORLD = {
    "model": {"new": {"layers": 1, "hidden": 8, "heads": 1, "head_dim": 8, "intermediate": 8}},
    "data": {"world": {"tokens_per_step": 64, "responses_per_step": 2}},
    "curriculum": {"lengths": [64]},
    "optimizer": {"steps": 1, "learning_rate": 0.01},
}
_JUDGES = _WORLD | {"model": {"new": {**_WORLD["model"]["new"], "tokenizer": "judge_words"}}}
_EVALUATE = {
    "model": "baseline:longest",
    "bench": "probe",
    "probe": {"cells": [{"lengths": [64, 96], "groups": 2, "per_group": 2}]},
    "judging": {"resamples": 100, "votes": 1, "examples": 1, "accuracy_threshold": 0.75},
    "judge": {"retries": 1, "temperature": 0.0, "max_tokens": 8},
    "remote": {"extra": {"top_p": 0.5}, "timeout": 1.0, "concurrency": 2},
    "compress": {"tokens": 100},
    "source": {"limit": 8, "strict": False},
}
_SYNTHESIZE = {
    "documents": {"path": "documents.jsonl"},
    "candidates": {"synthetic": True},
    "benchmark": {"pairs": 4, "rankings": 2},
    "seed": 1,
}
_AUDIT = {
    "similarity_threshold": 0.8,
    "shingle": 5,
    "permutations": 16,
    "resamples": 100,
    "ngram": 13,
    "tokenizers": ["words"],
}

RECIPES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "evaluate": (["evaluate"], _EVALUATE),
    "synthesize": (["synthesize", "benchmark"], _SYNTHESIZE),
    "audit": (["audit", "rows.jsonl"], _AUDIT),
    "train": (["train", "bradley-terry"], _WORLD),
    "preference": (
        ["train", "preference"],
        _JUDGES
        | {
            "data": {"world": {"completions": ["pairwise"], **_WORLD["data"]["world"]}},
            "loss": {"kind": "logo"},
        },
    ),
    "plan": (["plan"], _WORLD | {"objective": "bradley_terry"}),
}
"""A command, and settings with which it does little work."""

_RAW = (
    "nan", "-inf", "1e400", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "-1", "0", "1", "99999", "1e14", "1e308",
    "2", "0.5", "true", '""', '" "', '"\\u0000"', '"\\u001b[31m"', '"nan"', '"a/b"', "[]", "{}", "[[]]", "[-1]",
    "[1e18]", "{a=nan}",
    "{a={b=[inf]}}", "{a=07:32:00}", "0x7fffffffffffffff", "1000000000000000000", "100000000000000", "1000000000000",
    "-9223372036854775808", "'''\nx\n'''", "[1, 'a', {}]", "9" * 19, "9" * 400, "9" * 5000, "[" * 500, "[" * 200_000,
    "{a=" * 20_000, "'" + "x" * 100_000 + "'", ".".join("a" * 200) + "= 1", '"openai:http://127.0.0.1:99999/v1#m"',
    '"openai:http://[::1/v1#m"', '"simulated:nan"', '"simulated:1e400"', '"baseline:"', '"compress:compress:x"',
    '"file:"', '"probe:x"', '"leval:nowhere"', '"long-rewardbench:/dev/null"',
)  # fmt: skip


def make(rng: random.Random, folder: Path) -> list[str]:
    """A command whose settings are wrong in one place or several."""
    (folder / "rows.jsonl").write_text(json.dumps(seeds.TRL) + "\n")
    (folder / "documents.jsonl").write_text(json.dumps(seeds.DOCUMENT) + "\n")
    if rng.random() < 0.1:
        return _world(rng)
    command, settings = RECIPES[rng.choice(list(RECIPES))]
    lines = _lines(settings)
    given: list[str] = []
    for _ in range(rng.choice([1, 1, 2])):
        at, raw = rng.randrange(len(lines)), rng.choice(_RAW)
        key = _key(rng, lines[at].partition(" = ")[0])
        if rng.random() < 0.4:
            given += ["--set", f"{key}={raw}"]
        else:
            lines[at] = f"{key} = {raw}"
    content = "\n".join(lines).encode(errors="surrogatepass") + b"\n"
    if rng.random() < 0.15:
        content = hostile.damaged(rng, content)
    file = str(hostile.put(rng, folder / "recipe.toml", content))
    out = [] if command[0] in ("audit", "plan") else ["--out", _out(rng, folder)]
    arguments = [*command, *([file] if command[0] == "plan" else ["--config", file]), *out, *given]
    return [argument.replace("\0", "") for argument in arguments if len(os.fsencode(argument)) < 100_000]


def _lines(tree: Any, place: str = "") -> list[str]:
    """Settings as lines of dotted keys; tables in lists are written inline."""
    if isinstance(tree, dict) and tree:
        below = f"{place}." if place else ""
        return [line for key, value in tree.items() for line in _lines(value, below + key)]
    return [f"{place} = {_inline(tree)}"]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def _key(rng: random.Random, key: str) -> str:
    match rng.randrange(16):
        case 0:
            return ".".join([key] * rng.choice([2, 50, 200, 10_000]))
        case 1:
            return key + rng.choice(["x", ".x", ".", "..a", ' "a"', '."\\u001b"', ".0", "." + "y" * 50_000])
        case 2:
            return key.rpartition(".")[0] or key
        case 3:
            return rng.choice(["", ".", "=", "[a]", "a b", "\x1b", "é", HALF_NAME, "seed", "x" * 300])
        case _:
            return key


HALF_NAME = "\udcff"


def _out(rng: random.Random, folder: Path) -> str:
    match rng.randrange(12):
        case 0:
            return str(hostile.put(rng, folder / "out", b"a file"))
        case 1:
            return rng.choice(
                ["x" * 300, "y/" * 3000, "rows.jsonl", "", ".", "/", "/dev/null", "\udcff", "a\x1b[31m"]
            )
        case 2:
            return str(folder / rng.choice(["o\n", "\udcfe", "rows.jsonl/x", "~", "-"]))
        case _:
            return str(folder / "out")


def _world(rng: random.Random) -> list[str]:
    given = {"--length": "64", "--n": "2", "--out": "made.jsonl"}
    numbers = [
        "0",
        "-1",
        "1e14",
        "1000000000000",
        "9" * 30,
        "9" * 5000,
        "nan",
        "",
        "64",
        "\udcff",
        "10000001",
    ]
    for _ in range(rng.choice([1, 2])):
        flag = rng.choice(
            ["--length", "--n", "--responses", "--depth", "--per-group", "--seed", "--out", "--tokenizer"]
        )
        given[flag] = rng.choice(
            ["rows.jsonl/x.jsonl", "x" * 300 + ".jsonl", "made.txt", "/dev/full", ".", *numbers]
        )
    name = rng.choice(["records", "records", "chain", "", "record", "\x1b[31m", "\udcff"])
    return ["world", name, *(part for pair in given.items() for part in pair)]


def _config(folder: Path, text: str) -> list[str]:
    (folder / "recipe.toml").write_text(text)
    return ["evaluate", "--config", str(folder / "recipe.toml"), "--out", str(folder / "out")]


CORPUS: dict[str, Callable[[Path], list[str]]] = {
    **{
        f"nested {depth} deep": lambda folder, depth=depth: _config(folder, "bench = " + "[" * depth)
        for depth in (101, 500, 5000, 200_000)
    },
    "a key of 20,000 parts": lambda folder: _config(folder, "a." * 20_000 + "a = 1"),
    "a header of 20,000 parts": lambda folder: _config(folder, "[" + "a." * 20_000 + "a]"),
    "a flag of 20,000 parts": lambda folder: [*_config(folder, ""), "--set", "a." * 20_000 + "a=1"],
    "5,000 digits": lambda folder: _config(folder, f"bench = {'9' * 5000}"),
    "5,000 digits in a flag": lambda folder: [*_config(folder, ""), "--set", f"judging.seed={'9' * 5000}"],
    "a grid of 1e14 rows": lambda folder: _config(
        folder,
        'model = "baseline:first"\nbench = "probe"\n[[probe.cells]]\nlengths = [128]\ngroups = 100000000000000\n',
    ),
    "a length of 1e18": lambda folder: _config(
        folder, 'model = "baseline:first"\nbench = "probe"\n[[probe.cells]]\nlengths = [1000000000000000000]\n'
    ),
    "1e12 rows": lambda folder: [
        "world", "records", "--length", "64", "--n", "1000000000000", "--out", str(folder / "a.jsonl")
    ],
    "nan in free-form settings": lambda folder: _config(
        folder, 'model = "openai:http://127.0.0.1:9/v1#m"\nbench = "probe"\nremote.extra = {a = nan}\n'
    ),
    "a time in free-form settings": lambda folder: _config(
        folder, 'model = "openai:http://127.0.0.1:9/v1#m"\nbench = "probe"\nremote.extra = {a = 07:32:00}\n'
    ),
    "a date for a text": lambda folder: _config(folder, 'model = 1979-05-27\nbench = "probe"\n'),
}  # fmt: skip
