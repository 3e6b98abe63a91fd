"""`longrm serve`."""

from typing import Any

import click

from longrm.cli.help import Command
from longrm.cli.options import MODEL_HELP, MODEL_OPTIONS, SET, resolve, setting
from longrm.cli.terminal import echo, print_next
from longrm.runs.freed_memory import keep_freed_memory

_KEY_HELP = "Key that requests must send; LONGRM_API_KEY keeps it out of process lists."
_ALLOWED_HELP = "Host name that requests without a key may address; repeatable."
_COMMON = {"Model": "--model --device --weights", "Server": "--host --port --api-key --without-key --set"}


@click.command("serve", cls=Command, common=_COMMON)
@click.option("--model", metavar="MODEL", required=True, help=MODEL_HELP)
@setting("--host", "host", "Address to listen on (default 127.0.0.1: this machine only).", metavar="ADDRESS")
@setting("--port", "port", "Port to listen on (default 8000; 0 chooses a free one).", int, "N")
@click.option("--api-key", metavar="KEY", envvar="LONGRM_API_KEY", help=_KEY_HELP)
@setting("--without-key", "without_key", "Accept requests from other machines without a key.", bool)
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help=_ALLOWED_HELP)
@MODEL_OPTIONS
@SET
def command(assignments: tuple[str, ...], **flags: Any) -> None:
    """Serve a reward model over HTTP, in the formats of trainers.

    \b
    longrm serve --model runs/demo/training/long/model
    longrm serve --model likelihood:MODEL --port 8001

    POST /v1/scores scores the responses to a prompt. There are routes for clients of vLLM, verl, SGLang, OpenRLHF,
    slime, LLaMA-Factory and NeMo Gym. Shared prefixes of prompts are encoded once. A line is printed when the server
    is ready.
    """
    from longrm.serving.settings import ServeSettings

    settings = resolve(ServeSettings, None, assignments, flags)
    from longrm.serving.server import serve

    key = "with a key" if settings.api_key else "without a key"

    def ready(address: str) -> None:
        echo(f"Serving {settings.model} at {address} ({key})")
        print_next("score", "--model", f"longrm:{address}", "--data", "pairs.jsonl", "--out", "scored.jsonl")

    keep_freed_memory()
    serve(settings, ready)
