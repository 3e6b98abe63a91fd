"""`longrm serve` compared with a plain server, which reads every sample in full: request time, latency, and memory.

Both use OpenRLHF's format and the same weights, and answer in turns, so that their requests never overlap. Every
repetition has new prompts, so that no cache has them before the measured request.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from measuring import circumstances, medians, resident, rounded

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

PLAIN, OURS = "plain", "longrm"
TOGETHER, APART = "speedup_one_request", "speedup_separate_requests"
LEAST = "speedup_one_request_least"
"""Of one request over whichever way of asking the plain server is the faster."""
TOLERANCE = 1e-4
CLIENTS = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class Sample:
    """A rendered prompt, and the rendered conversations of its responses."""

    prompt: str
    texts: list[str]

    def body(self, *, only: int | None = None) -> dict[str, Any]:
        """What OpenRLHF posts for all responses, or for one."""
        texts = self.texts if only is None else [self.texts[only]]
        return {"query": texts, "prompts": [self.prompt] * len(texts), "labels": [None] * len(texts)}


class Samples:
    """Draws samples that differ from their first token on."""

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


@contextlib.contextmanager
def running(command: Sequence[str], port: int, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server from its first healthy answer to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    # What the script itself prints is its result alone.
    server = subprocess.Popen([sys.executable, *command], env=environment, stdout=sys.stderr)
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            if server.poll() is not None:
                raise SystemExit(f"error: {' '.join(command)} ended with {server.returncode}")
            time.sleep(0.1)
        else:
            raise SystemExit(f"error: {' '.join(command)} is not healthy after a minute")
        yield server
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


Ask = Callable[[Sample], Awaitable[dict[str, float]]]


class Rewards:
    """Posts to both servers and checks that they agree."""

    def __init__(self, ports: dict[str, int]) -> None:
        limits = httpx.Limits(max_connections=2 * max(CLIENTS))
        self._clients = {
            name: httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits)
            for name, port in ports.items()
        }
        self.difference = 0.0

    async def post(self, name: str, body: dict[str, Any]) -> list[float]:
        """The scores of one request."""
        answer = await self._clients[name].post("/get_reward", json=body)
        rewards: list[float] = answer.raise_for_status().json()["rewards"]
        return rewards

    async def seconds(self, ask: Callable[[str], Awaitable[list[float]]]) -> dict[str, float]:
        """How long each server takes to be asked, one after the other; their answers must agree."""
        seconds, found = {}, {}
        for name in self._clients:
            start = time.perf_counter()
            found[name] = await ask(name)
            seconds[name] = time.perf_counter() - start
        apart = max(abs(a - b) for a, b in zip(*found.values(), strict=True))
        self.difference = max(self.difference, apart)
        if apart > TOLERANCE:
            raise SystemExit(f"error: the servers' scores are {apart:.2g} apart")
        return seconds

    async def one_request(self, sample: Sample) -> dict[str, float]:
        """All responses at once, as `seconds` has it."""
        return await self.seconds(lambda name: self.post(name, sample.body()))

    async def separate_requests(self, sample: Sample) -> dict[str, float]:
        """One response a request, all at the same time, as `seconds` has it."""

        async def ask(name: str) -> list[float]:
            bodies = [sample.body(only=at) for at in range(len(sample.texts))]
            return [found for (found,) in await asyncio.gather(*(self.post(name, body) for body in bodies))]

        return await self.seconds(ask)

    async def latency(self, name: str, samples: Sequence[Sample], clients: int) -> dict[str, float]:
        """Milliseconds of single requests while so many clients ask, each one after the other."""
        waiting, found = list(samples), []

        async def client() -> None:
            while waiting:
                sample = waiting.pop()
                start = time.perf_counter()
                await self.post(name, sample.body())
                found.append(1000 * (time.perf_counter() - start))

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        whole = time.perf_counter() - start
        shares = {f"p{share}": float(np.percentile(found, share)) for share in (50, 95, 99)}
        return rounded({**shares, "requests_a_second": len(samples) / whole})


async def compare(options: argparse.Namespace, samples: Samples, rewards: Rewards) -> dict[str, Any]:
    """Times of both servers over samples that each sees once."""

    async def typical(ask: Ask, times: int, *drawn: int) -> dict[str, float]:
        each = [await ask(samples.draw(*drawn)) for _ in range(times)]
        return medians({name: [one[name] for one in each] for name in (PLAIN, OURS)})

    # First, so that a length too short for the world fails before the measurements.
    await rewards.one_request(samples.draw(options.short, 16, 1))
    await rewards.one_request(samples.draw(options.prompt, options.response, 2))  # warms up
    seconds: dict[str, dict[str, float]] = {}
    speedup: dict[str, dict[str, float]] = {way: {} for way in (TOGETHER, APART, LEAST)}
    for candidates in options.candidates:
        drawn = options.repeats, options.prompt, options.response, candidates
        together = await typical(rewards.one_request, *drawn)
        apart = await typical(rewards.separate_requests, *drawn)
        # A padded batch may take longer than its samples one by one: then these are the better baseline.
        plain = min(together[PLAIN], apart[PLAIN])
        for way, slow, fast in (
            (TOGETHER, together[PLAIN], together[OURS]),
            (APART, apart[PLAIN], apart[OURS]),
            (LEAST, plain, together[OURS]),
        ):
            speedup[way][str(candidates)] = round(slow / fast, 3)
        seconds |= {f"one request, {candidates}": together, f"separate requests, {candidates}": apart}
    short = seconds["single short request"] = await typical(
        rewards.one_request, options.singles, options.short, 16, 1
    )
    latency: dict[str, dict[str, dict[str, float]]] = {name: {} for name in (PLAIN, OURS)}
    for clients in CLIENTS:
        asked = [samples.draw(options.short, 16, 1) for _ in range(max(options.singles, 4 * clients))]
        for name, found in latency.items():
            found[str(clients)] = await rewards.latency(name, asked, clients)
    return {
        **speedup,
        "seconds": {what: rounded(each) for what, each in seconds.items()},
        "short_single_request": round(short[OURS] / short[PLAIN], 3),
        "latency_ms": latency,
        "largest_score_difference": rewards.difference,
    }


async def memory(options: argparse.Namespace, samples: Samples, rewards: Rewards, pid: int) -> dict[str, Any]:
    """The resident set of `longrm serve` over many requests of 8 clients, one response each, four to a prompt."""
    megabytes, done = {}, 0
    marks = [round(options.requests * share) for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)]

    async def client() -> None:
        nonlocal done
        while done < options.requests:
            sample = samples.draw(options.short, 16, 4)
            for at in range(4):
                await rewards.post(OURS, sample.body(only=at))
                done += 1
                if marks and done >= marks[0]:
                    held = round(resident("VmRSS", pid) / 2**20, 1)
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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs both servers and sends requests."""
    if options.short is None:
        # A context in English has more tokens than one in the words of the tiny model.
        options.short = 100 if options.model is None else 200
    with tempfile.TemporaryDirectory() as scratch:
        folder, world = options.model, "many-facts"
        if folder is None:
            folder, world = Path(scratch) / "tiny", "records"
            shape = ModelShape(layers=2, hidden=256, heads=8, kv_heads=8, head_dim=32, init_std=0.1)
            save(new_scorer(shape, words_tokenizer(), seed=0), folder)
        ports = {PLAIN: free_port(), OURS: free_port()}
        ours = ["-m", "longrm", "serve", "--model", str(folder), "--port", str(ports[OURS])]
        plain = [
            str(Path(__file__).parent / "plain_server.py"),
            "--model",
            str(folder),
            "--port",
            str(ports[PLAIN]),
        ]
        if options.cache:
            ours += ["--set", f"limits.prefix_cache_bytes={options.cache}"]
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(running(ours, ports[OURS], options.threads))
            if not options.requests:
                stack.enter_context(running(plain, ports[PLAIN], options.threads))
            samples = Samples(folder, world)
            rewards = Rewards(ports)
            found = asyncio.run(
                memory(options, samples, rewards, server.pid)
                if options.requests
                else compare(options, samples, rewards)
            )
    told = {key: getattr(options, key) for key in ("prompt", "response", "short")}
    return {**found, "model": "tiny" if options.model is None else "given", **told, **circumstances(options)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="scalar reward model (default: a random one with two layers)"
    )
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the long context (%(default)s)")
    parser.add_argument(
        "--response", type=int, default=128, help="words of each response to the long context (%(default)s)"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        nargs="+",
        default=[4, 8],
        help="number of responses to the long context (%(default)s)",
    )
    parser.add_argument(
        "--short", type=int, help="tokens of the context of single requests (100, or 200 with --model)"
    )
    parser.add_argument(
        "--singles", type=int, default=100, help="single requests whose latency is measured (%(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="repetitions of every long request (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of each server (%(default)s)"
    )
    parser.add_argument("--requests", type=int, default=0, help="only measure memory over this many requests")
    parser.add_argument("--cache", type=int, default=0, help="bytes of the prefix cache")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of text")
    options = parser.parse_args()
    print(json.dumps(measure(options), indent=None if options.json else 2))


if __name__ == "__main__":
    main()
