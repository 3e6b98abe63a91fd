"""Measures what docs/scale.md claims for GPUs: kernels, steps, memory, serving, generation, exchanges.

    bash perf/gpu/day_one.sh                  # on a machine with GPUs; about an hour
    bash perf/gpu/day_one.sh --dry --out DIR  # every part on a CPU, with a tiny model and short prompts

Every line is written to day_one.jsonl as soon as it is measured. At the end the table of docs/scale.md is rewritten,
and utilization.toml if `longrm plan` knows the device; with `--out` copies of them in that folder. A part that fails
writes a line with the error and does not stop the others; the exit status is then 1.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from arms import Work, arms_of, step, why
from models import SHAPES, build
from step import Record, circumstances, ratio_of, whole_of
from torch import Tensor
from transformers import AutoModelForCausalLM

from longrm.modeling import attention
from longrm.modeling.attention_cuda import CANDIDATES, AttentionHeads, written_out
from longrm.modeling.attention_varlen import AttentionSpec, PlainKernel, varlen_attention
from longrm.modeling.device_memory import set_precision
from longrm.modeling.group_sampling import GroupSampler
from longrm.modeling.prefix_cache import PrefixCache
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.modeling.shared_prefix import scores

ROOT = Path(__file__).parents[2]
PAGE, UTILIZATION = "docs/scale.md", "src/longrm/training/plan/utilization.toml"
BEGIN, END = "<!-- day one -->", "<!-- end of day one -->"
NAMES = {
    "40GB": "a100-40gb",
    "A100": "a100-80gb",
    "H100": "h100-80gb",
    "H200": "h200-141gb",
    "B200": "b200-180gb",
}
LENGTHS = (1_024, 16_384, 130_560)
SAMPLED = 64  # queries whose attention is written out in fp32 on the CPU
Line = dict[str, Any]


def kernels(options: argparse.Namespace) -> Iterator[Line]:
    """Every kernel against fp32 on the CPU: outputs and gradients of some queries, with all of their keys."""
    _, sizes = SHAPES[options.model]
    heads, keys = sizes["num_attention_heads"] // sizes["num_key_value_heads"], 1
    of_model = AttentionHeads(torch.device(options.device), torch.bfloat16, heads, keys, sizes["head_dim"])
    if options.dry:
        candidates: dict[str, Any] = {"plain": lambda _: partial(varlen_attention, PlainKernel())}
    else:
        candidates = dict(CANDIDATES)
    for length in options.lengths:
        branches = (max(2, length // 32), 7, 130)
        layout = PackedLayout((TreeShape(length, branches), TreeShape(41, (3, 5))))
        generator = torch.Generator().manual_seed(0)
        states = [
            torch.randn(1, n, layout.tokens, of_model.size, generator=generator).bfloat16()
            for n in (heads, keys, keys)
        ]
        ends = torch.tensor([index for node in layout.nodes() for index in (node.begin, node.end - 1)])
        rows = torch.cat([ends, torch.randperm(layout.tokens, generator=generator)[:SAMPLED]]).unique()
        grad = torch.zeros(1, layout.tokens, heads, of_model.size)
        grad[:, rows] = torch.randn(1, len(rows), heads, of_model.size, generator=generator)
        spec = AttentionSpec(of_model.size**-0.5)
        truth = values(
            partial(written_out, rows), [part.float() for part in states], grad[:, rows], layout, spec
        )
        for name, candidate in candidates.items():
            line: Line = {"part": "kernel", "kernel": name, "tokens": layout.tokens}
            attend = candidate(of_model)
            if isinstance(attend, str):
                yield line | {"failed": attend}
                continue
            try:
                own = [part.to(options.device) for part in states]
                found = values(attend, own, grad.to(options.device, torch.bfloat16), layout, spec)
                found[0] = found[0][:, rows.to(options.device)]
                off = [
                    float((a.float().cpu() - b).abs().max() / b.abs().max())
                    for a, b in zip(found, truth, strict=True)
                ]
                yield line | dict(zip(("output", "query", "key", "value"), off, strict=True))
            except Exception as error:
                yield line | {"failed": why(error)}


def values(
    attend: Callable[..., Tensor],
    states: Sequence[Tensor],
    grad: Tensor,
    layout: PackedLayout,
    spec: AttentionSpec,
) -> list[Tensor]:
    """The output, and the gradients of queries, keys and values."""
    leaves = [part.clone().requires_grad_() for part in states]
    output = attend(*leaves, layout, spec)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def equal_scores(options: argparse.Namespace) -> Iterator[Line]:
    """Scores over a shared prefix against those of separate sequences, by torch's own causal attention."""
    for length in options.lengths[1:]:
        work = Work("scoring", length, options.response, 4)
        model = build(options.model, "scoring", options.device, layers=2)
        arms, found = arms_of(work, model.config.vocab_size, options.device), []
        for name in ("shared", "one causal call"):
            model.set_attn_implementation(arms[name].attention)
            with torch.inference_mode():
                found.append(torch.cat([scores(model, part) for part in arms[name].parts]).float().cpu())
        shared, separate = found
        off = float((shared - separate).abs().max() / separate.std())
        yield {"part": "scores", "tokens": length, "largest_difference_over_deviation": off}


def steps(options: argparse.Namespace) -> Iterator[Line]:
    """Step times and peaks: K = 1, 3, 7; the shape 8K with n = 4 that verl published 1.70x for; G = 8 of GRPO."""
    short = options.lengths[1] // 2
    works = [Work("lora", options.lengths[1], options.response, 1 + k) for k in (1, 3, 7)]
    works += [Work("lora", short, options.response, count) for count in (4, 8)]
    for work in works[:: len(works) - 1] if options.dry else works:
        line = {
            "part": "ratio",
            "prompt": work.prompt,
            "response": work.response,
            "responses": work.responses,
        }
        yield line | ratio_of(work, options)
    longest = Work("lora", options.lengths[2], options.response, 4)
    yield {"part": "whole", "prompt": longest.prompt, "responses": 4} | whole_of(
        longest, options, True, not options.dry
    )


def lengths_change(options: argparse.Namespace) -> Iterator[Line]:
    """An optimizer step, then 20 steps of changing lengths: what the allocators reserve and pin."""
    cuda = options.device == "cuda"
    model = build(options.model, "lora", options.device, layers=None, offload=cuda, tiled=True)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    draw = torch.Generator().manual_seed(0)
    seconds = []
    for _ in range(20):
        prompt = int(torch.randint(options.lengths[0] // 2, options.lengths[1], (), generator=draw))
        work = Work("lora", prompt, options.response, 2)
        (part,) = arms_of(work, model.config.vocab_size, options.device)["shared"].parts
        begun = time.perf_counter()
        loss = scores(model, part).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert torch.isfinite(loss)  # waits for the device
        seconds.append(time.perf_counter() - begun)
    line: Line = {"part": "lengths", "steps": len(seconds), "seconds": sum(seconds)}
    if cuda:
        pinned = torch.cuda.memory.host_memory_stats()["allocated_bytes.peak"]
        reserved, allocated = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
        line |= {"reserved_bytes": reserved, "allocated_bytes": allocated, "pinned_bytes": pinned}
    yield line


def serving(options: argparse.Namespace) -> Iterator[Line]:
    """Four responses over a prompt that is not cached, and over one that is."""
    model = build(options.model, "scoring", options.device, layers=None)
    (tree,) = Work("scoring", options.lengths[1], options.response, 4).trees(model.config.vocab_size)
    block = PrefixCache([model], 2**22).block_bytes
    cache = PrefixCache([model], block * (len(tree.tokens) // 16 + 2))
    line: Line = {"part": "serving", "prompt": len(tree.tokens)}
    found = []
    for name in ("cold", "warm"):
        begun = time.perf_counter()
        with torch.inference_mode():
            packed = cache.pack([tree])
            found.append(scores(model, packed.to(options.device)).tolist())
        cache.keep(packed)
        line[f"{name}_seconds"] = time.perf_counter() - begun
    yield line | {"largest_difference": max(abs(a - b) for a, b in zip(*found, strict=True))}


def generation(options: argparse.Namespace) -> Iterator[Line]:
    """Eight judgments of one prompt, written together."""
    kind, sizes = SHAPES[options.model]
    with torch.device(options.device):
        config = kind(**sizes, max_position_embeddings=2**21)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention.SHARED_PREFIX, dtype=torch.bfloat16
        ).eval()
    model.requires_grad_(False)
    set_precision(model, "bfloat16")
    prompt = list(Work("", options.lengths[1], 1, 1).trees(sizes["vocab_size"])[0].tokens)
    sampler, most = GroupSampler(model, ends=()), 4 if options.dry else 128
    took = []
    for tokens in (1, most):
        begun = time.perf_counter()
        sampler.sample(prompt, range(8), temperature=1.0, top_p=1.0, max_tokens=tokens)
        took.append(time.perf_counter() - begun)
    yield {
        "part": "generation",
        "prompt": len(prompt),
        "first": took[0],
        "tokens_per_second": 8 * most / took[1],
    }


def profile(options: argparse.Namespace) -> Iterator[Line]:
    """The kernels that take most of a step."""
    model = build(options.model, "lora", options.device, layers=2)
    parts = arms_of(
        Work("lora", options.lengths[1], options.response, 4), model.config.vocab_size, options.device
    )
    step(model, parts["shared"].parts, "lora")
    with torch.profiler.profile() as seen:
        step(model, parts["shared"].parts, "lora")
    own = "self_device_time_total" if options.device == "cuda" else "self_cpu_time_total"
    events = sorted(seen.key_averages(), key=lambda event: -getattr(event, own))
    total = sum(getattr(event, own) for event in events)
    yield {"part": "profile"} | {
        event.key[:60]: round(getattr(event, own) / total, 3) for event in events[:12]
    }


def exchanges(options: argparse.Namespace) -> Iterator[Line]:
    """The bandwidth of all-to-all exchanges between all devices of the machine."""
    count = 2 if options.dry else torch.cuda.device_count()
    if count < 2:
        yield {"part": "exchange", "failed": "one GPU"}
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command += [__file__, "--exchange", *(["--dry"] if options.dry else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    yield json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def exchange(options: argparse.Namespace) -> None:
    """One process of `exchanges`."""
    dist.init_process_group("gloo" if options.dry else "nccl")
    rank, count = dist.get_rank(), dist.get_world_size()
    if not options.dry:
        torch.cuda.set_device(rank)
    sent = torch.ones(count * (2**10 if options.dry else 2**26), device=options.device)
    received, repeats = torch.empty_like(sent), 5
    for turn in range(repeats + 1):
        if turn == 1:  # the first one makes connections
            dist.barrier()
            begun = time.perf_counter()
        dist.all_to_all_single(received, sent)
    dist.barrier()
    each = sent.nbytes * (count - 1) / count * repeats / (time.perf_counter() - begun)
    if rank == 0:
        print(json.dumps({"part": "exchange", "devices": count, "bytes_per_second": each}), flush=True)
    dist.destroy_process_group()


def sharded(options: argparse.Namespace) -> Iterator[Line]:
    """One training on one device, sharded over all, and again with a process that is killed; and its checkpoints."""
    count = 2 if options.dry else torch.cuda.device_count()
    if count < 2:
        yield {"part": "sharded", "failed": "one GPU"}
        return
    length, layers, hidden = (64, 2, 64) if options.dry else (16_384, 16, 2048)
    recipe = f"""
        objective = "bradley_terry"
        model.new = {{ layers = {layers}, hidden = {hidden} }}
        data.world = {{ name = "records", tokens_per_step = {count * length}, responses_per_step = {8 * count} }}
        curriculum.lengths = [{length}]
        optimizer = {{ steps = 8, learning_rate = 1e-4 }}
        memory.gradient_checkpointing = true
        checkpoint.save_steps = 4
    """
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "recipe.toml")
        file.write_text(textwrap.dedent(recipe))
        train = ["-m", "longrm", "train", "bradley-terry", "--config", str(file), "--out"]
        runs = {name: Path(folder, name) for name in ("one", "all", "killed")}
        shards = ["--set", "parallel.shard=true"]
        seconds, losses, walls = {}, {}, {}
        for name, run in runs.items():
            command = [sys.executable, *train, str(run)]
            if name != "one":
                command = [*launch, "--max-restarts=1", *train, str(run), *shards]
            begun = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                while name == "killed" and process.poll() is None and not (run / "checkpoints/4").exists():
                    time.sleep(0.1)
                if name == "killed":
                    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                    os.kill(int(children[-1]), signal.SIGKILL)
                if process.wait(timeout=1800):
                    raise RuntimeError(f"the training '{name}' ended with {process.returncode}")
            walls[name] = time.perf_counter() - begun
            steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
            losses[name] = torch.tensor([line["loss"] for line in steps])
            timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
            seconds[name] = statistics.median(line["seconds"] for line in timing)
        yield {
            "part": "sharded",
            "devices": count,
            "one_device": seconds["one"],
            "all_devices": seconds["all"],
        } | {
            f"loss_off_{name}": float((losses[name] / losses["one"] - 1).abs().max())
            for name in ("all", "killed")
        }
        yield {"part": "killed process", "seconds_lost": walls["killed"] - walls["all"]}
    sizes = ["--layers", str(layers), "--hidden", str(hidden), "--json"]
    command = [*launch, str(ROOT / "perf/checkpoints.py"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield {"part": "checkpoint"} | json.loads(line)


PARTS = (kernels, equal_scores, steps, lengths_change, serving, generation, profile, exchanges, sharded)


def table(lines: Sequence[Line]) -> str:
    """The lines as a table in Markdown."""
    around = lines[0]
    rows = [
        f"{around['device']}, {around['date']}, torch {around['versions']['torch']}.",
        "",
        "| part | measured |",
        "|---|---|",
    ]
    for line in lines[1:]:
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in line.items()}
        cells = ", ".join(
            f"{name} {value}"
            for name, value in shown.items()
            if not isinstance(value, dict) and name != "part"
        )
        rows.append(f"| {line['part']} | {cells} |")
    return "\n".join(rows)


def rewrite(lines: Sequence[Line], root: Path) -> None:
    """Writes the table into the page, and the measured share of the peak into the planner's."""
    page = root / PAGE
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(lines)}\n{END}{after}")
    name = next((ours for part, ours in NAMES.items() if part in lines[0]["device"]), None)
    whole = next((line for line in lines if "share_of_peak" in line), None)
    if name and whole:
        file = root / UTILIZATION
        known = file.read_text()
        shares = tomllib.loads(known).get(name, {}) | {whole["kernel"]: whole["share_of_peak"]}
        values = ", ".join(f"{kernel} = {share}" for kernel, share in shares.items())
        others = re.sub(rf"^{name} = .*\n", "", known, flags=re.M)
        measured = f"{whole['kernel']} measured {lines[0]['date']}"
        file.write_text(f"{others}{name} = {{ {values} }}  # {measured}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="on a CPU, with a tiny model")
    parser.add_argument("--model", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--out", type=Path, help="write lines and copies of the rewritten files here")
    parser.add_argument("--exchange", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.device, options.layers = ("cpu" if options.dry else "cuda"), 2
    options.lengths, options.response = ((64, 128, 192), 8) if options.dry else (LENGTHS, 512)
    if options.dry:
        options.model = "tiny"
    elif not torch.cuda.is_available():
        parser.error("torch sees no GPU here: try --dry")
    if options.exchange:
        exchange(options)
        return 0
    root = options.out or ROOT
    if options.out:
        for name in (PAGE, UTILIZATION):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
    elif options.dry:
        parser.error("--dry needs --out FOLDER: its results are not those of a GPU")
    file = root / (
        "day_one.jsonl" if options.out else f"perf/results/day_one_{datetime.now(UTC).date()}.jsonl"
    )
    record = Record(file)
    record.add(circumstances(options.device, options.layers))
    for part in PARTS:
        begun = time.perf_counter()
        try:
            for line in part(options):
                record.add(line)
        except Exception as error:  # the other parts may work
            record.add({"part": part.__name__, "failed": why(error)})
        print(f"{part.__name__}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    rewrite(record.lines, root)
    return int(any("error: " in line.get("failed", "") for line in record.lines))


if __name__ == "__main__":
    sys.exit(main())
