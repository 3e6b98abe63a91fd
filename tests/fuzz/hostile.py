"""Mutations that every kind shares: values, texts, bytes and names that readers do not expect."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

HALF = "\ud83d"
"""Half of a surrogate pair."""

VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: None,
    lambda rng: rng.choice([True, False]),
    lambda rng: rng.choice([0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400]),
    lambda rng: rng.choice(
        [0.0, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 1e30]
    ),
    lambda rng: rng.choice(
        ["", " ", "\n", "\x00", HALF, f"a{HALF}b", "\x1b[31mred", "0", "null", "\u202e", "é" * 300]
    ),
    lambda rng: rng.choice(["[[A]]", "a/b", "../../etc/passwd", "{{ x }}", "2024-13-40", "x" * 70_000]),
    lambda rng: rng.choice([[], {}, [[]], [None], [{}], {"": ""}, [1, "a", None], {"a": [HALF]}, {HALF: 1}]),
    lambda rng: [rng.choice([0, 1, -1, 0.5, True, "1", None]) for _ in range(rng.randrange(1, 5))],
    lambda rng: [{"role": rng.choice(["user", "assistant", "", None, 5, HALF]), "content": value(rng)}],
    lambda rng: [{"role": "user", "content": [rng.choice(PARTS)(rng) for _ in range(rng.randrange(1, 4))]}],
    lambda rng: nested(rng.choice([5, 90, 99, 100, 101, 120, 200])),
)

PARTS: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: {"type": "text", "text": "a part"},
    lambda rng: {"type": "image", "image": "a.png"},
    lambda rng: {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
    lambda rng: {"type": "text", "text": value(rng)},
    lambda rng: {"text": None},
    lambda rng: "a part",
    lambda rng: value(rng),
)


def value(rng: random.Random) -> Any:
    """A value that a field does not expect."""
    return rng.choice(VALUES)(rng)


def nested(depth: int) -> Any:
    """Lists and objects within each other, to be written by a writer that recurses."""
    held: Any = "deep"
    for level in range(depth):
        held = [held] if level % 2 else {"a": held}
    return held


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a tree of lists and dicts but its root."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at for key, part in parts for at in ((*path, key), *places(part, (*path, key)))]


def changed(rng: random.Random, tree: Any) -> Any:
    """A copy of a tree of JSON values in which one thing is wrong, or several."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        spots = places(tree)
        if not spots:
            return value(rng)
        _change(rng, tree, rng.choice(spots), spots)
    return tree


def _change(rng: random.Random, tree: Any, path: tuple[Any, ...], spots: list[tuple[Any, ...]]) -> None:
    *above, last = path
    holder = tree
    for key in above:
        holder = holder[key]
    match rng.randrange(6):
        case 0 if isinstance(holder, dict):
            del holder[last]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(["id", "", HALF, "role", "\x00", "metadata", last.upper()])] = holder.pop(last)
        case 1 if isinstance(holder, list):
            holder.insert(last, holder[last])
        case 2:
            holder[last] = [holder[last]]
        case 3:
            holder[last] = _at(tree, rng.choice(spots))
        case _:
            holder[last] = value(rng)


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return json.loads(json.dumps(tree))


def written(rng: random.Random, tree: Any) -> str:
    """A tree as JSON text, sometimes in a way that a careful writer would not choose."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.7 or HALF in repr(tree) or "\\ud83d" in repr(tree))
    match rng.randrange(14):
        case 0 if text.startswith("{") and text != "{}":
            first = next(iter(tree))
            return f"{{{json.dumps(first)}: 1, {text[1:]}"
        case 1:
            depth = rng.choice([500, 2000, 100_000, 200_000])
            return '{"id": ' + "[" * depth + "]" * depth + ", " + text[1:]
        case 2:
            return text.replace(":", ": " + "9" * rng.choice([400, 5000]) + ', "x":', 1)
        case 3:
            return text[: rng.randrange(len(text) + 1)]
        case 4:
            return rng.choice(["", " ", "null", "[]", "{}", "7", '"a"', "NaN", "]", "}{", text + text])
        case _:
            return text


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes in which some are flipped, missing, zero, repeated or foreign."""
    held = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        at = rng.randrange(len(held) + 1)
        span = rng.choice([1, 1, 4, 16, 256])
        match rng.randrange(7):
            case 0 | 1 if at < len(held):
                held[at] ^= 1 << rng.randrange(8)
            case 2:
                del held[at : None if rng.random() < 0.3 else at + span]
            case 3:
                held[at : at + span] = bytes(len(held[at : at + span]))
            case 4:
                held[at:at] = held[at : at + span]
            case 5:
                held[at:at] = rng.randbytes(span)
            case _:
                held[at : at + span] = b"\xff" * len(held[at : at + span])
    return bytes(held)


def put(rng: random.Random, path: Path, content: bytes) -> Path:
    """Writes a file under its name or a hostile one; sometimes what lies there is no file at all."""
    match rng.randrange(40):
        case 0:
            path = path.with_name(hostile_name(rng, path.name))
        case 1:
            os.mkfifo(path)
            return path
        case 2:
            path.symlink_to(path.name)
            return path
        case 3:
            path.mkdir()
            return path
        case 4:
            path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "nowhere"]))
            return path
        case 5:  # given, and not there
            return path.with_name("x" * rng.choice([250, 300, 5000]) + path.suffix)
    path.write_bytes(content)
    return path


def hostile_name(rng: random.Random, name: str) -> str:
    """A name that ends as this one does."""
    start = rng.choice(
        ["a\nb", "\x1b[31m", "-v", "--out", "a:b", "%s", "ü" * 100, "\udcff\udcfe", " ", "{x}", "a\rb", "~"]
    )
    return start + name
