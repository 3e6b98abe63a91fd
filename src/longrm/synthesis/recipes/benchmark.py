"""`longrm synthesize benchmark`: documents and candidates become a benchmark in the schema of Long-RewardBench.

As in the paper's section 2: candidates are scored against the gold answers, their orders checked a second time,
selected evenly over task and length, and written with a data card.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from longrm.benchmarks import long_rewardbench
from longrm.benchmarks.answer_metrics import ANSWER_METRICS
from longrm.benchmarks.benchmark import measure_with
from longrm.data import write_rows
from longrm.errors import DataError, RunError
from longrm.judging.pointwise import Pointwise
from longrm.reading import located
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_file, write_json
from longrm.runs.progress import Progress, no_progress
from longrm.runs.promised_files import FILES, check_files, record_files
from longrm.synthesis import selection
from longrm.synthesis.documents import GOLD_MODEL, Document, is_leval, policy_prompt
from longrm.synthesis.domains import DOMAINS, language_of
from longrm.synthesis.labeling import judge_request
from longrm.synthesis.models import AsyncModel, ask
from longrm.synthesis.pipeline import KEPT, nested, open_models, prompt_hash, step_counts
from longrm.synthesis.selection import BenchmarkCounts, BenchmarkRecipe, RankedComparison, select_comparisons
from longrm.synthesis.simulated import GoldAnswers
from longrm.types import Comparison, Outcome, Query, as_messages

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
    same bytes; a finished one stays as it is.
    """
    sources = recipe.provenance()
    with RunFolder(out, "synthesis of benchmark", recipe):
        manifest = read_manifest(out)
        if manifest.setdefault("sources", sources) != sources:
            raise RunError(
                f"{out}: the sources have changed since this run began; restore them, or choose another --out"
            )
        write_json(
            out / MANIFEST, manifest
        )  # at once: the files of a killed run belong to these sources, too
        if manifest.get("counts") is not None:
            if (out / FILES).is_file():
                check_files(out)
            return manifest

        chosen, counts, checked_by, spending = _select(recipe, out, progress)

        rows = write_benchmark(out, recipe.read, chosen, counts.see)
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
            "counts": _manifest_counts(recipe, chosen, counts, rows),
        }
        metrics = {metric for metric, _ in counts.opinions}
        write_file(out / CARD, data_card(recipe, manifest, metrics, checked_by))
        manifest |= {"spending": spending} if spending else {}
        write_json(out / MANIFEST, manifest)
        return manifest


def _select(
    recipe: BenchmarkRecipe, out: Path, progress: Progress
) -> tuple[list[RankedComparison], BenchmarkCounts, str, dict[str, Any]]:
    """The selection, the counts, a description of the second check, and what it cost."""
    answers = GoldAnswers()

    def read() -> Iterator[Document]:
        for number, document in enumerate(answers.watching(recipe.read()), start=1):
            yield document
            progress("documents", number, 0)

    documents = recipe.documents
    of_leval = documents.format in (None, "leval") and is_leval(documents.place)
    rate: selection.RateAnswers = selection.rate_by_metric
    spending = None
    metrics = ", ".join(f"`{first}` by `{other}`" for first, other in selection.SECOND_METRIC.items())
    checked_by = f"another metric against the same gold answer ({metrics})"
    with ExitStack() as stack:
        if recipe.second_check is not None:
            for document in documents.read():
                _DOMAIN.check_language(language_of(document.question), f"document '{document.id}'")
            # In a folder of its own: the files of `out` are the benchmark.
            folder = out / "judge"
            folder.mkdir(exist_ok=True)
            (judge,), spending = stack.enter_context(
                open_models([recipe.second_check], folder, recipe.seed, answers)
            )
            rate = rate_by_judge(judge, recipe.max_tokens)
            checked_by = (
                f"the judge {judge.name}, which rated every candidate on its own by the rubric '{_DOMAIN.name}' "
                "and did not see the gold answer"
            )
        chosen, counts = select_comparisons(
            recipe,
            read,
            rate,
            measure_with(recipe.tokenizer),
            {**(LEVAL_TASKS if of_leval else {}), **recipe.tasks},
        )
    if not chosen:
        reasons = [
            f"documents: {'scored' if reason == KEPT else reason}: {n}"
            for reason, n in nested(counts.steps).get("documents", {}).items()
        ]
        reasons += [
            f"second check: {opinion}: {n}"
            for (_, opinion), n in counts.opinions.items()
            if opinion in ("disagrees", "undecided")
        ]
        why = "; ".join(reasons) or "there are no documents"
        raise DataError(located(documents.path, f"no comparison could be built ({why})"))
    return chosen, counts, checked_by, {} if spending is None else spending.to_dict()


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
            answered = answer.outcome is Outcome.ANSWERED
            verdict = pointwise.parse(answer.text, query) if answered else None
            found.append(None if verdict is None or verdict.contradicted else verdict.values[0])
        return found

    return rate


def write_benchmark(
    folder: Path,
    read: Callable[[], Iterable[Document]],
    chosen: Sequence[RankedComparison],
    watch: Callable[[Comparison], None],
) -> dict[str, int]:
    """Writes the selected comparisons, one file per task, and returns the rows of each.

    Raises:
        DataError: A document has disappeared since the selection.
    """

    def rows(task: str) -> Iterator[dict[str, Any]]:
        for number, comparison in enumerate(chosen_comparisons(read, chosen, task), start=1):
            watch(comparison)
            yield long_rewardbench.to_row(comparison, number)

    tasks = sorted({one.task for one in chosen})
    return {task: write_rows(folder / f"{task}.jsonl", rows(task)) for task in tasks}


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
        metrics={name: " ".join(text.split()) for name, text in texts.items()},
        min_gap=recipe.min_gap,
        min_points=selection.MIN_POINTS,
        seed=recipe.seed,
        checked_by=checked_by,
        on_disagreement=recipe.on_disagreement,
    )


def _manifest_counts(
    recipe: BenchmarkRecipe,
    comparisons: Sequence[RankedComparison],
    counts: BenchmarkCounts,
    rows: Mapping[str, int],
) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    second_check: dict[str, dict[str, Any]] = {}
    for (metric, opinion), number in sorted(counts.opinions.items()):
        second_check.setdefault(metric, {})[opinion] = number
        if recipe.on_disagreement == "drop" and opinion in ("disagrees", "undecided"):
            dropped[opinion] += number
    for metric, opinions in second_check.items():
        opinions["disagreement"] = counts.disagreement(metric)
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
        "best_is_longest": counts.longest,
        "best_is_shortest": counts.shortest,
    }
