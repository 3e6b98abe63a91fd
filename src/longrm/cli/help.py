"""The help of commands: `--help` shows the common options under headings, `--help-all` every option."""

import inspect
from collections.abc import Mapping
from typing import Any

import click

_ALL = "longrm.cli.help.all"  # set in `Context.meta` by --help-all


def _show_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def shows_all(ctx: click.Context) -> bool:
    """Whether the help is that of `--help-all`."""
    return _ALL in ctx.meta


class Command(click.Command):
    """A command whose `--help` fits on one screen.

    Args:
        common: The options that `--help` shows, separated by spaces, by heading. `--help-all` also shows the others.
            By default `--help` shows all options.

    `--help` ends at a form feed in the help text; `--help-all` also prints the text after it.
    """

    def __init__(self, *args: Any, common: Mapping[str, str] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.common = {heading: names.split() for heading, names in (common or {}).items()}
        self.has_more = bool(self.common) or "\f" in (self.help or "")
        every = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            hidden=not self.has_more,
            help="Show every option and exit.",
        )
        self.params.append(every)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the text, without the part after the form feed unless everything is shown."""
        text, _, details = inspect.cleandoc(self.help or "").partition("\f")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip() + (details if shows_all(ctx) else ""))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, all in columns of the same width."""
        shown = {
            param.opts[-1]: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None
        }
        sections = dict(self.common)
        if not self.common or shows_all(ctx):
            common = {name for names in self.common.values() for name in names}
            heading = "More options" if self.common else "Options"
            sections[heading] = [name for name in shown if name not in common]
        rows = {heading: [shown[name] for name in names] for heading, names in sections.items()}
        width = max(n for section in rows.values() for n in (len(first) for first, _ in section) if n <= 30)
        for heading, section in rows.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{first:<{width}}", text) for first, text in section], col_max=width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names --help-all in the last line if it shows more."""
        if self.has_more and not shows_all(ctx):
            formatter.write_paragraph()
            formatter.write_text(f"More options and details: {ctx.command_path} --help-all")


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, and the commands below them."""
        Command.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)
