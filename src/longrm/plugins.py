"""Plug-ins: packages that add to the registries of longrm.

A package with the entry point

    [project.entry-points."longrm.plugins"]
    my-package = "my_package:register"

has its function `register` called, without arguments, once per process: before a command of the command line runs, at
the first use of a public name of `longrm`, and before a model is loaded. The function adds to the dicts that
CONTRIBUTING.md lists.
"""

from functools import cache
from importlib.metadata import entry_points

from longrm.errors import ConfigError, first_line

GROUP = "longrm.plugins"


@cache
def load_plugins() -> None:
    """Calls the entry points of all installed plug-ins; a `ConfigError` names one that fails."""
    for plugin in entry_points(group=GROUP):
        try:
            plugin.load()()
        except Exception as error:
            raise ConfigError(
                f"the plug-in '{plugin.name}' ({plugin.value}) fails: {type(error).__name__}: {first_line(error)}"
            ) from error
