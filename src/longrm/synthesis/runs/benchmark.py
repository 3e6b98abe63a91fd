"""`longrm synthesize benchmark`: documents and candidates become a benchmark in the schema of Long-RewardBench."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.benchmarks.lengths import measure_with
from longrm.errors import DataError, RunError
from longrm.reading import located
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_file, write_json
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.build import LEVAL_TASKS, Benchmark, Counts, Place, choose, write
from longrm.synthesis.card import Biases, card
from longrm.synthesis.documents import is_leval
from longrm.synthesis.domains import DOMAINS
from longrm.synthesis.inputs import Inputs
from longrm.synthesis.models import asked_models
from longrm.synthesis.pipeline import prompt_hash
from longrm.synthesis.ranking import NO_MODEL
from longrm.synthesis.records import Source as Given
from longrm.synthesis.second_check import SECOND, Check, JudgeCheck, by_judge, by_metric
from longrm.synthesis.simulated import Knowledge

CARD = "README.md"
_JUDGE = "judge"  # the judge's cache and account lie apart: the folder's own files are the benchmark


class BenchmarkRecipe(Inputs):
    """Settings of `longrm synthesize benchmark`.

    Attributes:
        name: What the data card calls the benchmark.
        benchmark: What is built.
        check: A judge for the second check; by default another metric checks each that has one.
        tokenizer: "words", or a tokenizer's file, folder or Hub id, that measures lengths; estimated from words and
            marks when not given.
    """

    name: str = "A long-context preference benchmark"
    benchmark: Benchmark = Benchmark()
    check: JudgeCheck | None = None
    tokenizer: str | None = None


RECIPE = BenchmarkRecipe


def run(recipe: BenchmarkRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Builds a benchmark in the folder `out`, which `longrm evaluate --bench long-rewardbench:OUT` reads.

    Each file appears once it is whole. A killed run begins anew, asks its judge nothing twice, and ends with the same
    bytes; a finished one is left as it is.

    Returns:
        The manifest.

    Raises:
        ConfigError: The settings are at odds, or a document's task is none of Long-RewardBench's.
        DataError: A row cannot be read, or there is nothing to build a comparison from.
        ModelError: The judge or the tokenizer cannot be loaded or reached.
        RunError: The folder holds something else, its sources have changed, or the judge could not be asked.
    """
    sources = recipe.provenance()
    with RunFolder(out, "synthesis of benchmark", recipe):
        begun = _begun(out, sources)
        if begun.get("counts") is not None:
            return begun
        settings = _with_tasks(recipe)
        chosen, counts, checked_by, spending = _chosen_by(recipe, settings, out, progress)
        biases = Biases()
        files = write(out, recipe.sources, chosen, _seeing(biases, len(chosen), progress))
        licenses = {sources[0]["name"]: recipe.documents.license}
        told = card(
            recipe.name, settings, counts, biases, checked_by=checked_by, sources=licenses, seed=recipe.seed
        )
        write_file(out / CARD, told)
        manifest = read_manifest(out) | _manifest(recipe, sources, counts, biases, files)
        manifest |= {"spending": spending} if spending else {}
        write_json(out / MANIFEST, manifest)
        return manifest


def _chosen_by(
    recipe: BenchmarkRecipe, settings: Benchmark, out: Path, progress: Progress
) -> tuple[list[Place], Counts, str, dict[str, Any]]:
    """What is chosen, the counts, what the second check was in words, and what it cost."""
    knowledge, measure = Knowledge(), measure_with(recipe.tokenizer)
    with _check(recipe, out, knowledge) as (check, checked_by, spent):
        chosen, counts = choose(
            lambda: knowledge.watching(_told(recipe.sources(), "documents", progress)),
            settings,
            check,
            measure,
            seed=recipe.seed,
        )
        spending = spent()
    if not chosen:
        raise DataError(located(recipe.documents.path, f"no comparison could be built ({_why(counts)})"))
    return chosen, counts, checked_by, spending


def _begun(out: Path, sources: list[dict[str, str]]) -> dict[str, Any]:
    """The manifest, which names the sources from the start: files of a killed run are of these, too."""
    manifest = read_manifest(out)
    if manifest.setdefault("sources", sources) != sources:
        raise RunError(
            f"{out} holds a benchmark of sources that have changed since; bring them back, or take another --out"
        )
    write_json(out / MANIFEST, manifest)
    return manifest


def _with_tasks(recipe: BenchmarkRecipe) -> Benchmark:
    """L-Eval's tasks are known; what the recipe says of them comes first."""
    documents = recipe.documents
    if documents.format not in (None, "leval") or not is_leval(Path(documents.path).expanduser()):
        return recipe.benchmark
    return recipe.benchmark.model_copy(update={"tasks": {**LEVAL_TASKS, **recipe.benchmark.tasks}})


@contextmanager
def _check(
    recipe: BenchmarkRecipe, out: Path, knowledge: Knowledge
) -> Iterator[tuple[Check, str, Callable[[], dict[str, Any]]]]:
    """The second check, what it is in words, and what it has cost so far."""
    if recipe.check is None:
        pairs = ", ".join(f"`{first}` by `{second}`" for first, second in SECOND.items())
        yield by_metric(), f"another metric beside the same gold answer ({pairs})", dict
        return
    (out / _JUDGE).mkdir(exist_ok=True)
    with asked_models([recipe.check.judge], out / _JUDGE, knowledge=knowledge, seed=recipe.seed) as (
        asked,
        spending,
    ):
        words = (
            f"the judge {asked[0].name}, which rated every candidate alone by the rubric '{recipe.check.domain}' "
            "and did not see the gold answer"
        )
        yield by_judge(asked[0], recipe.check), words, spending.to_dict


def _told(inputs: Iterable[Given], label: str, progress: Progress) -> Iterator[Given]:
    for number, one in enumerate(inputs, start=1):
        yield one
        progress(label, number, 0)


def _seeing(biases: Biases, total: int, progress: Progress) -> Callable[..., None]:
    def see(comparison: Any) -> None:
        biases.see(comparison)
        progress("comparisons written", biases.items, total)

    return see


def _why(counts: Counts) -> str:
    """The counts that tell why nothing is left, in a few words."""
    told = [f"documents: {why}: {count}" for why, count in counts.documents.items()]
    told += [
        f"items that the second check {_SAYS[v]}: {n}" for (_, v), n in counts.verdicts.items() if v in _SAYS
    ]
    return "; ".join(told) or "there are no documents"


_SAYS = {"disagrees": "contradicts", "undecided": "cannot tell"}


def _manifest(
    recipe: BenchmarkRecipe,
    sources: list[dict[str, str]],
    counts: Counts,
    biases: Biases,
    files: Mapping[str, int],
) -> dict[str, Any]:
    models = {"writers": ", ".join(sorted(counts.models.keys() - {NO_MODEL}))}
    prompts = {}
    if recipe.check is not None:
        models["second check"] = recipe.check.judge.called
        prompts["second check"] = prompt_hash(*DOMAINS[recipe.check.domain].texts())
    return {
        "sources": sources,
        "seed": recipe.seed,
        "prompts": prompts,
        "models": models,
        "counts": {
            "inputs": counts.documents.total(),
            "rows": sum(files.values()),
            "steps": _steps(recipe, counts),
            "files": dict(files),
            "chosen": _chosen(counts),
            "second_check": _verdicts(counts),
            "best_is_longest": biases.longer,
            "best_is_shortest": biases.shorter,
        },
    }


def _steps(recipe: BenchmarkRecipe, counts: Counts) -> dict[str, Any]:
    """What every step took in, kept and dropped, as the manifests of pipelines tell it."""
    held, chosen = counts.available.total(), counts.chosen.total()
    verdicts = {
        verdict: sum(n for (_, of), n in counts.verdicts.items() if of == verdict)
        for verdict in ("disagrees", "undecided")
    }
    dropped = verdicts if recipe.benchmark.on_disagreement == "drop" else {}
    return {
        "documents": _step(counts.documents, "scored"),
        "candidates": _step(counts.candidates, "scored"),
        "second check": {
            "in": counts.verdicts.total(),
            "kept": held,
            "dropped": {verdict: n for verdict, n in dropped.items() if n},
        },
        "choice": {"in": held, "kept": chosen, "dropped": {"not needed for an even choice": held - chosen}},
    }


def _step(fates: Mapping[str, int], kept: str) -> dict[str, Any]:
    dropped = {why: n for why, n in sorted(fates.items()) if why != kept and n}
    return {"in": sum(fates.values()), "kept": fates.get(kept, 0), "dropped": dropped}


def _chosen(counts: Counts) -> dict[str, dict[str, dict[str, int]]]:
    """By kind, task and length."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (kind, task, length), number in sorted(counts.chosen.items()):
        found.setdefault(kind, {}).setdefault(task, {})[str(length)] = number
    return found


def _verdicts(counts: Counts) -> dict[str, dict[str, Any]]:
    """By metric: how often the second check said what, and the share of what it checked that it contradicts."""
    found: dict[str, dict[str, Any]] = {}
    for metric, group in groupby(sorted(counts.verdicts.items()), key=lambda item: item[0][0]):
        found[metric] = {verdict: number for (_, verdict), number in group}
        found[metric]["disagreement"] = counts.share("disagrees", metric)
    return found
