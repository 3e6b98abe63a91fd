"""Documents of a generated world with known answers, and scripted models, which several test files share."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from longrm.clients import Completion
from longrm.synthesis.documents import Candidate, Document
from longrm.types import Outcome, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

LEVAL = Path(__file__).parents[3] / "shared" / "data" / "leval"


def world_documents(count=6, length=600, seed=5):
    """Documents with a right candidate of the model m and a wrong one of n."""
    for comparison in generate(WorldPlan("records", length, seed=seed), count, words_tokenizer()):
        text = message_text(comparison.prompt[0])
        context, question = comparison.context[0], comparison.question
        best, worst = (message_text(comparison.responses[at][0]) for at in comparison.best_first())
        yield Document(
            comparison.id,
            text[context.start : context.end],
            text[question.start : question.end],
            best,
            metadata={"evidence": [[span.start, span.end] for span in comparison.evidence]},
            candidates=(Candidate(comparison.id, "m", best), Candidate(comparison.id, "n", worst, "cut")),
        )


def all_outcomes(make_rows, inputs):
    """Makes the rows of all inputs together."""

    async def gather():
        return await asyncio.gather(*map(make_rows, inputs))

    return asyncio.run(gather())


def completion_of(text):
    return text if isinstance(text, Completion) else Completion(Outcome.ANSWERED, text)


class Endpoint(ThreadingHTTPServer):
    """Counts what it answers, and kills its victim after nine answers."""

    def __init__(self, reply):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.answered, self.victim, self.lock = reply, Counter(), None, threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"openai:http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.loads(body)["messages"][0]["content"]
        with self.server.lock:
            if self.server.victim is not None and self.server.answered.total() >= 9:
                os.kill(self.server.victim.pid, signal.SIGKILL)
                return
            self.server.answered[content] += 1
        choice = {"index": 0, "message": {"role": "assistant", "content": self.server.reply(content)}}
        reply = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice | {"finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def killed_and_resumed(module, settings, reply, folder):
    """Kills a run after nine answers and continues it: the same bytes, and no request is sent twice."""
    script = (
        f"import sys; from pathlib import Path; from {module.__name__} import RECIPE, synthesize; "
        "synthesize(RECIPE.resolve(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    with Endpoint(reply) as server:
        writer = {"model": f"{server.url}#m", "remote": {"concurrency": 1}}
        recipe = module.RECIPE.resolve(None, settings | {"writer": writer, "batch": 2})
        first = module.synthesize(recipe, folder / "whole")
        asked = Counter(server.answered)
        assert asked.total() == first["spending"]["m"]["answers"] > 20
        server.answered.clear()
        command = [sys.executable, "-c", script, folder / "whole" / "config.toml", folder / "killed"]
        server.victim = subprocess.Popen(command)
        assert server.victim.wait(60) == -signal.SIGKILL
        server.victim = None
        held = (folder / "killed" / "ledger.jsonl").read_bytes().count(b"\n")
        assert held < first["counts"]["inputs"]
        second = module.synthesize(recipe, folder / "killed")
        server.shutdown()
    assert server.answered == asked
    for name in ("ledger.jsonl", "rows/rows-00000.jsonl"):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert second["counts"] == first["counts"]
    return first
