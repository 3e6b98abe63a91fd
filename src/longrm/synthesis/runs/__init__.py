"""The runs of `longrm synthesize`, one module a subcommand: a recipe in, a folder out."""
