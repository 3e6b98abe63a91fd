"""From judgments to what they mean."""

from importlib import import_module


def __getattr__(name: str) -> object:
    """Imports the modules of docs/api.md at their first use: `import longrm` is enough to name their contents."""
    if name in ("attention_table", "compare", "read_run"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
