"""`longrm synthesize benchmark`: documents and candidates become a benchmark in the schema of Long-RewardBench.

As in the paper's section 2: candidates are scored against the gold answers, their orders checked a second time,
selected evenly over task and length, and written with a data card.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from longrm.benchmarks import long_rewardbench
from longrm.benchmarks.answer_metrics import ANSWER_METRICS
from longrm.benchmarks.benchmark import measure_with
from longrm.data import write_rows
from longrm.errors import DataError
from longrm.judging.pointwise import Pointwise
from longrm.judging.prompts import prompt_hash
from longrm.reading import located
from longrm.runs.folder import (
    FILES,
    MANIFEST,
    RunFolder,
    check_files,
    read_manifest,
    record_files,
    write_file,
    write_json,
)
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis import selection
from longrm.synthesis.documents import GOLD_MODEL, Document, is_leval, policy_prompt
from longrm.synthesis.domains import DOMAINS, language_of
from longrm.synthesis.labeling import judge_request
from longrm.synthesis.models import AsyncModel, Spending, ask, failure_of
from longrm.synthesis.pipeline import check_unchanged, nested, open_models, step_counts
from longrm.synthesis.selection import BenchmarkCounts, BenchmarkRecipe, RankedComparison, select_comparisons
from longrm.synthesis.simulated import GoldAnswers
from longrm.types import Comparison, Query, as_messages, text_of

CARD = "README.md"
_DOMAIN = DOMAINS["qa_faithfulness"]  # the rubric of the second check

LEVAL_TASKS: dict[str, str] = {
    "coursera": "LongQA",
    "financial_qa": "LongQA",
    "legal_contract_qa": "LongQA",
    "natural_question": "LongQA",
    "quality": "LongQA",
    "sci_fi": "LongQA",
    "topic_retrieval_longchat": "LongQA",
    "gov_report_summ": "Summ",
    "paper_assistant": "Summ",
    "patent_summ": "Summ",
    "review_summ": "Summ",
    "tv_show_summ": "Summ",
    "gsm100": "Math",
}
"""L-Eval's tasks in Long-RewardBench."""


RECIPE = BenchmarkRecipe


def synthesize(recipe: BenchmarkRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Builds a benchmark in the folder `out`, which `longrm evaluate --bench long-rewardbench:OUT` reads.

    Every file appears when it is complete. A killed run starts again, asks its judge nothing twice, and ends with the
    same bytes; a finished one stays as it is. No row is known before all documents are, so a `ResumableRun` would have
    nothing to log.
    """
    sources = recipe.provenance()
    with RunFolder(out, "synthesis of benchmark", recipe):
        check_unchanged(out, {"sources": sources})
        manifest = {**read_manifest(out), "sources": sources}
        # At once: the files of a killed run belong to these sources, too.
        write_json(out / MANIFEST, manifest)
        if manifest.get("counts") is not None:
            if (out / FILES).is_file():
                check_files(out)
            return manifest

        answers = GoldAnswers()

        def read() -> Iterator[Document]:
            for number, document in enumerate(answers.watching(recipe.read()), start=1):
                yield document
                progress("documents", number, 0)

        of_leval = recipe.documents.format in (None, "leval") and is_leval(recipe.documents.place)
        tasks = {**(LEVAL_TASKS if of_leval else {}), **recipe.tasks}
        with _second_check(recipe, out, answers) as (rate, checked_by, spending):
            chosen, counts = select_comparisons(recipe, read(), rate, measure_with(recipe.tokenizer), tasks)
        if not chosen:
            left_out = nested(counts.steps)
            left_out["second check"] = {
                opinion: number for (_, opinion), number in counts.opinions.items() if opinion != "agrees"
            }
            why = "; ".join(
                f"{step}: {reason}: {n}" for step in left_out for reason, n in left_out[step].items()
            )
            raise DataError(
                located(
                    recipe.documents.path, f"no comparison could be built ({why or 'there are no documents'})"
                )
            )
        rows, extremes = write_benchmark(out, recipe.read, chosen)
        record_files(out, [out / f"{task}.jsonl" for task in rows])

        models = {"writers": ", ".join(sorted(counts.models.keys() - {GOLD_MODEL}))}
        prompts = {}
        if recipe.second_check is not None:
            models["second check"] = recipe.second_check.label
            prompts["second check"] = prompt_hash(*_DOMAIN.texts())
        manifest = read_manifest(out) | {
            "sources": sources,
            "seed": recipe.seed,
            "prompts": prompts,
            "models": models,
            "counts": _manifest_counts(chosen, counts, rows, extremes),
        }
        write_file(
            out / CARD, data_card(recipe, manifest, {metric for metric, _ in counts.opinions}, checked_by)
        )
        if spending is not None:
            manifest["spending"] = spending.to_dict()
        write_json(out / MANIFEST, manifest)
        return manifest


@contextmanager
def _second_check(
    recipe: BenchmarkRecipe, out: Path, answers: GoldAnswers
) -> Iterator[tuple[selection.RateAnswers, str, Spending | None]]:
    """The second check, its description for the data card, and what it costs."""
    if recipe.second_check is None:
        metrics = ", ".join(f"`{first}` by `{other}`" for first, other in selection.SECOND_METRIC.items())
        yield selection.rate_by_metric, f"another metric against the same gold answer ({metrics})", None
        return
    for document in recipe.documents.read():
        _DOMAIN.check_language(language_of(document.question), f"document '{document.id}'")
    # In its own folder: the files of `out` are the benchmark.
    folder = out / "judge"
    folder.mkdir(exist_ok=True)
    with open_models([recipe.second_check], folder, recipe.seed, answers) as ((judge,), spending):
        checked_by = (
            f"the judge {judge.name}, which rated every candidate on its own by the rubric '{_DOMAIN.name}' "
            "and did not see the gold answer"
        )
        yield rate_by_judge(judge, recipe.max_tokens), checked_by, spending


def rate_by_judge(judge: AsyncModel, max_tokens: int) -> selection.RateAnswers:
    """The second check by a judge that reads the whole text and not the gold answer."""
    pointwise = Pointwise()

    async def rate(document: Document, texts: Sequence[str]) -> list[float | None]:
        requests = [
            judge_request(_DOMAIN, document, document.text, text, max_tokens=max_tokens) for text in texts
        ]
        found: list[float | None] = []
        for text, answer in zip(texts, await ask(judge, *requests), strict=True):
            query = Query(document.id, (), (as_messages(text, "assistant"),))
            verdict = None if failure_of(answer) else pointwise.parse(answer.text, query)
            found.append(None if verdict is None or verdict.contradicted else verdict.values[0])
        return found

    return rate


def write_benchmark(
    folder: Path, read: Callable[[], Iterable[Document]], chosen: Sequence[RankedComparison]
) -> tuple[dict[str, int], dict[str, int]]:
    """Writes the selected comparisons, one file per task.

    Returns:
        The rows of each task, and in how many rows the best response is the longest, and the shortest one.

    Raises:
        DataError: A document has disappeared since the selection.
    """
    extremes = {"best_is_longest": 0, "best_is_shortest": 0}

    def rows(task: str) -> Iterator[dict[str, Any]]:
        for number, comparison in enumerate(chosen_comparisons(read, chosen, task), start=1):
            best, *others = [len(text_of(response)) for response in comparison.responses]  # listed best first
            extremes["best_is_longest"] += best > max(others)
            extremes["best_is_shortest"] += best < min(others)
            yield long_rewardbench.to_row(comparison, number)

    tasks = sorted({one.task for one in chosen})
    return {task: write_rows(folder / f"{task}.jsonl", rows(task)) for task in tasks}, extremes


def chosen_comparisons(
    read: Callable[[], Iterable[Document]], chosen: Sequence[RankedComparison], task: str
) -> Iterator[Comparison]:
    """The selected comparisons of one task, in the order of the documents, with their texts."""
    by_document: dict[str, list[RankedComparison]] = {}
    for one in chosen:
        if one.task == task:
            by_document.setdefault(one.document, []).append(one)
    documents = iter(read())
    while by_document:
        document = next(documents, None)
        if document is None:
            raise DataError(
                f"document '{next(iter(by_document))}' was there at first and is gone; build anew"
            )
        for one in sorted(by_document.pop(document.id, ()), key=lambda one: one.id):
            yield _comparison(document, one)


def _comparison(document: Document, ranked: RankedComparison) -> Comparison:
    prompt, paired = policy_prompt(document), ranked.kind in selection.PAIRS
    best_first = [document.candidates[at] for at in ranked.candidates]
    models = [candidate.model for candidate in best_first]
    metadata = {
        "task": ranked.task,
        "subtask": document.task or None,
        "source": document.metadata.get("source"),
        "length": ranked.length,
        "tasktype": "PairWise" if paired else "BestOfN",
        "subtype": ranked.kind if paired else str(len(models)),
        "chosen_model": models[0] if paired else None,
        "rejected_model": models[1] if paired else None,
        "candidates_model": None if paired else models,
        "candidates_score": [*ranked.scores],
        "perturbations": [candidate.perturbation for candidate in best_first],
        "metric": ranked.metric,
        "second_check": ranked.opinion,
        "document": document.id,
    }
    return Comparison(
        id=ranked.id,
        group=document.group,
        prompt=prompt.messages,
        responses=tuple(as_messages(candidate.text, "assistant") for candidate in best_first),
        ranks=tuple(range(1, len(models) + 1)),
        metadata={name: value for name, value in metadata.items() if value is not None},
        context=prompt.context,
        question=prompt.question,
    )


def data_card(
    recipe: BenchmarkRecipe, manifest: Mapping[str, Any], metrics: Iterable[str], checked_by: str
) -> str:
    """The data card, in Markdown with the front matter that the Hub reads (`data_card.md.j2`)."""
    # Of a metric's documentation the first paragraph; the others are for callers.
    texts = {
        name: (ANSWER_METRICS[name].__doc__ or "").strip().partition("\n\n")[0] for name in sorted(metrics)
    }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = (files("longrm.synthesis") / "data_card.md.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        license=recipe.documents.license,
        source=manifest["sources"][0]["name"],
        counts=manifest["counts"],
        models=manifest["models"],
        gold=GOLD_MODEL,
        synthetic=recipe.candidates.synthetic,
        metrics={name: " ".join(text.split()) for name, text in texts.items()},
        min_gap=selection.MIN_GAP,
        min_points=selection.MIN_POINTS,
        seed=recipe.seed,
        checked_by=checked_by,
    )


def _manifest_counts(
    comparisons: Sequence[RankedComparison],
    counts: BenchmarkCounts,
    rows: Mapping[str, int],
    extremes: Mapping[str, int],
) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    second_check: dict[str, dict[str, Any]] = {}
    for (metric, opinion), number in sorted(counts.opinions.items()):
        second_check.setdefault(metric, {})[opinion] = number
        if opinion in ("disagrees", "undecided"):
            dropped[opinion] += number
    for opinions in second_check.values():
        checked = sum(opinions.values()) - opinions.get("unchecked", 0)
        opinions["disagreement"] = opinions.get("disagrees", 0) / checked if checked else None
    chosen: dict[str, dict[str, dict[str, int]]] = {}
    cells = Counter((one.kind, one.task, one.length) for one in comparisons)
    for (kind, task, length), number in sorted(cells.items()):
        chosen.setdefault(kind, {}).setdefault(task, {})[str(length)] = number
    available, total = counts.available, len(comparisons)
    left = {"not needed for an even choice": available - total}
    return {
        "inputs": sum(nested(counts.steps).get("documents", {}).values()),
        "rows": sum(rows.values()),
        "steps": {
            **step_counts(counts.steps),
            "second check": {"in": counts.opinions.total(), "kept": available, "dropped": dict(dropped)},
            "choice": {"in": available, "kept": total, "dropped": left},
        },
        "files": dict(rows),
        "chosen": chosen,
        "second_check": second_check,
        **extremes,
    }
