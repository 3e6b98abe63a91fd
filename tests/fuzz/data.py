"""Rows of preference data, demonstrations, documents and candidates in JSONL, JSON and gzip."""

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

from . import hostile, seeds

_SCORING = (["score"], ["rank", "--pairs"], ["rank", "--best", "1"], ["filter", "--near-tie", "3"])


def make(rng: random.Random, folder: Path) -> list[str]:
    """A file or folder of rows in which something is wrong."""
    rows: list[Any] = [dict(row) for row in rng.choice(seeds.rows())]
    lines = _lines(rng, rows)
    suffix = rng.choice([".jsonl", ".jsonl", ".jsonl", ".json", ".jsonl.gz", ".csv", ".csv", ".csv.gz"])
    if suffix.startswith(".csv"):
        content = _table(rng, rows).encode(errors="replace")
    elif suffix == ".json" and rng.random() < 0.6:
        content = ("[" + ",".join(lines) + "]").encode(errors="surrogatepass")
    else:
        content = "\n".join(lines).encode(errors="surrogatepass")
    content = _around(rng, content)
    if suffix.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
        content = hostile.damaged(rng, content) if rng.random() < 0.4 else content
    return command(rng, hostile.put(rng, folder / f"rows{suffix}", content), folder)


def _table(rng: random.Random, rows: list[Any]) -> str:
    """Rows as CSV, in which a cell, a quotation mark or a row may be odd."""
    held = [hostile.changed(rng, row) if rng.random() < 0.4 else row for row in rows]
    held = [row for row in held if isinstance(row, dict)] or [seeds.TRL]
    names = [*dict.fromkeys(str(name) for row in held for name in row)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=rng.choice(["\n", "\r\n", "\r"]))
    cells = [[_cell(row.get(name)) for name in names] for row in held]
    if rng.random() < 0.3:
        odd = rng.choice(cells)
        odd.append("more") if rng.random() < 0.5 or not odd else odd.pop()
    writer.writerows([names + rng.choice([[], [], [], names[:1], [""]]), *cells])
    written = text.getvalue()
    if rng.random() < 0.3:
        at = rng.randrange(len(written) + 1)
        return written[:at] + rng.choice(['"', ",", "\n", '"x', ";", "\x00"]) + written[at:]
    return written


def _cell(value: Any) -> str:
    """A cell as a careful writer or a careless one has it."""
    if isinstance(value, list | dict):
        try:
            return json.dumps(value) if len(str(value)) % 5 else str(value)
        except (ValueError, RecursionError):
            return "[" * 200
    return "" if value is None else str(value)[:100_000]


def command(rng: random.Random, path: Path, folder: Path) -> list[str]:
    """A command that reads rows of a path."""
    skip = rng.choice([[], ["--on-bad-row", "skip"]])
    out = folder / "out"
    match rng.randrange(8):
        case 0 | 1 | 2:
            return ["audit", str(path), *rng.choice([[], ["--json"], ["--html", f"{out}.html"]])]
        case 3 | 4:
            return ["evaluate", "--model", "baseline:longest", "--bench", f"file:{path}", "--out", str(out), *skip,
                    "--set", "judging.resamples=100"]  # fmt: skip
        case 5 | 6:
            suffix = rng.choice(["jsonl", "jsonl", "parquet"])
            return [
                *rng.choice(_SCORING),
                "--model",
                "baseline:shortest",
                "--data",
                str(path),
                "--out",
                f"{out}.{suffix}",
                *skip,
            ]
        case _:
            return _synthesis(rng, path, folder)


def _synthesis(rng: random.Random, path: Path, folder: Path) -> list[str]:
    """Documents or candidates as a recipe names them."""
    documents, candidates = path, folder / "candidates.jsonl"
    if rng.random() < 0.5:
        documents = folder / "documents.jsonl"
        documents.write_text(json.dumps(seeds.DOCUMENT) + "\n")
        bad = [hostile.written(rng, hostile.changed(rng, seeds.CANDIDATE)) for _ in range(2)]
        candidates.write_bytes("\n".join(bad).encode(errors="surrogatepass"))
    recipe = folder / "recipe.toml"
    recipe.write_text("")
    given = [f"documents.path={json.dumps(str(documents))}", "candidates.synthetic=true"]
    given += [f"candidates.path={json.dumps(str(candidates))}"] if candidates.exists() else []
    assignments = [part for one in given for part in ("--set", one)]
    return ["synthesize", "benchmark", "--config", str(recipe), "--out", str(folder / "out"), *assignments]


def _lines(rng: random.Random, rows: list[Any]) -> list[str]:
    at = rng.randrange(len(rows))
    match rng.randrange(8):
        case 0:  # another format's row among them
            rows.insert(at, rng.choice(rng.choice(seeds.rows())))
        case 1:  # the same id twice
            rows.append(rows[at])
        case 2:
            rows = [hostile.changed(rng, row) for row in rows]
        case _:
            rows[at] = hostile.changed(rng, rows[at])
    return [hostile.written(rng, row) if rng.random() < 0.4 else json.dumps(row) for row in rows]


def _around(rng: random.Random, content: bytes) -> bytes:
    match rng.randrange(24):
        case 0:
            return b"\xef\xbb\xbf" + content
        case 1:
            return content.decode("utf-8", "replace").encode(
                rng.choice(["utf-16", "utf-32", "latin-1"]), "replace"
            )
        case 2:
            return hostile.damaged(rng, content)
        case 3:
            return b"\n \r\n\t\n" * rng.randrange(1, 4)
        case 4:
            return b""
        case 5:
            return bytes(rng.choice([1, 1000, 10_000_000]))
        case 6:
            return content.replace(b"\n", rng.choice([b"\r", b"\r\n", b"\n\n", b"\x0b", b"\x00\n"]))
        case _:
            return content


def _deep(folder: Path, depth: int, field: str) -> list[str]:
    text = json.dumps({**seeds.TRL, field: "@"}).replace('"@"', "[" * depth + "]" * depth)
    (folder / "deep.jsonl").write_text(text + "\n")
    return ["audit", str(folder / "deep.jsonl")]


def _bomb(folder: Path) -> list[str]:
    """A row of three gigabytes: members of a gzip file, put one behind the other, are one text."""
    start, end = json.dumps({**seeds.TRL, "chosen": "@"}).encode().split(b"@")
    parts = [gzip.compress(part) for part in (start, b"x" * (64 << 20), end)]
    (folder / "bomb.jsonl.gz").write_bytes(parts[0] + parts[1] * 50 + parts[2])
    return ["audit", str(folder / "bomb.jsonl.gz")]


def _table_of(folder: Path, content: bytes) -> list[str]:
    (folder / "rows.csv").write_bytes(content)
    return ["audit", str(folder / "rows.csv")]


def _packed_table(folder: Path) -> list[str]:
    """A cell of three gigabytes."""
    start, cell = gzip.compress(b'prompt,chosen,rejected\nq,"'), gzip.compress(b"x" * (64 << 20))
    (folder / "rows.csv.gz").write_bytes(start + cell * 50)
    return ["audit", str(folder / "rows.csv.gz")]


def _saved(folder: Path, name: Any) -> list[str]:
    (folder / "saved").mkdir()
    (folder / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (folder / "outside.jsonl").write_text(json.dumps(seeds.TRL))
    return ["audit", str(folder / "saved")]


CORPUS = {
    **{
        f"{field} nested {depth} deep": lambda folder, depth=depth, field=field: _deep(folder, depth, field)
        for depth in (500, 1000, 5000, 200_000)
        for field in ("extra", "chosen")
    },
    "gzip bomb": _bomb,
    "a packed table": _packed_table,
    **{
        f"a table of {name}": lambda folder, content=content: _table_of(folder, content)
        for name, content in {
            "a mark that is never closed": b'prompt,chosen,rejected\nq,"' + b"a\n" * 40_000_000,
            "ten million cells": b"prompt,chosen,rejected\n" + b"," * 10_000_000,
            "a million columns": b"," * 1_000_000 + b"\nq",
            "nested lists": b'prompt,candidates\nq,"' + b"[" * 100_000 + b'"\n',
            "a number of many digits": b"prompt,chosen,rejected,length\nq,a,b," + b"9" * 100_000,
            "NUL bytes": b"prompt,chosen,rejected\n" + bytes(1_000_000),
        }.items()
    },
    "state names a file outside": lambda folder: _saved(folder, "../outside.jsonl"),
    "state names an absolute path": lambda folder: _saved(folder, "/etc/passwd"),
    "state names no text": lambda folder: _saved(folder, 5),
}
