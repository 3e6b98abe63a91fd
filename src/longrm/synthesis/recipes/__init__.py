"""The recipes of `longrm synthesize`, one module per subcommand: settings in, a run folder out.

Each module has `RECIPE`, its settings, and `synthesize`, which writes into the folder `out` or continues what is there,
and returns the manifest. It raises `ConfigError` for conflicting settings, `DataError` for bad rows, `ModelError` if a
model or tokenizer cannot be loaded, and `RunError` if the folder belongs to another run, or a model could not be asked
(the same command then continues; earlier answers are in its cache).
"""

from longrm.synthesis.recipes import (
    benchmark,
    distill,
    embed,
    judge_prompts,
    questions,
    rationales,
    responses,
    rubrics,
    short_to_long,
    vote,
)

RECIPES = {
    "questions": questions,
    "rubrics": rubrics,
    "rationales": rationales,
    "responses": responses,
    "short-to-long": short_to_long,
    "vote": vote,
    "benchmark": benchmark,
    "judge-prompts": judge_prompts,
    "embed": embed,
    "distill": distill,
}
"""The recipes by the name of their subcommand."""
