"""Servers in processes of their own."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager

ONE = {"prompt": "w1?", "responses": ["w2", "w3 w4"]}
KEY = "a-key-of-length"

# A server whose model prints each prompt, and takes the number of seconds in the prompt. Constants can be set.
SLOW = """
import sys, time
from longrm.reward_models.protocol import RewardModel
from longrm.serving import app, server, service
from longrm.serving.settings import ServeSettings
from longrm.types import Judgment, Outcome

class Slow(RewardModel):
    name = "slow"

    def judge(self, queries):
        for query in queries:
            print("judged", query.prompt[0]["content"], flush=True)
            end = time.monotonic() + float(query.prompt[0]["content"])
            while time.monotonic() < end:
                time.sleep(0.005)
        return [Judgment(Outcome.ANSWERED, (1.0,) * len(query.responses)) for query in queries]

for setting in sys.argv[1:]:
    name, value = setting.split("=")
    for module in (app, service):
        if hasattr(module, name):
            setattr(module, name, float(value))
server.load = lambda *names, **settings: Slow()
server.serve(ServeSettings(model="m", port=0), lambda address: print("Serving at", address, flush=True))
"""


def start(command, files=4096, **environment):
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )


@contextmanager
def running(command, **options):
    """The process and the address of a server, which is killed at the end."""
    server = start(command, **options)
    try:
        line = server.stdout.readline()
        assert line.startswith("Serving "), server.stderr.read()
        yield server, line.split(" at ")[1].split()[0]
    finally:
        server.kill()
        server.communicate()


def serving(*arguments, model="baseline:longest", port=0, **options):
    return running(["-m", "longrm", "serve", "--port", str(port), "--model", model, *arguments], **options)


def slow_server(*constants):
    return running(["-c", SLOW, *constants])
