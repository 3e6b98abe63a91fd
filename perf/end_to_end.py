"""Every way of judging, end to end: a generated set in Long-RewardBench's schema, and three tiny judges of it.

The judges are a discriminative model, a generative model in this process, and the same generative model behind
`transformers serve` on this machine. All three run through `longrm evaluate`, as a user would run them. The models
are far too small to judge; the generative one is trained to write verdicts, right or wrong. The script shows that
everything works at every length, and that both ways of running the generative model agree.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch
from measuring import circumstances, train_bpe
from transformers import LlamaConfig, LlamaForCausalLM

from longrm.benchmarks import long_rewardbench
from longrm.data.tokenizing import Tokenizer
from longrm.judging import JudgingFormat, load_format
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.judgments import Judgments
from longrm.types import Comparison, presented_order, query_of, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

TASKS = ("Cite", "Code", "ICL", "LongQA", "Math", "Safety", "Summ")
RANKED = ("LongQA", "Summ")
"""The tasks that also have best-of-N items here."""

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIALS = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the set, the models and the runs")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536, 131072], help="in tokens"
    )
    parser.add_argument("--per-cell", type=int, default=1, help="pairs of every task at every length")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps to learn the format")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of text")
    options = parser.parse_args()
    torch.manual_seed(0)
    formats = (load_format("pairwise"), load_format("listwise"))
    tokenizer = make_tokenizer(formats)
    made = list(comparisons(options.lengths, options.per_cell, tokenizer))
    bench = options.out / "set"
    long_rewardbench.write(bench, made)
    longest = 2 * max(options.lengths)
    discriminative, generative = options.out / "discriminative", options.out / "generative"
    shape = ModelShape(1, hidden=32, heads=1, kv_heads=1, head_dim=16, intermediate=64, max_positions=longest)
    save(new_scorer(shape, tokenizer, seed=0), discriminative)
    save_generative(teach(tokenizer, formats, options.steps, longest), tokenizer, generative)
    seconds = {}
    seconds["discriminative"] = evaluate(str(discriminative), bench, options.out / "runs/discriminative")
    seconds["generative"] = evaluate(str(generative), bench, options.out / "runs/generative")
    with served(generative, options.out) as url:
        seconds["served"] = evaluate(f"openai:{url}#{generative}", bench, options.out / "runs/served")
    result = {"comparisons": len(made), "lengths": options.lengths, "seconds": seconds}
    result |= compare(options.out / "runs/generative", options.out / "runs/served")
    show(result | circumstances(options), options.json)


def comparisons(lengths: list[int], per_cell: int, tokenizer: Tokenizer) -> Iterator[Comparison]:
    """Pairs of all tasks at all lengths, and best-of-N items in turn of 2, 3 and 4 candidates."""
    for place, task in enumerate(TASKS):
        world = ("records", "chain")[place % 2]
        for step, length in enumerate(lengths):
            pairs = WorldPlan(world, length, seed=100 * place + step)
            for number, one in enumerate(generate(pairs, per_cell, tokenizer)):
                subtype = "same" if number % 2 else "cross"
                yield labelled(one, task, subtype, length)
            if task in RANKED:
                n = 2 + (place + step) % 3
                (ranked,) = generate(replace(pairs, responses=n, seed=pairs.seed + 50), 1, tokenizer)
                yield labelled(ranked, task, str(n), length)


def labelled(one: Comparison, task: str, subtype: str, length: int) -> Comparison:
    return replace(one, metadata={"task": task, "subtype": subtype, "length": length, "source": "generated"})


def make_tokenizer(formats: tuple[JudgingFormat, ...]) -> Tokenizer:
    """A byte-level BPE tokenizer trained on the texts of the set and the judging prompts."""
    rows = [
        *generate(WorldPlan("records", 512, responses=4), 30, words_tokenizer()),
        *generate(WorldPlan("chain", 512), 30, words_tokenizer()),
    ]
    texts = [text_of(prompt) for row in rows for prompt in prompts(row, formats)]
    return train_bpe(texts, 2048, SPECIALS, TEMPLATE)


def prompts(row: Comparison, formats: tuple[JudgingFormat, ...]) -> list[Any]:
    return form(row, formats).render(query_of(row, presented_order(row, 0)))


def form(row: Comparison, formats: tuple[JudgingFormat, ...]) -> JudgingFormat:
    return formats[len(row.responses) > 2]


def teach(
    tokenizer: Tokenizer, formats: tuple[JudgingFormat, ...], steps: int, longest: int
) -> LlamaForCausalLM:
    """Trains a tiny model to end with a verdict in the required form; short contexts suffice."""
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = [
        row
        for n in (2, 3, 4)
        for row in generate(WorldPlan("records", 256, responses=n, seed=7), steps // 2, tokenizer)
    ]
    for step in range(steps):
        row = rows[(step * 7919) % len(rows)]
        order = presented_order(row, step)
        query = query_of(row, order)
        (messages,) = form(row, formats).render(query)
        prompt = tokenizer.generation_ids(messages)
        target = [*tokenizer.encode(verdict(row, order)), tokenizer.eos_id]
        ids = torch.tensor([[*prompt, *target]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"teaching the format: step {step}, loss {loss.item():.3f}", file=sys.stderr)
    return model.eval()


def verdict(row: Comparison, order: tuple[int, ...]) -> str:
    assert row.ranks is not None
    letters = "ABCD"
    ranked = sorted(range(len(order)), key=lambda place: row.ranks[order[place]])
    if len(order) == 2:
        return f"[[{letters[ranked[0]]}]]"
    return f"[[{' > '.join(letters[place] for place in ranked)}]]"


def save_generative(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save(folder)


def evaluate(model: str, bench: Path, out: Path) -> float:
    began = time.perf_counter()
    command = [
        sys.executable, "-m", "longrm", "evaluate", "--model", model, "--bench", f"long-rewardbench:{bench}",
        "--out", str(out), "--set", "judge.max_tokens=32",
        "--set", "remote.concurrency=1", "--set", "remote.timeout=3600",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return round(time.perf_counter() - began, 1)


@contextmanager
def served(model: Path, out: Path) -> Iterator[str]:
    """`transformers serve` on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = out / "home"
    (home / "hub").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", str(model), *f"--device cpu --host 127.0.0.1 --port {port}".split()]
    with (out / "serve.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(30)


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit("transformers serve ended; see serve.log")
        try:
            if httpx.get(url, timeout=1).status_code < 500:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("transformers serve does not answer; see serve.log")


def compare(one: Path, other: Path) -> dict[str, Any]:
    """Counts the trials with equal results: the verdict, and every character of the explanation."""
    left, right = ({record.id: record.trials for record in Judgments(run)} for run in (one, other))
    pairs = [pair for name in left for pair in zip(left[name], right[name], strict=True)]
    same = [(a.outcome, a.scores, a.ranking) == (b.outcome, b.scores, b.ranking) for a, b in pairs]
    return {
        "askings": len(pairs),
        "answered": sum(a.outcome == "answered" for a, _ in pairs),
        "equal_verdicts": sum(same),
        "equal_texts": sum(a.explanation == b.explanation for a, b in pairs),
    }


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    print("\n".join(f"{key}: {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
