"""`longrm synthesize`."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from longrm.cli.options import RUN_OPTIONS, resolve
from longrm.cli.terminal import echo, print_json, print_lines, progress
from longrm.errors import RunError


class RecipeText(NamedTuple):
    """A subcommand: its line in the list, its help, and the next step, which is printed at the end."""

    summary: str
    help: str
    next_step: str


_TRAIN_SFT = (
    "Train on them: longrm train sft --config paper/qwen3-8b/sft --set data.path={out}/rows --set model.path=MODEL "
    "--out RUN"
)
_TRAIN_PAIRS = (
    "Train on them: longrm train bradley-terry --config paper/skywork-v2/bradley_terry --set data.path={out}/rows "
    "--set model.path=MODEL --out RUN"
)
_TRAIN_POLICY = (
    "Train on them: longrm train preference --set data.path={out}/rows --set model.path=MODEL --out RUN"
)
_REWARD_BY_CHECKLIST = (
    'Reward by them: longrm.reward_function(MODEL, rubrics="item", length="item"), with the columns of the rows; see '
    "docs/rewards.md"
)
_RECIPES = {
    "questions": RecipeText(
        "Let a model write questions about your texts, with answers and evidence.",
        "A model writes questions about texts, with gold answers and the sentences that prove them. Passages are drawn "
        "at depths spread over each text. A question is kept if its evidence is in the text, the evidence alone leads "
        "to the same answer, and the model does not know the answer without it. The rows are documents, the input of "
        "the other recipes.",
        "Answer them: longrm synthesize responses --config data/responses --set documents.format=jsonl "
        "--set documents.path={out}/rows --out RUN",
    ),
    "rubrics": RecipeText(
        "Let a model draft criteria from preferences, each checked separately, or from prompts.",
        "A model writes criteria by which the chosen response of a comparison is better than the rejected one. A "
        "criterion is kept if a judge that uses only this criterion prefers the chosen response in both orders. The "
        "rows are the comparisons, with the kept criteria as their `rubrics`. With `prompts` in place of preferences "
        "it writes what each prompt demands, and the length of a good response, for rewards.",
        "Judge by them: longrm evaluate --model MODEL --bench file:{out}/rows --set judge.rubrics=item --out RUN",
    ),
    "rationales": RecipeText(
        "Let a model write the reasons for preferences, each checked without its verdict.",
        "A model is shown a pair and which response is better, and writes the analysis that leads there. It is kept if "
        "a checker that reads it without its verdict finds the better response again, in both orders. Pairs without a "
        "label get one from `labeler`. The rows are judgments to imitate.",
        _TRAIN_SFT,
    ),
    "responses": RecipeText(
        "Let models answer questions: candidates of graded quality.",
        "Models answer questions about documents with perturbed contexts, which gives candidates of graded quality. "
        'With sampling = "bandit" they see the chunks that led to good answers before, and with bandit.rows = "pairs" '
        "the best and the worst answer make a pair.",
        "Judge them: longrm synthesize short-to-long, vote or benchmark, with --set candidates.path={out}",
    ),
    "short-to-long": RecipeText(
        "Judge on short contexts, then pad them to long ones: stage 1.",
        "A judge compares answers on the critical chunks; the prompts are then padded to long contexts. The rows are "
        "demonstrations.",
        _TRAIN_SFT,
    ),
    "vote": RecipeText(
        "Pair the consensus of several judges with outvoted judgments: stage 2.",
        "Several judges score each answer separately, on the short context; the largest agreeing cluster decides. A "
        'row has the long prompt, the consensus judgment, and the outvoted ones. With rows = "pairs", rows have the '
        "answers in the order of their consensus scores, for discriminative reward models.",
        "Train on them: longrm train preference --config paper/qwen3-8b/logo --set data.path={out}/rows --out RUN",
    ),
    "benchmark": RecipeText(
        "Make pairs and best-of-N in the schema of Long-RewardBench.",
        "Scores candidates against the gold answers and makes pairs and rankings, balanced over tasks and lengths. An "
        "independent second check drops every gold order that it contradicts. README.md is the data card.",
        "Judge it: longrm evaluate --model MODEL --bench long-rewardbench:{out} --out RUN",
    ),
    "judge-prompts": RecipeText(
        "Turn comparisons into judging prompts with gold verdicts.",
        "Comparisons with a known gold order, from a file, a benchmark or a generated world, become judging prompts in "
        "TRL's conversational format: the rows on which a judge is trained by reinforcement learning, rewarded by "
        "longrm.verdict_reward. Comparisons whose gold is a tie, or that contradict another one, are dropped.",
        "Train a judge on them: longrm train grpo --set data.path={out}/rows --set model.path=MODEL --out RUN; "
        "docs/judge_training.md has settings, and examples for TRL, verl and OpenRLHF",
    ),
    "embed": RecipeText(
        "Put short preferences into long contexts of other conversations.",
        "The conversation of a comparison becomes one message of an inbox, at a drawn depth among the other "
        "conversations of the same input and, if set, passages of documents; the prompt asks for the reply to its "
        "sender. Responses and gold order stay. Relevance pairs prefer the reply to this sender over the reply to "
        "another one. No model is asked.",
        _TRAIN_PAIRS,
    ),
    "distill": RecipeText(
        "Keep the best of several answers by a reward model: demonstrations.",
        "Samples several answers to every prompt and keeps the one with the highest reward.",
        _TRAIN_SFT,
    ),
}


@click.group("synthesize", short_help="Make training data and benchmarks from your documents.")
def command() -> None:
    """Makes data from documents with questions and gold answers; every recipe is a subcommand.

    For texts without questions, start with `questions`; `rubrics` adds criteria to preferences, `rationales` the
    reasons for them, `embed` puts them into long contexts, and `judge-prompts` makes prompts of them on which a judge
    is trained.

    The input is a recipe in TOML, the output a run folder: rows/ has the data for longrm train and evaluate;
    manifest.json has sources, models, prompts, cost, and the counts of every step. The same command continues a
    killed run without paying for an answer twice.
    """


def _subcommand(name: str, recipe: RecipeText) -> click.Command:
    file = f"data/{name.replace('-', '_')}"
    example = f"\b\nlongrm recipes {file} > mine.toml\nlongrm synthesize {name} --config mine.toml --out runs/{name}"

    @click.command(name, short_help=recipe.summary, help=f"{recipe.help}\n\n{example}")
    @RUN_OPTIONS
    def synthesize(out: Path, config_file: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
        module = importlib.import_module(f"longrm.synthesis.recipes.{name.replace('-', '_')}")
        settings = resolve(module.RECIPE, config_file, assignments)
        with progress() as report:
            manifest = module.synthesize(settings, out, progress=report)
        if as_json:
            print_json(manifest)
        else:
            next_step = _TRAIN_PAIRS if getattr(settings, "rows", "") == "pairs" else recipe.next_step
            if getattr(getattr(settings, "bandit", None), "rows", "") == "pairs":
                next_step = _TRAIN_POLICY
            next_step = _REWARD_BY_CHECKLIST if getattr(settings, "prompts", None) else next_step
            _print(manifest, out, next_step.format(out=out))
        counts = manifest["counts"]
        if not counts["rows"]:
            steps = counts["steps"].items()
            drops = [f"{step} dropped {_listed(one['dropped'])}" for step, one in steps if one["dropped"]]
            raise RunError("; ".join([f"{out}: no row from {counts['inputs']:,} inputs", *drops]))

    return synthesize


for _name, _recipe in _RECIPES.items():
    command.add_command(_subcommand(_name, _recipe))


def _print(manifest: Mapping[str, Any], out: Path, next_step: str) -> None:
    """Prints what every step kept and dropped, the cost, the agreement of judges, and the next step."""
    from longrm.data.files import RUN_ROWS
    from longrm.report.formatting import decimal, few_note, interval, percent
    from longrm.runs.records import Estimate

    counts = manifest["counts"]
    for step, found in counts["steps"].items():
        dropped = f"; dropped: {_listed(found['dropped'])}" if found["dropped"] else ""
        echo(f"{step}: {found['kept']:,} of {found['in']:,} kept{dropped}")
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
        echo(next_step)


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())
