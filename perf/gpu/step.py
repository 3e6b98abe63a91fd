"""One comparison on one GPU: forward + backward and scoring, a shared prefix against separate sequences.

Builds a random model of a real shape on the device and prints two tables; `--json FILE` holds every figure, a line
as soon as it is measured. All arms have the same weights, precision and activation checkpointing. Separate sequences
are packed behind one another, computed one by one, or one by one with one causal call of torch's attention; the
fastest that fits counts. The speed-up is measured on the first `--layers` layers, as every layer does the same work;
the whole model runs one shared step, for memory, tokens a second and the share of the device's peak. Of longrm it
imports `modeling` and `training.losses`; it runs with torch 2.11 and transformers 5.17, or later.
"""

import argparse
import json
import logging
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from arms import OUT_OF_MEMORY, SEPARATE, Measured, Work, arms_of, measure, why
from models import SHAPES, build, operations, pinned
from torch.nn.attention import current_flash_attention_impl

PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
}
"""Dense bf16 operations a second, as data sheets have them, by a part of the device's name; the first match counts."""

LENGTHS = ((16_384, 64), (32_768, 512), (65_536, 512), (130_560, 512))
"""Tokens of the prompt and of every response; the last sequence has 131,072."""

PACKAGES = ("torch", "transformers", "peft", "triton", "flash-attn")

USABLE = 0.95
"""The share of a device's memory that tensors are taken to get: its context, workspaces of its libraries and what
lies idle between tensors are no tensors. Assumed, not measured."""

MISSING = "none"
"""The version of what is not there."""

SAVINGS = ((False, False), (True, False), (True, True))
"""With tiles and with offloading, or without: how a step of training is tried, way after way, until it fits."""

_WARM = Work("", 300, 8, 4)
"""What the whole model computes once before it is timed."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of a table: a ratio on a few layers, or a step of the whole model."""

    part: Literal["ratio", "whole"]
    work: Work

    @property
    def description(self) -> str:
        """The cell in one line."""
        w = self.work
        return f"{self.part}: {w.mode}, {w.prompt:,} / {w.response} x {w.responses}"


def cells(options: argparse.Namespace) -> list[Cell]:
    """What is measured, what matters most first: all of it may take longer than there is time."""
    if options.longest:
        return [Cell("whole", longest_work(options))]
    short, medium, long, longest = (
        (max(8, p // options.shrink), max(4, r // options.shrink)) for p, r in LENGTHS
    )

    def ratios(mode: str, *lengths: tuple[int, int]) -> list[Cell]:
        return [Cell("ratio", Work(mode, *length, count)) for length in lengths for count in (2, 4)]

    scoring = Work("scoring", *longest, 4)
    return [
        *ratios("lora", short, long),
        Cell("whole", Work("lora", *longest, 4)),
        Cell("whole", scoring),
        Cell("ratio", scoring),
        Cell("whole", Work("lora", *medium, 4)),
        Cell("whole", Work("full", *medium, 2)),
        *ratios("full", short),
        *ratios("lora", medium, longest),
        *ratios("full", long, medium, longest),
    ]


def longest_work(options: argparse.Namespace) -> Work:
    """One LoRA step of `--longest` tokens in all, of which four responses have their part."""
    response = max(4, 512 // options.shrink)
    return Work("lora", options.longest - 4 * response, response, 4)


def lines_of(cell: Cell, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A cell's line, its figures or why there are none; where a step does not fit, it is run again saving memory."""
    if cell.part == "ratio":
        yield figures_of(cell, options, partial(ratio_of, cell.work, options))
        return
    ways = SAVINGS if cell.work.mode != "scoring" else SAVINGS[:1]
    asked = [(options.tiled or tiled, options.offload or offload) for tiled, offload in ways]
    for tiled, offload in dict.fromkeys(asked):
        line = whole_line(cell, options, tiled, offload)
        yield line
        if line.get("failed") != OUT_OF_MEMORY:
            return


def again(lines: Sequence[dict[str, Any]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The shortest adapter step in the way in which the longest fitted: it takes two steps alike to draw a line."""
    fitted = sorted(
        (one for one in lines if one["part"] == "whole" and one["mode"] == "lora" and "tokens" in one),
        key=lambda one: one["tokens"],
    )
    if len({(one["tiled"], one["offload"]) for one in fitted}) > 1:
        work = Work(**{name: fitted[0][name] for name in ("mode", "prompt", "response", "responses")})
        yield whole_line(Cell("whole", work), options, fitted[-1]["tiled"], fitted[-1]["offload"])


def whole_line(cell: Cell, options: argparse.Namespace, tiled: bool, offload: bool) -> dict[str, Any]:
    """The line of a step of the whole model, with what saves memory or without."""
    found = partial(whole_of, cell.work, options, tiled, offload)
    return figures_of(cell, options, found) | {"tiled": tiled, "offload": offload}


def figures_of(
    cell: Cell, options: argparse.Namespace, found: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """One line of a cell."""
    line = {"part": cell.part, "model": options.model, **asdict(cell.work)}
    try:
        return line | found()
    # What a device raises when it is full has many names, and no failure is worth the cells after it.
    except Exception as error:
        return line | {"failed": why(error)}


def ratio_of(work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """Shared against separate on the first layers of a model."""
    model = build(options.model, work.mode, options.device, layers=options.layers)
    arms = arms_of(work, model.config.vocab_size, options.device)
    repeats = 3 if work.prompt <= 32_768 else 1
    # The first part has the shape of all, and is warmed up with it.
    found = {name: measure(model, arm, work.mode, repeats, arm.parts[:1]) for name, arm in arms.items()}
    counts = {name: operations(model, work, arms[name].parts) for name in ("shared", "one by one")}
    result: dict[str, Any] = {"ideal": round(counts["one by one"] / counts["shared"], 3)}
    result |= {name: one if isinstance(one, str) else asdict(one) for name, one in found.items()}
    ours = found.pop("shared")
    separate = {name: one for name, one in found.items() if isinstance(one, Measured)}
    if isinstance(ours, str):
        return result | {"failed": f"shared: {ours}"}
    if not separate:
        return result | {"failed": f"separate: {found['one by one']}"}
    fastest = min(separate, key=lambda name: separate[name].median)
    smallest = min(separate, key=lambda name: separate[name].growth)
    result |= {"baseline": fastest, "speedup": round(separate[fastest].median / ours.median, 3)}
    least = separate[smallest].growth
    if not least:  # a CPU, on which nobody counts
        return result
    return result | {"memory_baseline": smallest, "memory": round(ours.growth / least, 3)}


def whole_of(work: Work, options: argparse.Namespace, tiled: bool, offload: bool) -> dict[str, Any]:
    """One shared step of the whole model: memory, tokens a second and the share of the device's peak."""
    device = options.device
    lacking = no_room(options.model, work, device) if offload else None
    if lacking:
        return {"failed": lacking}
    model = build(options.model, work.mode, device, layers=None, tiled=tiled, offload=offload)
    arm, warm = (arms_of(each, model.config.vocab_size, device)["shared"] for each in (work, _WARM))
    found = measure(model, arm, work.mode, 1, warm.parts)
    if isinstance(found, str):
        return {"failed": found}
    tokens, (seconds,) = arm.parts[0].layout.tokens, found.seconds
    count, peak = operations(model, work, arm.parts, tiled=tiled), peak_of(device_name(device))
    return {
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "operations_per_second": count / seconds,
        "peak_bytes": found.peak,
        "growth_bytes": found.growth,
        "kernel": current_flash_attention_impl() or "FA2",
    } | ({"share_of_peak": round(count / seconds / peak, 3)} if peak else {})


def no_room(model: str, work: Work, device: str) -> str | None:
    """Why the CPU's memory does not hold what is offloaded to it; None where it does."""
    if device != "cuda":
        return None
    needed = pinned(model, work.mode, work.prompt + work.responses * work.response)
    free = psutil.virtual_memory().available
    if needed <= USABLE * free:
        return None
    return f"offloading needs {needed / 2**30:.0f} GiB of the CPU's memory, of which {free / 2**30:.0f} GiB are free"


def longest_of(results: Sequence[dict[str, Any]], capacity: int) -> dict[str, Any]:
    """The longest sequence by the line through the memory of two whole steps; extrapolated, not run."""
    line: dict[str, Any] = {"part": "longest", "mode": "lora", "usable": USABLE, "run": False}
    alike: dict[tuple[bool, bool], list[tuple[int, int]]] = {}
    for one in results:
        if one["part"] == "whole" and one["mode"] == "lora" and "tokens" in one:
            way = one["tiled"], one["offload"]
            alike.setdefault(way, []).append((one["tokens"], one["peak_bytes"]))
    ways = [(way, sorted(known)) for way, known in sorted(alike.items()) if len(known) > 1]
    if not capacity:
        return line | {"failed": "the memory of this device is not known"}
    if not ways:
        return line | {"failed": "it takes two adapter steps of unlike lengths that fit in the same way"}
    (tiled, offload), ((few, less), *_, (many, more)) = ways[-1]
    line |= {"tiled": tiled, "offload": offload}
    each = (more - less) / (many - few)
    if each <= 0:
        return line | {"failed": "the longer step took no more memory than the shorter"}
    return line | {"tokens": int(many + (USABLE * capacity - more) / each)}


def peak_of(name: str) -> float | None:
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()


def circumstances(device: str, layers: int) -> dict[str, Any]:
    cuda = device == "cuda"
    return {
        "part": "circumstances",
        "device": device_name(device),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else 0,
        "host_bytes": psutil.virtual_memory().available,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
            "cuda": torch.version.cuda or MISSING,
            "cudnn": str(torch.backends.cudnn.version()) if cuda else MISSING,
            "driver": _driver() if cuda else MISSING,
        },
        "layers": layers,
        "command": " ".join(sys.argv),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return MISSING
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return said[0] if said else MISSING


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where it was measured, and both tables, in Markdown."""
    around = next(one for one in lines if one["part"] == "circumstances")
    versions = ", ".join(
        f"{name} {number}" for name, number in around["versions"].items() if number != MISSING
    )
    yield f"{around['device']}, {around['date']}; {versions}"
    rows = sorted((one for one in lines if one["part"] in ("ratio", "whole")), key=_order)
    ratios, wholes = ([one for one in rows if one["part"] == part] for part in ("ratio", "whole"))
    if ratios:
        yield ""
        yield f"Shared against separate, {around['layers']} layers. Speed-up is over the fastest separate arm."
        yield "Memory is what is allocated beside the weights, relative to the leanest separate arm."
        yield ""
        yield "| model | mode | prompt / response | responses | speed-up | ideal | fastest | memory | leanest |"
        yield "|---|---|---|---|---|---|---|---|---|"
        yield from (f"| {_told(one)} | {_ratio(one)} |" for one in ratios)
        yield from _lacking(ratios)
    if wholes:
        yield ""
        yield "One shared step of the whole model."
        yield ""
        yield "| model | mode | prompt / response | responses | seconds | tokens/s | share of peak | peak memory, GiB |"
        yield "|---|---|---|---|---|---|---|---|"
        yield from (f"| {_told(one)} | {_whole(one)} |" for one in wholes)
    for one in (one for one in lines if one["part"] == "longest"):
        yield ""
        told = f"{one['tokens']:,} tokens" if "tokens" in one else f"unknown: {one['failed']}"
        how = f"by extrapolation to {USABLE:.0%} of the memory and not run"
        yield f"Longest sequence with adapters{_switched(one)}, {how}: {told}."


def _order(one: dict[str, Any]) -> tuple[int, int, int]:
    return ("lora", "full", "scoring").index(one["mode"]), one["prompt"], one["responses"]


def _lacking(ratios: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Separate arms that a speed-up was measured without."""
    for one in ratios:
        lacks = [f"{name}: {one[name]}" for name in SEPARATE if isinstance(one.get(name), str)]
        if lacks and "speedup" in one:
            yield ""
            what = f"{one['mode']}, {one['prompt']:,} / {one['response']} x {one['responses']}"
            yield f"{what} without {'; '.join(lacks)}."


def _told(one: dict[str, Any]) -> str:
    shape = f"{one['prompt']:,} / {one['response']} | {one['responses']}"
    return f"{one['model']} | {one['mode']}{_switched(one)} | {shape}"


def _switched(one: dict[str, Any]) -> str:
    return ", offload" * one.get("offload", False) + ", tiles" * one.get("tiled", False)


def _ratio(one: dict[str, Any]) -> str:
    if "failed" in one:
        return f"{one['failed']} | - | - | - | -"
    memory = f"{one['memory']:.2f} | {one['memory_baseline']}" if "memory" in one else "- | -"
    return f"{one['speedup']:.2f}x | {one['ideal']:.2f}x | {one['baseline']} | {memory}"


def _whole(one: dict[str, Any]) -> str:
    if "failed" in one:
        return f"{one['failed']} | - | - | -"
    share = f"{one['share_of_peak']:.2f}" if "share_of_peak" in one else "-"
    memory = f"{one['peak_bytes'] / 2**30:.1f}" if one["peak_bytes"] else "-"
    return f"{one['seconds']:.2f} | {one['tokens_per_second']:,.0f} | {share} | {memory}"


class Record(logging.Handler):
    """Keeps every line, in the file at once; among them what the choice of a kernel says.

    Args:
        file: Where they go, one JSON object a line; a file that is there is begun anew.
    """

    def __init__(self, file: Path | None) -> None:
        super().__init__(logging.INFO)
        self._file = file
        self.lines: list[dict[str, Any]] = []
        if file is not None:
            file.write_text("")

    def add(self, line: dict[str, Any]) -> None:
        """One line more; stderr has it too."""
        self.lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def emit(self, record: logging.LogRecord) -> None:
        """What a logger says, once."""
        line = {"part": "attention", "said": record.getMessage()}
        if line not in self.lines:
            self.add(line)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, default=2, help="of the model whose arms are compared")
    parser.add_argument("--shrink", type=int, default=1, help="divides all lengths, to try it on a CPU")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after so many")
    parser.add_argument(
        "--longest", type=int, default=0, help="instead: one LoRA step of so many tokens in all"
    )
    parser.add_argument("--offload", action="store_true", help="with --longest: layers' inputs on the CPU")
    parser.add_argument("--tiled", action="store_true", help="with --longest: feed-forward layers in tiles")
    parser.add_argument("--json", type=Path, help="write every line here as it is measured")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here: try --device cpu --model tiny --shrink 256")
    if (options.offload or options.tiled) and not options.longest:
        parser.error("--offload and --tiled go with --longest N")
    if options.longest and longest_work(options).prompt < 8:
        parser.error(f"--longest {options.longest} has no room for four responses: make it longer")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    record, logger = Record(options.json), logging.getLogger("longrm.modeling.attention_cuda")
    logger.addHandler(record)
    logger.setLevel(logging.INFO)
    around, begun = circumstances(options.device, options.layers), time.perf_counter()
    record.add(around)
    left: list[str] = []
    for cell in cells(options):
        if time.perf_counter() - begun > options.seconds:
            left.append(cell.description)
        else:
            for line in lines_of(cell, options):
                record.add(line)
    if not options.longest:
        for line in again(record.lines, options):
            record.add(line)
        record.add(longest_of(record.lines, around["memory_bytes"]))
    record.add({"part": "end", "not_measured": left})
    said = [one["said"] for one in record.lines if one["part"] == "attention"]
    unmeasured = [f"Not measured, as no time was left: {'; '.join(left)}."] * bool(left)
    print("\n".join([*table(record.lines), "", *said, *unmeasured]))
    logger.removeHandler(record)
    return int(any("error: " in one.get("failed", "") for one in record.lines))


if __name__ == "__main__":
    sys.exit(main())
