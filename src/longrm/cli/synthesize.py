"""`longrm synthesize`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from longrm.cli.help import Command, Group
from longrm.cli.options import RUN_OPTIONS, columns_option, options, resolve
from longrm.cli.terminal import echo, print_json, print_lines, print_next, progress
from longrm.errors import RunError


class RecipeText(NamedTuple):
    """A subcommand: its line in the list, its help, and the words of the next command."""

    summary: str
    help: str
    next_step: str


_ROWS_AND_MODEL = "--set data.path=OUT/rows --set model.path=MODEL --out RUN"
_TRAIN_SFT = f"train sft --config paper/qwen3-8b/sft {_ROWS_AND_MODEL}"
_TRAIN_PAIRS = f"train bradley-terry --config paper/skywork-v2/bradley_terry {_ROWS_AND_MODEL}"
_TRAIN_POLICY = f"train preference {_ROWS_AND_MODEL}"
_RECIPES = {
    "questions": RecipeText(
        "Let a model write questions about your texts.",
        "Each question has a gold answer and the sentences that prove it. Passages are drawn at depths spread over a "
        "text. A question is kept if its evidence is in the text, the evidence alone leads to the same answer, and the "
        "model does not know the answer without it. The rows are documents, the input of the other recipes.",
        "synthesize responses --config data/responses --set documents.format=jsonl --set documents.path=OUT/rows "
        "--out RUN",
    ),
    "rubrics": RecipeText(
        "Let a model draft criteria from preferences or prompts.",
        "A criterion explains why the chosen response is better; it is kept if a judge that uses only this "
        "criterion prefers the chosen response in both orders. The rows are the comparisons with their kept criteria "
        "as `rubrics`. With `prompts` in place of preferences, the model writes what each prompt demands and the "
        'length of a good response, for longrm.reward_function(MODEL, rubrics="item", length="item").',
        "evaluate --model MODEL --bench file:OUT/rows --set judge.rubrics=item --out RUN",
    ),
    "rationales": RecipeText(
        "Let a model write the reasons for preferences.",
        "The model sees a pair and the chosen response, and writes the analysis that leads there. It is kept if a "
        "checker that reads it without its verdict finds the chosen response again, in both orders. Pairs without a "
        "label get one from `labeler`. The rows are judgments to imitate.",
        _TRAIN_SFT,
    ),
    "responses": RecipeText(
        "Let models answer questions about your documents.",
        "Perturbed contexts give candidates of graded quality, which short-to-long, vote and benchmark judge. With "
        'sampling = "bandit" the models see the chunks that led to good answers before; with bandit.rows = "pairs" '
        "the best and the worst answer make a pair.",
        "synthesize short-to-long --config data/short_to_long --set candidates.path=OUT --out RUN",
    ),
    "short-to-long": RecipeText(
        "Judge on short contexts, then pad them: stage 1.",
        "A judge compares answers on the critical chunks; the prompts are then padded to long contexts. The rows are "
        "demonstrations.",
        _TRAIN_SFT,
    ),
    "vote": RecipeText(
        "Pair the consensus with outvoted judgments: stage 2.",
        "Several judges score each answer separately, on the short context; the largest agreeing cluster decides. A "
        'row has the long prompt, the consensus judgment, and the outvoted ones. With rows = "pairs", rows have the '
        "answers in the order of their consensus scores, for discriminative reward models.",
        f"train preference --config paper/qwen3-8b/logo {_ROWS_AND_MODEL}",
    ),
    "benchmark": RecipeText(
        "Make pairs and rankings in the schema of Long-RewardBench.",
        "Candidates are scored against the gold answers; pairs and rankings are balanced over tasks and lengths. An "
        "independent second check drops every gold order that it contradicts. README.md is the data card.",
        "evaluate --model MODEL --bench long-rewardbench:OUT --out RUN",
    ),
    "judge-prompts": RecipeText(
        "Turn comparisons into judging prompts with gold verdicts.",
        "Comparisons with a gold order, from a file, a benchmark or a generated world, become judging prompts in TRL's "
        "conversational format, to train a judge by reinforcement learning with longrm.verdict_reward. Comparisons "
        "whose gold is a tie, or that contradict another one, are dropped.",
        f"train grpo {_ROWS_AND_MODEL}",
    ),
    "embed": RecipeText(
        "Put short preferences into long contexts.",
        "The conversation of a comparison becomes one message of an inbox, at a drawn depth among the other "
        "conversations of the same input; the prompt asks for the reply to its sender. Responses and gold order stay. "
        "Relevance pairs prefer the reply to this sender over the reply to another one. No model is used.",
        _TRAIN_PAIRS,
    ),
    "distill": RecipeText(
        "Keep the best of several answers by a reward model.",
        "Models answer every prompt several times; the answer with the highest reward is kept. The rows are "
        "demonstrations.",
        _TRAIN_SFT,
    ),
}

# The recipes that read preferences, and the setting with the names of their columns.
_COLUMNS = {
    **dict.fromkeys(("rubrics", "rationales"), "preferences.columns"),
    **dict.fromkeys(("judge-prompts", "embed"), "reading.columns"),
}


@click.group("synthesize", cls=Group)
def command() -> None:
    """Make training data and benchmarks from your documents.

    \b
    longrm recipes data/questions > mine.toml
    longrm synthesize questions --config mine.toml --out runs/questions

    Every recipe is a subcommand. Its input is a TOML file, its output a run folder: rows/ has the data for longrm train
    and evaluate; manifest.json has sources, models, prompts, cost, and the counts of every step. Rerun the command to
    continue a killed run; no answer is paid for twice.
    """


def _subcommand(name: str, recipe: RecipeText) -> click.Command:
    file = f"data/{name.replace('-', '_')}"
    example = f"\b\nlongrm recipes {file} > mine.toml\nlongrm synthesize {name} --config mine.toml --out runs/{name}"

    columns = [columns_option(_COLUMNS[name])] if name in _COLUMNS else []

    @click.command(name, cls=Command, help=f"{recipe.summary}\n\n{example}\n\n{recipe.help}")
    @options(*columns)
    @RUN_OPTIONS
    def synthesize(
        out: Path, config_file: Path | None, assignments: tuple[str, ...], as_json: bool, **flags: Any
    ) -> None:
        from longrm.synthesis.recipes import RECIPES

        module = RECIPES[name]
        settings = resolve(module.RECIPE, config_file, assignments, flags)
        with progress() as report:
            manifest = module.synthesize(settings, out, progress=report)
        if as_json:
            print_json(manifest)
        else:
            _print(manifest, out)
        counts = manifest["counts"]
        if not counts["rows"]:
            steps = counts["steps"].items()
            drops = [f"{step} dropped {_listed(one['dropped'])}" for step, one in steps if one["dropped"]]
            raise RunError("; ".join([f"{out}: no row from {counts['inputs']:,} inputs", *drops]))
        next_step = _TRAIN_PAIRS if getattr(settings, "rows", "") == "pairs" else recipe.next_step
        if getattr(getattr(settings, "bandit", None), "rows", "") == "pairs":
            next_step = _TRAIN_POLICY
        if not getattr(settings, "prompts", None):  # checklists are used in Python: see the help of rubrics
            print_next(*(word.replace("OUT", str(out)) for word in next_step.split()), err=as_json)

    return synthesize


for _name, _recipe in _RECIPES.items():
    command.add_command(_subcommand(_name, _recipe))


def _print(manifest: Mapping[str, Any], out: Path) -> None:
    """Prints what every step kept and dropped, the cost, and the agreement of judges."""
    from longrm.data.files import RUN_ROWS
    from longrm.reporting.formatting import decimal, few_note, interval, percent
    from longrm.runs.logs import Log
    from longrm.runs.records import Estimate
    from longrm.synthesis.pipeline import LEDGER, LedgerEntry

    counts = manifest["counts"]
    for step, found in counts["steps"].items():
        dropped = f"; dropped: {_listed(found['dropped'])}" if found["dropped"] else ""
        echo(f"{step}: {found['kept']:,} of {found['in']:,} kept{dropped}")
    replies = sum(len(entry.unusable) for entry in Log(out / LEDGER, LedgerEntry))
    if replies:
        echo(f"{replies:,} dropped replies: their text is in {out / LEDGER}, field 'unusable'")
    for model, spent in manifest.get("spending", {}).items():
        cost = f", {spent['cost']:.2f} spent" if spent["cost"] else ""
        read, written = spent["prompt_tokens"], spent["completion_tokens"]
        echo(f"{model}: {spent['answers']:,} answers, {read:,} tokens read and {written:,} written{cost}")
    if "agreement" in manifest:
        alpha, pairs = (
            Estimate(**manifest["agreement"][name]) for name in ("krippendorff_alpha", "pairwise")
        )
        agreement = f"alpha {decimal(alpha.value)} {interval(alpha, decimal)}".rstrip()
        agreement += f", pairwise agreement {percent(pairs.value)} {interval(pairs)}".rstrip()
        print_lines(f"judges: {agreement}", few_note([agreement]))
    if counts["rows"]:
        where = out / RUN_ROWS if (out / RUN_ROWS).is_dir() else out
        echo(f"{counts['rows']:,} rows from {counts['inputs']:,} inputs, saved to {where}")


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())
