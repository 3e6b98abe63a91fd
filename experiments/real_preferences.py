"""Real preferences for `real_experiment.py`: RMB's pairs, split by conversation, short and as messages of a long inbox.

RMB has no license: the rows stay in the run folder, and no model trained on them is published.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from longrm.benchmarks import BenchmarkSource, Probe, load
from longrm.data.formats import to_native_row
from longrm.data.joining import encode
from longrm.runs.folder import write_file
from longrm.runs.progress import Progress
from longrm.synthesis.recipes.embed import EmbedRecipe, synthesize
from longrm.types import Comparison, text_of
from longrm.worlds.words_tokenizer import load_tokenizer

HELD_OUT = 5
"""One conversation of so many is held out, by a hash of how it begins."""
LONGEST = 512
"""Tokens of a prompt and its longer response."""
SHORT, LONG = (512,), (512, 1024, 2048, 4096)
"""Tokens of the inboxes that the control and the long arm read; all arms are judged on those of the long one."""


def write_pairs(rmb: Path, model: Path, folder: Path) -> None:
    """Writes `train.jsonl`, `held-out.jsonl` and `other-prompt.jsonl`, unless they exist.

    The last has the held-out pairs, each after the prompt of another one: accuracy there comes from responses alone.
    """
    if (folder / "other-prompt.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(str(model))
    loaded = load(f"rmb:{rmb / 'Pairwise_set'}", source=BenchmarkSource(), probe=Probe()).comparisons
    parts: dict[str, list[Comparison]] = {"train": [], "held-out": []}
    for pair in loaded:
        tokens = encode(tokenizer, pair.prompt, pair.responses, (), completion_tokens=True)
        if pair.ranks == (1, 2) and tokens.longest <= LONGEST:
            # Conversations that begin alike are on the same side, whatever their later turns.
            begins = hashlib.sha256(text_of(pair.prompt[:1]).encode()).hexdigest()
            parts["train" if int(begins, 16) % HELD_OUT else "held-out"].append(pair)
    held_out = parts["held-out"]
    prompts = [pair.prompt for pair in held_out]
    half = len(prompts) // 2
    parts["other-prompt"] = [
        replace(pair, prompt=prompt)
        for pair, prompt in zip(held_out, prompts[half:] + prompts[:half], strict=True)
    ]
    for name, pairs in parts.items():
        rows = (json.dumps(to_native_row(pair), ensure_ascii=False) + "\n" for pair in pairs)
        write_file(folder / f"{name}.jsonl", "".join(rows).encode())


def write_inboxes(
    folder: Path,
    part: str,
    model: Path,
    lengths: tuple[int, ...],
    contexts: int,
    seed: int,
    progress: Progress,
    pairs: Literal["preference", "relevance"] = "preference",
) -> Path:
    """Embeds a part of the pairs in inboxes of some lengths; returns the folder of the rows."""
    out = folder / f"{pairs}-{part}-{'-'.join(map(str, lengths))}-{seed}"
    recipe = EmbedRecipe(
        source=f"file:{folder / part}.jsonl",
        license="none",
        lengths=lengths,
        contexts=contexts,
        pairs=(pairs,),
        relevance_share=1.0,
        tokenizer=str(model),
        max_prompt=200,  # so that all lengths are about the same conversations
        seed=seed,
    )
    synthesize(recipe, out, progress=progress)
    return out / "rows"


def write_other_inboxes(rows: Path, out: Path, lengths: tuple[int, ...]) -> Path:
    """Writes the rows of some lengths, each with the inbox and the request of another row of its length.

    Accuracy there comes from responses alone.
    """
    read = [json.loads(line) for file in sorted(rows.iterdir()) for line in file.read_text().splitlines()]
    written = []
    for length in lengths:
        of_length = [row for row in read if row["metadata"]["length"] == length]
        half = len(of_length) // 2
        own = ("id", "group", "responses", "ranks", "metadata")
        for row, other in zip(of_length, of_length[half:] + of_length[:half], strict=True):
            written.append({**other, **{key: row[key] for key in own}})
    write_file(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in written).encode())
    return out
