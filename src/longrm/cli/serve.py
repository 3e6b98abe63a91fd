"""`longrm serve`."""

from typing import Any

import click

from longrm.cli.options import MODEL_HELP, MODEL_OPTIONS, SET, resolve, setting
from longrm.cli.terminal import echo


@click.command("serve", short_help="Score over HTTP, in the formats of common trainers.")
@click.option(
    "--model",
    required=True,
    help=MODEL_HELP,
)
@setting("--host", "host", "Address to listen on (default: 127.0.0.1, this machine only).")
@setting("--port", "port", "Port to listen on (default: 8000; 0 chooses a free one).", int)
@click.option(
    "--api-key",
    envvar="LONGRM_API_KEY",
    help="Key that requests must send. Set LONGRM_API_KEY instead to keep it out of process lists.",
)
@setting("--without-key", "without_key", "Accept requests from other machines without a key.", bool)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="Host name that requests without a key may address; repeatable.",
)
@MODEL_OPTIONS
@SET
def command(assignments: tuple[str, ...], **flags: Any) -> None:
    """Serves a reward model over HTTP until it is stopped; prints one line when it is ready.

    POST /v1/scores scores the responses to a prompt. There are routes for clients of vLLM, verl, SGLang, OpenRLHF,
    slime, LLaMA-Factory and NeMo Gym. Shared prefixes of prompts are encoded once.

    \b
    longrm serve --model runs/demo/training/long/model
    longrm serve --model likelihood:MODEL --port 8001
    """
    from longrm.serving.settings import ServeSettings

    settings = resolve(ServeSettings, None, assignments, flags)
    from longrm.serving.server import serve

    key = "with a key" if settings.api_key else "without a key"
    serve(settings, lambda address: echo(f"Serving {settings.model} at {address} ({key})"))
