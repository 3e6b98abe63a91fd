"""The `longrm` command group: its subcommands, and the output of every error as one line."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from longrm import __version__
from longrm.cli import (
    attribute,
    audit,
    compare,
    demo,
    evaluate,
    plan,
    probe,
    push,
    recipes,
    report,
    runs,
    score,
    serve,
    synthesize,
    train,
    world,
)
from longrm.cli.help import Group
from longrm.cli.terminal import MessageHandler, echo
from longrm.errors import ConfigError, LongRMError, importing, nearest
from longrm.plugins import load_plugins
from longrm.runs.workers import is_main_process, print_error, world_size

# All are imported at every start. What is slow, such as torch or the settings of a training, they import when they run.
_HEADINGS = {
    "Measure": (
        demo.command,
        probe.command,
        evaluate.command,
        compare.command,
        attribute.command,
        report.command,
        runs.command,
    ),
    "Train": (recipes.command, plan.command, train.command, push.merge, push.command),
    "Data": (world.command, synthesize.command, audit.command),
    "Use": (score.command, score.rank, score.filter_, serve.command),
}
COMMANDS = {str(command.name): command for commands in _HEADINGS.values() for command in commands}
SHARED = {"train", "probe", "evaluate", "score", "rank", "filter"}
"""Commands that several processes of torchrun can share."""
CONTINUED = SHARED | {"demo", "synthesize", "attribute"}
"""Commands that continue an interrupted run."""

_LOGGER = logging.getLogger("longrm")


class _Commands(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return COMMANDS.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in _HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{one.name:<{width}}", one.get_short_help_str(99)) for one in commands])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            raise click.UsageError(f"No such command '{name}'; {nearest(name, COMMANDS)}", ctx)
        if world_size() > 1 and name not in SHARED:
            raise ConfigError(f"longrm {name} does not support torchrun")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="longrm")
@click.option("--quiet", is_flag=True, help="Show no progress and no next command; log warnings only.")
@click.option("--verbose", is_flag=True, help="Log requests; show the traceback of an error.")
def cli(quiet: bool, verbose: bool) -> None:
    """Measure how far a reward model's judgment reaches into a long context, and extend it."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    load_plugins()
    if quiet:
        _LOGGER.setLevel(logging.WARNING)
    elif verbose and is_main_process():
        _LOGGER.setLevel(logging.DEBUG)


def advice_after_interrupt(arguments: Sequence[str]) -> str:
    """What the same command does after an interrupt; empty if only its run folder knows."""
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    return "" if name in CONTINUED else "the same command starts again from the beginning"


def run_command_line() -> NoReturn:
    """Runs the command line and exits with the status that `longrm.cli.main.main` documents."""
    handler, level = MessageHandler(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    try:
        with importing("this command"):
            cli.main(prog_name="longrm", standalone_mode=False)
        status = 0
    except BaseException as error:  # a panic of a library written in Rust is no Exception
        status = _report(error)
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
    sys.exit(status)


def _report(error: BaseException) -> int:
    """Prints an error as one line; returns the exit status."""
    if isinstance(error, click.Abort):  # click's form of a KeyboardInterrupt
        raise error.__cause__ or KeyboardInterrupt
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    if isinstance(error, BrokenPipeError):
        # As with `longrm ... | head`: nothing reads the output any more, so Python must not flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(error.format_message())
        return 0
    status = 1
    if isinstance(error, click.UsageError):
        status = 2
        command = error.ctx.command_path if error.ctx else "longrm"
        line = f"{error.format_message()} (see: {command} --help)"
    elif isinstance(error, click.ClickException):
        line = error.format_message()
    elif isinstance(error, LongRMError):
        line = str(error)
    elif isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        line = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        hint = "" if "--verbose" in sys.argv else " (longrm --verbose ... shows the traceback)"
        line = f"{type(error).__name__}: {error}{hint}"
    if not isinstance(error, click.ClickException):
        _LOGGER.debug("traceback:", exc_info=error)
    print_error(f"error: {line}", error)
    return status
