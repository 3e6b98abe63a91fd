"""`longrm serve` compared with vLLM's server or a plain one: CPU seconds, latency and memory of the same requests.

Both serve the same weights on the same cores and answer the same bodies in turn, so that their requests never overlap:
`/classify` against vLLM, which has no request of a prompt with its responses, so that a group is a list of rendered
texts; OpenRLHF's `/get_reward` against the plain server, which has no cache. Every repetition has new prompts.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from measuring import circumstances, process_tree, resident, rounded

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.initial_model import initial_model
from longrm.training.settings import TrainingSettings
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

OURS = "longrm"
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
"""The largest difference of two scores, as a share of max(1, their size); rounding to bf16 differs between servers."""

CLIENTS = 8
GROUP = 8
"""A trainer has so many requests open, and scores so many completions of a prompt, one a request."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rendered prompt, and the rendered conversations of its responses."""

    prompt: str
    texts: list[str]

    def only(self, *places: int) -> "Sample":
        """The prompt with some of the responses."""
        return Sample(self.prompt, [self.texts[at] for at in places])


class Samples:
    """Draws samples that differ from their first words on."""

    def __init__(self, folder: Path, world: str) -> None:
        self._tokenizer = Tokenizer.load(folder)
        self._world, self._drawn = world, 0

    def draw(self, prompt: int, response: int, candidates: int) -> Sample:
        """A context of this many tokens, and responses of this many of its words."""
        self._drawn += 1
        row = next(iter(generate(WorldPlan(self._world, prompt, seed=self._drawn), 1, self._tokenizer)))
        text = "\n".join(message_text(message) for message in row.prompt)
        words, dice = text.split(), random.Random(self._drawn)
        # Other contexts of a world may begin with the same words.
        question = {"role": "user", "content": f"{' '.join(dice.choices(words, k=4))} {text}"}
        answers = [" ".join(dice.choices(words, k=response)) for _ in range(candidates)]
        render = self._tokenizer.render
        return Sample(
            render([question], add_generation_prompt=True),
            [render([question, {"role": "assistant", "content": answer}]) for answer in answers],
        )


class Server:
    """A running server, and the format of its requests."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, against: str) -> None:
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits)
        self.pid, self._against = process.pid, against

    async def post(self, sample: Sample) -> list[float]:
        """The scores of one request with all responses of a sample."""
        if self._against == "vllm":
            body = {"input": sample.texts, "use_activation": False, "add_special_tokens": False}
            answer = (await self._client.post("/classify", json=body)).raise_for_status().json()
            return [one["probs"][0] for one in answer["data"]]
        count = len(sample.texts)
        body = {"query": sample.texts, "prompts": [sample.prompt] * count, "labels": [None] * count}
        rewards: list[float] = (
            (await self._client.post("/get_reward", json=body)).raise_for_status().json()["rewards"]
        )
        return rewards

    def cpu_seconds(self) -> float:
        """Of all processes of the server since their start."""
        # What clock_getcpuclockid(3) of Linux returns for another process.
        return sum(time.clock_gettime(~one.pid << 3 | 2) for one in process_tree(self.pid))

    def memory(self) -> int:
        """Bytes of all processes of the server; pages that several processes map are shared out among them."""
        return sum(int(one.memory_full_info().pss) for one in process_tree(self.pid))


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, cores: Sequence[int], more: Mapping[str, str] = {}
) -> Iterator[subprocess.Popen[bytes]]:
    """A server from its first healthy answer to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), **more}
    server = subprocess.Popen(
        command,
        env={name: value for name, value in environment.items() if value},
        stdout=sys.stderr,  # what the script itself prints is its result alone
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        for _ in range(3000):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            if server.poll() is not None:
                raise SystemExit(f"error: {' '.join(command)} ended with {server.returncode}")
            time.sleep(0.1)
        else:
            raise SystemExit(f"error: {' '.join(command)} is not healthy after five minutes")
        yield server
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


Ask = Callable[[Server], Awaitable[list[float]]]


class Comparison:
    """Sends the same requests to both servers in turn, and checks that their scores agree."""

    def __init__(self, servers: dict[str, Server], tolerance: float) -> None:
        self._servers, self._tolerance = servers, tolerance
        self._taken: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self._latency: dict[str, dict[str, list[float]]] = {}
        self._difference = 0.0

    async def measure(self, row: str, ask: Ask) -> None:
        """Measures each server; every repetition of a row begins with the other one."""
        taken = self._taken.setdefault(row, {name: [] for name in self._servers})
        order = list(self._servers.items())
        if len(taken[OURS]) % 2:
            order.reverse()
        found = {}
        for name, server in order:
            start, before = time.perf_counter(), server.cpu_seconds()
            found[name] = await ask(server)
            taken[name].append((server.cpu_seconds() - before, time.perf_counter() - start))
        for a, b in zip(*found.values(), strict=True):
            self._difference = max(self._difference, abs(a - b))
            if abs(a - b) > self._tolerance * max(1.0, abs(a)):
                raise SystemExit(f"error: {row}: the servers' scores are {abs(a - b):.2g} apart")

    async def load(self, row: str, requests: Sequence[Sample], clients: int) -> None:
        """Measures so many clients, each with one request after the other."""

        async def ask(server: Server) -> list[float]:
            scores: dict[int, float] = {}
            waiting = iter(enumerate(requests))
            latency = self._latency.setdefault(row, {name: [] for name in self._servers})
            name = next(name for name, one in self._servers.items() if one is server)

            async def client() -> None:
                for number, sample in waiting:
                    start = time.perf_counter()
                    (scores[number],) = await server.post(sample)
                    latency[name].append(1000 * (time.perf_counter() - start))

            await asyncio.gather(*(client() for _ in range(clients)))
            return [scores[number] for number in range(len(requests))]

        await self.measure(row, ask)

    def results(self) -> dict[str, Any]:
        """Medians, and the other server's seconds divided by longrm's: median, least and most of the repetitions."""
        rows: dict[str, dict[str, Any]] = {}
        for row, taken in self._taken.items():
            (other,) = taken.keys() - {OURS}
            rows[row] = {}
            for place, what in enumerate(("cpu_seconds", "seconds")):
                each = {name: [one[place] for one in taken[name]] for name in (OURS, other)}
                ratios = [theirs / ours for ours, theirs in zip(each[OURS], each[other], strict=True)]
                spread = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
                rows[row][what] = rounded({name: statistics.median(values) for name, values in each.items()})
                rows[row][f"{what}_ratio"] = rounded(spread)
            rows[row]["latency_ms"] = {
                name: rounded({f"p{share}": float(np.percentile(values, share)) for share in (50, 99)})
                for name, values in self._latency.get(row, {}).items()
            }
        return {"rows": rows, "largest_score_difference": self._difference}


async def compare(
    options: argparse.Namespace, samples: Samples, servers: dict[str, Server]
) -> dict[str, Any]:
    """Measures all kinds of requests."""
    # First, so that a length too short for the world fails before the measurements. It also warms up.
    warm = Comparison(servers, TOLERANCE[options.dtype])
    for size in (options.short, options.trainer, options.prompt):
        sample = samples.draw(size, 16, 2)
        await warm.measure("warm-up", lambda server, sample=sample: server.post(sample))
    comparison = Comparison(servers, TOLERANCE[options.dtype])
    for number in range(options.repeats):
        for count in options.candidates:
            drawn = samples.draw(options.prompt, options.response, 2 * count)
            for at, row in enumerate(("cold", "warm")):
                part = drawn.only(*range(at * count, (at + 1) * count))
                await comparison.measure(
                    f"{count} responses, {row}", lambda server, part=part: server.post(part)
                )
        if number % 2:  # the rest takes half of the time: every other repetition is enough
            continue
        groups = [samples.draw(options.trainer, options.response, GROUP) for _ in range(options.prompts)]
        singles = [group.only(at) for group in groups for at in range(GROUP)]
        await comparison.load(f"{len(singles)} single requests, {GROUP} a prompt", singles, CLIENTS)
        short = [samples.draw(options.short, 16, 1) for _ in range(options.singles)]
        await comparison.load(f"{len(short)} short requests", short, len(short))
    memory = {name: round(server.memory() / 2**20) for name, server in servers.items()}
    return {**comparison.results(), "memory_mib": memory}


async def memory(options: argparse.Namespace, samples: Samples, server: Server) -> dict[str, Any]:
    """The resident set of `longrm serve` over many requests of 8 clients, one response each, four to a prompt."""
    megabytes, done = {}, 0
    marks = [round(options.requests * share) for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)]

    async def client() -> None:
        nonlocal done
        while done < options.requests:
            sample = samples.draw(options.short, 16, 4)
            for at in range(4):
                await server.post(sample.only(at))
                done += 1
                if marks and done >= marks[0]:
                    held = round(resident("VmRSS", server.pid) / 2**20, 1)
                    megabytes[str(marks.pop(0))] = held
                    print(f"{done} requests: {held} MiB", file=sys.stderr)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(8)))
    first, *_, last = megabytes.values()
    return {
        "requests": done,
        "resident_mib": megabytes,
        "growth_after_a_tenth": round(last / first - 1, 4),
        "requests_a_second": round(done / (time.perf_counter() - start), 1),
    }


def model_folder(options: argparse.Namespace, scratch: Path) -> Path:
    """The served model."""
    if options.model is None:
        shape = ModelShape(layers=2, hidden=256, heads=8, kv_heads=8, head_dim=32, init_std=0.1)
        save(new_scorer(shape, words_tokenizer(), seed=0), scratch / "tiny")
        return scratch / "tiny"
    if "ForCausalLM" not in (options.model / "config.json").read_text():
        return options.model
    tree = {"objective": "bradley_terry", "model": {"path": str(options.model)}, "data": {"path": "none"}}
    save(initial_model(TrainingSettings.model_validate(tree), "scorer"), scratch / "scalar")
    return scratch / "scalar"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the servers and sends requests."""
    # The tokenizer of the tiny model knows the words of some worlds only, in which short contexts have fewer tokens.
    options.world = options.world or ("records" if options.model is None else "many-facts")
    options.short = options.short or (100 if options.model is None else 200)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(options, Path(scratch))
        against = options.against
        ports = {OURS: free_port(), against: free_port()}
        ours = [sys.executable, "-m", "longrm", "serve", "--model", str(folder), "--port", str(ports[OURS])]
        ours += ["--set", f"model_args.dtype={options.dtype}"]
        if options.cache:
            ours += ["--set", f"limits.prefix_cache_bytes={options.cache}"]
        cores = sorted(os.sched_getaffinity(0))[-options.threads :]
        more: dict[str, str] = {}
        if against == "vllm":
            theirs = [str(options.vllm / "bin" / "vllm"), "serve", str(folder), "--port", str(ports[against])]
            theirs += ["--runner", "pooling", "--convert", "classify", "--dtype", options.dtype]
            theirs += ["--host", "127.0.0.1", *options.vllm_args]
            more = {
                "PATH": f"{options.vllm / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": "",
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB, also for the texts that it reads now
                "VLLM_LOGGING_LEVEL": "WARNING",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HOME": f"{scratch}/hf",
                "XDG_CACHE_HOME": f"{scratch}/cache",
            }
        else:
            script = str(Path(__file__).parent / "plain_server.py")
            theirs = [sys.executable, script, "--model", str(folder), "--port", str(ports[against])]
        with contextlib.ExitStack() as stack:
            servers = {}
            for name, command in ((OURS, ours), (against, theirs)):
                if name == OURS or not options.requests:
                    environment = {} if name == OURS else more
                    process = stack.enter_context(running(command, ports[name], cores, environment))
                    servers[name] = Server(process, ports[name], against)
            samples = Samples(folder, options.world)
            found = asyncio.run(
                memory(options, samples, servers[OURS])
                if options.requests
                else compare(options, samples, servers)
            )
    given = {
        key: getattr(options, key) for key in ("against", "dtype", "prompt", "response", "short", "trainer")
    }
    return {**found, "model": "tiny" if options.model is None else "given", **given, **circumstances(options)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--against", choices=["vllm", "plain"], default="plain", help="the other server (%(default)s)"
    )
    parser.add_argument("--vllm", type=Path, help="virtual environment with vLLM")
    parser.add_argument(
        "--vllm-args", nargs="*", default=["--enforce-eager"], help="more options of vLLM (%(default)s)"
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="scalar reward model, or a language model that gets a random head (default: a random one with two "
        "layers; against vLLM runs/real-model, from `make real-model`)",
    )
    parser.add_argument(
        "--dtype", choices=list(TOLERANCE), default="float32", help="type of the weights (%(default)s)"
    )
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the long context (%(default)s)")
    parser.add_argument("--response", type=int, default=128, help="words of each response (%(default)s)")
    parser.add_argument(
        "--candidates",
        type=int,
        nargs="+",
        default=[4, 8],
        help="number of responses to the long context (%(default)s)",
    )
    parser.add_argument(
        "--trainer", type=int, default=1024, help="tokens of the contexts of single requests (%(default)s)"
    )
    parser.add_argument(
        "--prompts", type=int, default=4, help="prompts of single requests, 8 responses each (%(default)s)"
    )
    parser.add_argument(
        "--short", type=int, help="tokens of the context of short requests (100; 200 with a given model)"
    )
    parser.add_argument("--world", help="where prompts come from (records; many-facts with a given model)")
    parser.add_argument("--singles", type=int, default=64, help="short requests at once (%(default)s)")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="repetitions, every other one with single requests (%(default)s)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="cores and threads of each server (%(default)s)"
    )
    parser.add_argument("--requests", type=int, default=0, help="only measure memory over this many requests")
    parser.add_argument("--cache", type=int, default=0, help="bytes of the prefix cache")
    parser.add_argument("--json", action="store_true", help="print the JSON on one line")
    options = parser.parse_args()
    if options.against == "vllm":
        if options.vllm is None or not (options.vllm / "bin/vllm").exists():
            parser.error("--against vllm needs --vllm VENV, where VENV/bin/vllm is")
        options.model = options.model or Path("runs/real-model")
    if options.model and not (options.model / "config.json").is_file():
        parser.error(f"{options.model} has no config.json; `make real-model` downloads runs/real-model")
    if min(options.repeats, options.threads) < 1:
        parser.error("--repeats and --threads are at least 1")
    print(json.dumps(measure(options), indent=None if options.json else 2))


if __name__ == "__main__":
    main()
