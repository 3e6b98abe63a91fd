"""The data card of a benchmark that was built here: what is in it, how it came about, and what speaks against it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longrm.answer_metrics import ANSWER_METRICS
from longrm.benchmarks.long_rewardbench import TASKS
from longrm.synthesis.build import Benchmark, Counts
from longrm.synthesis.ranking import KINDS, NO_MODEL
from longrm.synthesis.second_check import Verdict
from longrm.types import Comparison, text_of

_VERDICTS: tuple[Verdict, ...] = ("agrees", "undecided", "disagrees", "unchecked")


@dataclass
class Biases:
    """How far the better response can be told without reading.

    Attributes:
        items: Comparisons.
        longer: Of those in which the best response is longer than all others, in characters.
        shorter: Of those in which it is shorter than all others.
        best_by_model: How often each model wrote the best response.
    """

    items: int = 0
    longer: int = 0
    shorter: int = 0
    best_by_model: Counter[str] = field(default_factory=Counter)

    def see(self, comparison: Comparison) -> None:
        """Looks at one comparison, whose responses come best first."""
        best, *others = [len(text_of(response)) for response in comparison.responses]
        self.items += 1
        self.longer += best > max(others)
        self.shorter += best < min(others)
        models = comparison.metadata.get("candidates_model") or [comparison.metadata.get("chosen_model")]
        self.best_by_model[str(models[0])] += 1


def card(
    name: str,
    settings: Benchmark,
    counts: Counts,
    biases: Biases,
    *,
    checked_by: str,
    sources: Mapping[str, str],
    seed: int,
) -> str:
    """Writes the card, in Markdown with the front matter that the Hub reads.

    Args:
        name: Of the benchmark.
        settings: It was built with.
        counts: Of every step.
        biases: Of what was chosen.
        checked_by: What the second check was, in words.
        sources: The license of every source by its name; "unknown" where nobody said.
        seed: Of all draws.
    """
    parts = [
        _front_matter(sources),
        f"# {name}",
        "Comparisons of responses to questions about long contexts, in the schema of Long-RewardBench "
        "(arXiv 2510.06915). Made with `longrm synthesize benchmark`.",
        "## What is in it",
        _sizes(counts),
        "## How it came about",
        _making(settings, counts, seed),
        "## The second check",
        _checks(counts, settings, checked_by),
        "## What can be told without reading",
        _biases(biases),
        "## Sources",
        _table(("source", "license"), [(source, of) for source, of in sources.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(sources: Mapping[str, str]) -> str:
    licenses = sorted({*sources.values()})
    named = licenses[0] if len(licenses) == 1 else "other"
    return f"---\nlicense: {named}\ntags:\n- reward-model\n- long-context\n- synthetic\n---"


def _sizes(counts: Counts) -> str:
    lengths = sorted({length for _, _, length in counts.chosen})
    rows = []
    for kind in KINDS:
        for task in TASKS:
            cells = [counts.chosen[kind, task, length] for length in lengths]
            if any(cells):
                rows.append((kind, task, *map(str, cells), str(sum(cells))))
    rows.append(
        ("all", "", *(str(sum(n for (_, _, of), n in counts.chosen.items() if of == length)) for length in lengths),
         str(counts.chosen.total()))
    )  # fmt: skip
    head = ("kind", "task", *(f"{length:,} tokens" for length in lengths), "all")
    return (
        'Pairs are of two models ("cross") or of one model under two perturbations ("same").\n\n'
        + _table(head, rows)
        + "\n\n"
        + "; ".join(f"{kind}: {counts.available[kind]:,} to choose from" for kind in KINDS)
        + "."
    )


def _making(settings: Benchmark, counts: Counts, seed: int) -> str:
    gap = settings.gap
    written = [f"{model} ({count:,})" for model, count in counts.models.most_common() if model != NO_MODEL]
    models = f"Candidates were written by {', '.join(written)}. " if written else ""
    if counts.models[NO_MODEL]:
        models += (
            f"{counts.models[NO_MODEL]:,} more that no model wrote, the gold answers and worse ones made of them, fill "
            f"tiers that models leave empty; their model is called `{NO_MODEL}`. "
        )
    most = "" if gap.most is None else f", and by {gap.most:.0%} at most"
    metrics = sorted({metric for metric, _ in counts.verdicts})
    about = [f"- `{metric}`: {_summary(ANSWER_METRICS[metric].__doc__)}" for metric in metrics]
    documents = "; ".join(f"{why}: {count:,}" for why, count in sorted(counts.documents.items()))
    candidates = "; ".join(f"{why}: {count:,}" for why, count in sorted(counts.candidates.items()) if count)
    return "\n".join(
        [
            f"{models}Documents with a question: {documents}. Candidates: {candidates}.",
            "",
            "Every candidate is scored beside the gold answer, in shares of what the gold answer itself earns:",
            "",
            *about,
            "",
            f"A pair's better score exceeds the other by {gap.least:.0%} of it at least{most}, and by {gap.points:g} "
            "in any case. Rankings take one candidate a tier: above 90%, 60 to 85%, 25 to 50%, below 15% of the "
            "gold score. The choice is even over the cells of task and length as far as they go round; texts take "
            f"turns within a cell. Seed {seed}.",
        ]
    )


def _summary(docstring: str | None) -> str:
    """The first paragraph of a docstring; what its callers must know comes later."""
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())


def _checks(counts: Counts, settings: Benchmark, checked_by: str) -> str:
    what = (
        "left out" if settings.on_disagreement == "drop" else "kept, and marked in the column `second_check`"
    )
    rows = []
    for metric in sorted({metric for metric, _ in counts.verdicts}):
        found = [counts.verdicts[metric, verdict] for verdict in _VERDICTS]
        share = counts.share("disagrees", metric)
        rows.append((f"`{metric}`", *map(str, found), "-" if share is None else f"{share:.1%}"))
    head = ("gold order by", *_VERDICTS, "disagreement")
    return (
        f"Every order was checked by {checked_by}, before the choice. Orders that it contradicts or cannot tell "
        f"are {what}; what it could not check is in, marked `unchecked`.\n\n{_table(head, rows)}"
    )


def _biases(biases: Biases) -> str:
    if not biases.items:
        return "There is no item."
    by_model = "; ".join(f"{model}: {count:,}" for model, count in biases.best_by_model.most_common())
    return (
        f"The best response is the longest in {biases.longer / biases.items:.1%} of the items and the shortest in "
        f"{biases.shorter / biases.items:.1%}. Best responses by model: {by_model}."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
