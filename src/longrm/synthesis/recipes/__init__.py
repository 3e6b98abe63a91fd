"""The recipes of `longrm synthesize`, one module a subcommand: settings in, a run folder out.

Each module has `RECIPE`, its settings, and `synthesize`, which writes into the folder `out` or continues what is there,
and returns the manifest. It raises `ConfigError` for settings at odds, `DataError` for rows that cannot be read,
`ModelError` for models and tokenizers that cannot be loaded, and `RunError` for a folder of something else, or a model
that could not be asked (what was answered is in its cache).
"""
