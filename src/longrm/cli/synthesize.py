"""`longrm synthesize`."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from longrm.cli.options import RUN_OPTIONS, resolve
from longrm.cli.terminal import echo, print_json, progress
from longrm.errors import RunError


@click.group("synthesize", short_help="Make training data and benchmarks from documents of your own.")
def command() -> None:
    """Makes data from documents with questions and gold answers; every recipe is a subcommand.

    For texts without questions, start with `questions`; `rubrics` adds criteria to preferences.

    The input is a recipe in TOML, the output a run folder: rows/ has the data, which train and evaluate read as they
    are; manifest.json has sources, models, prompts, cost, and the counts of every step. The same command continues a
    killed run without paying for an answer twice.
    """


_THEN_JUDGMENTS = (
    "train on them with: longrm train sft --config paper/qwen3-8b/sft --set data.path={out}/rows "
    "--set model.path=MODEL --out RUN"
)
_THEN_PAIRS = (
    "train on them with: longrm train bradley-terry --config paper/skywork-v2/bradley_terry --set data.path={out}/rows "
    "--set model.path=MODEL --out RUN"
)


def _kind(name: str, short_help: str, then: str) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a subcommand; the decorated function is its help, and `then` the advice printed at the end."""

    def make(described: Callable[..., None]) -> click.Command:
        def work(out: Path, config_file: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
            module = importlib.import_module(f"longrm.synthesis.recipes.{name.replace('-', '_')}")
            recipe = resolve(module.RECIPE, config_file, assignments)
            with progress() as report:
                manifest = module.synthesize(recipe, out, progress=report)
            if as_json:
                print_json(manifest)
            else:
                _report(manifest, out, _THEN_PAIRS if getattr(recipe, "rows", "") == "pairs" else then)
            if not manifest["counts"]["rows"]:
                raise RunError(_why_nothing(manifest["counts"], out, name))

        return command.command(name, short_help=short_help, help=described.__doc__)(RUN_OPTIONS(work))

    return make


@_kind(
    "questions",
    "Let a model write questions about your texts, with answers and evidence.",
    "answer them with: longrm synthesize responses --config data/responses --set documents.format=jsonl "
    "--set documents.path={out}/rows --out RUN",
)
def questions() -> None:
    """Lets a model write questions about texts, with gold answers and the sentences that prove them.

    Passages are drawn at depths spread over each text. A question is kept if its evidence is in the text, the evidence
    alone leads to the same answer, and the model does not know the answer without it. Rows are documents, the input
    of the other recipes.

    \b
    longrm synthesize questions --config questions.toml --out runs/questions

    \b
    # questions.toml
    documents = {path = "texts"}                   # .txt and .md, or rows with context
    writer = {model = "openai:http://127.0.0.1:8000/v1#NAME"}
    per_document = 3
    """


@_kind(
    "rubrics",
    "Let a model draft criteria from preferences, each checked alone.",
    "judge by them with: longrm evaluate --model MODEL --bench file:{out}/rows --set judge.rubrics=item --out RUN",
)
def rubrics() -> None:
    """Lets a model write criteria by which the chosen response of a comparison is better than the rejected one.

    A criterion is kept if a judge that uses it alone prefers the chosen response in both orders. Rows are the
    comparisons, with the kept criteria as their `rubrics`.

    \b
    longrm synthesize rubrics --config rubrics.toml --out runs/rubrics

    \b
    # rubrics.toml
    preferences = {path = "pairs.jsonl"}           # prompt, chosen, rejected, or any other format
    writer = {model = "openai:http://127.0.0.1:8000/v1#NAME"}
    most = 5
    """


@_kind(
    "responses",
    "Let models answer questions: candidates of graded quality.",
    "judge them with: longrm synthesize short-to-long, vote or benchmark, --set candidates.path={out}",
)
def responses() -> None:
    """Lets models answer questions about documents whose contexts are perturbed: candidates of graded quality.

    \b
    longrm synthesize responses --config responses.toml --out runs/responses

    \b
    # responses.toml
    [documents]
    path = "documents.jsonl"                       # context, question, answer
    [[writers]]
    model = "openai:http://127.0.0.1:8000/v1#NAME"
    [[plans]]                                      # every writer answers under every plan
    [[plans]]
    perturbations = [{name = "drop_clues", p = 0.5}]
    """


@_kind(
    "short-to-long",
    "Judge on short contexts, write long ones to learn from: stage 1.",
    _THEN_JUDGMENTS,
)
def short_to_long() -> None:
    """Judges answers on the critical chunks, then pads the prompts to long contexts: demonstrations.

    \b
    longrm synthesize short-to-long --config stage1.toml --out runs/stage1

    \b
    # stage1.toml
    domain = "qa_faithfulness"
    lengths = [4096, 8192, 16384]
    tokenizer = "MODEL"                            # the one that will be trained
    documents = {path = "documents.jsonl"}
    candidates = {path = "runs/responses"}
    judge = {model = "openai:http://127.0.0.1:8000/v1#NAME"}
    """


@_kind(
    "vote",
    "The consensus of several judges against outvoted judgments: stage 2.",
    "prefer them with: longrm train preference --config paper/qwen3-8b/logo --set data.path={out}/rows --out RUN",
)
def vote() -> None:
    """Lets several judges score every answer alone, on the short context; the largest agreeing cluster decides.

    A row has the long prompt, the consensus judgment, and the outvoted ones. With rows = "pairs": answers ordered by
    their consensus scores, for discriminative reward models.

    \b
    longrm synthesize vote --config stage2.toml --out runs/stage2

    \b
    # stage2.toml
    lengths = [4096, 8192, 16384]
    tokenizer = "MODEL"
    documents = {path = "documents.jsonl"}
    candidates = {path = "runs/responses"}
    judges = [
        {model = "openai:http://127.0.0.1:8000/v1#ONE"},
        {model = "openai:http://127.0.0.1:8001/v1#TWO"},
        {model = "openai:http://127.0.0.1:8002/v1#THREE"},
    ]
    """


@_kind(
    "benchmark",
    "Pairs and best-of-N in the schema of Long-RewardBench.",
    "judge it with: longrm evaluate --model MODEL --bench long-rewardbench:{out} --out RUN",
)
def benchmark() -> None:
    """Scores candidates against the gold answers and makes pairs and rankings, balanced over tasks and lengths.

    A second, independent check drops every gold order that it contradicts. README.md is the data card.

    \b
    longrm synthesize benchmark --config benchmark.toml --out my-benchmark

    \b
    # benchmark.toml
    documents = {path = "documents.jsonl"}         # rows with task and metric, too
    candidates = {path = "runs/responses", synthetic = true}
    """


@_kind(
    "distill",
    "The best of several answers, by a reward model: demonstrations.",
    _THEN_JUDGMENTS,
)
def distill() -> None:
    """Samples several answers to every prompt and keeps the one with the best reward.

    \b
    longrm synthesize distill --config distill.toml --out runs/distilled

    \b
    # distill.toml
    documents = {path = "documents.jsonl"}
    policy = {model = "openai:http://127.0.0.1:8000/v1#NAME"}
    reward_model = "runs/long/model"               # as for longrm evaluate --model
    """


def _report(manifest: Mapping[str, Any], out: Path, then: str) -> None:
    """Prints what every step kept and dropped, the cost, and what to do next."""
    from longrm.synthesis.pipeline import ROWS

    counts = manifest["counts"]
    for step, found in counts["steps"].items():
        dropped = _listed(found["dropped"])
        echo(f"{step}: {found['kept']:,} of {found['in']:,} kept{f'; dropped: {dropped}' if dropped else ''}")
    for model, spent in manifest.get("spending", {}).items():
        cost = f", {spent['cost']:.2f} spent" if spent["cost"] else ""
        read, written = spent["prompt_tokens"], spent["completion_tokens"]
        echo(f"{model}: {spent['answers']:,} answers, {read:,} tokens read and {written:,} written{cost}")
    if "agreement" in manifest:
        echo(_agreement(manifest["agreement"]))
    if counts["rows"]:
        where = out / ROWS if (out / ROWS).is_dir() else out
        echo(f"{counts['rows']:,} rows from {counts['inputs']:,} inputs, saved to {where}")
        advice = then.format(out=out)
        echo(advice[0].upper() + advice[1:])


def _why_nothing(counts: Mapping[str, Any], out: Path, kind: str) -> str:
    """Why a run has no rows: what every step dropped, a hint, and where the models' answers are."""
    from longrm.runs.folder import CACHE

    steps = counts["steps"]
    drops = [
        f"{name} dropped {_listed(found['dropped'])}" for name, found in steps.items() if found["dropped"]
    ]
    last: Mapping[str, int] = next((found["dropped"] for found in steps.values() if not found["kept"]), {})
    most = max(last, key=lambda reason: last[reason], default="")
    hint = f"; {most.replace('_', ' ')}{_HINTS[most]}" if most in _HINTS else ""
    hint = hint.replace("max_tokens", _MAX_TOKENS.get(kind, "max_tokens"))
    answers = f"; {out / CACHE} has the models' answers" if (out / CACHE).exists() else ""
    return f"{out}: no row from {counts['inputs']:,} inputs: {'; '.join(drops) or 'no input'}{hint}{answers}"


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())


_MAX_TOKENS = {"benchmark": "second_check.max_tokens", "responses": "plans.max_tokens"}
"""The key of the setting `max_tokens` in recipes where it is in a group."""

_HINTS = {
    "unreadable": ": the model did not end with the lines Question, Answer and Evidence (try another writer, or raise "
    "max_tokens)",
    "evidence_not_found": ": the model did not copy sentences literally (try another writer)",
    "no_criteria": ": the writer did not end with lines Criterion: ... (try another writer, or raise max_tokens)",
    "no_verdict": ": the checker did not end with [[A]], [[B]] or [[C]] (try another checker, or raise max_tokens)",
    "truncated": ": replies reached the token limit (raise max_tokens)",
    "order_unknown": ": rows need gold (chosen and rejected, ranks, or scores)",
    "unparsed": ": the judge did not end with a score such as [[7]] (try remote.json_schema = true, or another judge)",
    "insufficient": ": the critical chunks do not contain the words of the gold answer; one of up to six words must "
    'appear literally (try sufficiency = "judge", a larger max_chunks, or evidence_from = "given")',
    "too_long": ": the critical chunks fit no length (raise lengths, or lower chunk_size and max_chunks)",
    "padding_ran_out": ": too few chunks for padding (raise pool_chunks, or add documents)",
    "nothing_found": ': no critical chunk found (documents need evidence with evidence_from = "given")',
    "no_candidate": ": no answers to judge (see candidates)",
}


def _agreement(found: Mapping[str, Any]) -> str:
    """The agreement of the judges in one line."""
    from longrm.report.formatting import few, few_note

    alpha, pairwise = found["krippendorff_alpha"], found["pairwise"]
    parts = [
        f"{name} {value['value']:{form}}"
        + (
            f" [{value['low']:{form}}, {value['high']:{form}}]{few(value['groups'])}"
            if value["low"] is not None
            else ""
        )
        for name, value, form in (("alpha", alpha, ".2f"), ("pairwise agreement", pairwise, ".1%"))
        if value["value"] is not None
    ]
    chance = "; not shown to exceed chance" if alpha["low"] is not None and alpha["low"] <= 0 else ""
    agreement = (
        f"agreement of the judges: {', '.join(parts) or 'undefined: no two scored the same answer'}{chance}"
    )
    return "; ".join(filter(None, (agreement, few_note(parts))))
