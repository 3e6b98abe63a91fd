"""The `longrm` command: finds the subcommand, and turns every error of a user into one line."""

import difflib
import importlib
import logging
import os
import sys
from typing import NoReturn

import click

from longrm import __version__
from longrm.errors import ConfigError, LongRMError
from longrm.runs.processes import launched, leads, speaks

COMMANDS = {
    "demo": "longrm.cli.demo",
    "world": "longrm.cli.world",
    "synthesize": "longrm.cli.synthesize",
    "audit": "longrm.cli.audit",
    "plan": "longrm.cli.plan",
    "train": "longrm.cli.train",
    "merge": "longrm.cli.merge",
    "evaluate": "longrm.cli.evaluate",
    "score": "longrm.cli.score",
    "report": "longrm.cli.report",
}

_SHARED = ("train", "evaluate", "score")
"""Commands whose work several processes share."""

_LOCAL = ("torch", "transformers", "accelerate", "safetensors", "jaxtyping", "peft")
"""Packages of the extra that runs models on this machine."""


class _Commands(click.Group):
    """Imports a subcommand only when it is asked for, and suggests the nearest name for an unknown one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        if launched() > 1 and args[0] in COMMANDS and args[0] not in _SHARED:
            raise ConfigError(
                f"{launched()} processes would each do what longrm {args[0]} does; leave torchrun away"
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="longrm")
def cli() -> None:
    """Reveals how far a reward model's judgment reaches into a long context, and pushes that boundary out."""


def main() -> NoReturn:
    """Runs the command line. Exit status: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted."""
    _show_messages()
    try:
        cli.main(prog_name="longrm", standalone_mode=False)
    except LongRMError as error:
        _stop(error, 1, f"error: {error}")
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "longrm"
        _stop(error, 2, f"error: {error.format_message()} (see: {command} --help)")
    except click.ClickException as error:
        _stop(error, 1, f"error: {error.format_message()}")
    except ModuleNotFoundError as error:
        if error.name not in _LOCAL:
            raise
        needed = f"this needs the package '{error.name}'; install it with: pip install 'longrm[local]'"
        _stop(error, 1, f"error: {needed}")
    except (KeyboardInterrupt, click.Abort) as error:
        _stop(error, 130, "interrupted; the same command continues where it stopped")
    except BrokenPipeError:
        # The reader of our output went away: nothing is left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _show_messages() -> None:
    """What the package has to say while it works goes to standard error; of several processes the first speaks."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("longrm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if leads() else logging.ERROR)


def _stop(error: BaseException, status: int, line: str) -> NoReturn:
    # An error that passed by the other processes of a run, and is told by this one, has a note that says so.
    notes = getattr(error, "__notes__", [])
    if notes or speaks():
        print(f"longrm: {' '.join([*line.split(), *notes])}", file=sys.stderr)
    sys.exit(status)
