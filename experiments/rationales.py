"""What `longrm synthesize rationales` keeps, on pairs whose right labels are known: of a world or a benchmark.

A share of the given labels is wrong. The writer argues for whatever label it is given, and at a known rate makes a
false claim. The checker judges by the truth, errs in each verdict on its own at a known rate, and rejects false claims.
The labeler errs like the checker. Independent errors give closed forms, which the script prints next to the
measurement: with false claims f and errors c, a right label is kept in (1 - f) (1 - c)^2 of the pairs, and a wrong one
in (1 - f) c^2; a labeler with errors c labels (1 - c)^2 rightly and c^2 wrongly.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recording import circumstances

from longrm.benchmarks import load
from longrm.clients import Completion
from longrm.data import ComparisonRow
from longrm.rng import Rng
from longrm.synthesis.models import TaskRequest
from longrm.synthesis.recipes import rationales
from longrm.types import Comparison, Outcome, text_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

FALSE = "as nobody wrote"


class Judge:
    """Writes, checks and labels; `right` has the text of every right response."""

    def __init__(self, name: str, right: set[str], errors: float, false_claims: float = 0.0) -> None:
        self.name, self._right, self._errors, self._false = name, right, errors, false_claims

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """Answers every request on its own."""
        return [Completion(Outcome.ANSWERED, self._write(request)) for request in requests]

    def _write(self, request: TaskRequest) -> str:
        parts, rng = request.parts, Rng(self.name, text_of(request.messages))
        if request.task == "rationale":
            claim = FALSE if rng.fraction() < self._false else "as the record shows"
            return f"Response {parts['letter']} gives the value {claim}.\n\n[[{parts['letter']}]]"
        if FALSE in parts.get("analysis", ""):
            return "The claim does not hold.\n\n[[C]]"
        first_wins = (parts["first"] in self._right) != (rng.fraction() < self._errors)
        return f"The record was read.\n\n[[{'A' if first_wins else 'B'}]]"


def flipped(comparison: Comparison) -> Comparison:
    assert comparison.ranks is not None, "these pairs are gold"
    return replace(comparison, ranks=tuple(3 - rank for rank in comparison.ranks))


def measure(
    comparisons: Sequence[Comparison],
    labels: str,
    noise: float,
    errors: float,
    false_claims: float,
    seed: int,
) -> dict[str, Any]:
    n = len(comparisons)
    right = {text_of(one.responses[one.best_first()[0]]) for one in comparisons}
    writer = Judge("writer", right, 0.0, false_claims)
    checker, labeler = Judge("checker", right, errors), Judge("labeler", right, errors)
    recipe = rationales.RECIPE.resolve(
        None, {"preferences": {"path": "world"}, "writer": {"model": "simulated:0"}, "seed": seed}
    )
    wrong = {one.id for one in comparisons if Rng("noise", seed, one.id).fraction() < noise}
    counts = Counter[tuple[str, bool]]()

    async def make(one: Comparison) -> Any:
        given = replace(one, ranks=None) if labels == "model" else flipped(one) if one.id in wrong else one
        row = ComparisonRow(1, "world", {}, given)
        return await rationales.make_rows(recipe, writer, checker, labeler, row)

    async def make_all() -> list[Any]:
        return await asyncio.gather(*map(make, comparisons))

    for one, made in zip(comparisons, asyncio.run(make_all()), strict=True):
        best = one.best_first()[0]
        if made.rows:
            (first, verdict), *_ = [(row["order"][0], row["completion"][-3]) for row in made.rows]
            counts["kept", (first == best) == (verdict == "A")] += 1
        elif labels == "given":
            counts["dropped", one.id not in wrong] += 1
        else:
            counts["dropped", False] += 1
    kept, dropped = (counts[name, True] + counts[name, False] for name in ("kept", "dropped"))
    survives = (1 - false_claims) * (1 - errors) ** 2, (1 - false_claims) * errors**2
    share = (1 - noise, noise) if labels == "given" else ((1 - errors) ** 2, errors**2)
    good, bad = share[0] * survives[0], share[1] * survives[1]
    return {
        "labels": labels,
        "label_noise": noise if labels == "given" else None,
        "errors": errors,
        "false_claims": false_claims,
        "pairs": n,
        "kept": kept / n,
        "kept_expected": round(good + bad, 4),
        "precision_kept": counts["kept", True] / kept if kept else None,
        "precision_kept_expected": round(good / (good + bad), 4) if good + bad else None,
        "precision_dropped": counts["dropped", True] / dropped if dropped and labels == "given" else None,
        "precision_dropped_expected": round((share[0] - good) / (1 - good - bad), 4)
        if labels == "given" and good + bad < 1
        else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.2])
    parser.add_argument("--errors", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.5])
    parser.add_argument("--false-claims", type=float, default=0.1)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--bench", help="pairs of a benchmark, such as judgebench:PATH, not of the world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.bench:
        loaded = load(options.bench)
        pairs = [one for one in loaded.comparisons if len({*(one.ranks or ())}) == 2]
    else:
        world = WorldPlan("records", 96, seed=options.seed)
        pairs = list(generate(world, options.n, load_tokenizer("approximate")))
    for labels, noises in (("given", options.noise), ("model", [0.0])):
        for noise in noises:
            for errors in options.errors:
                found = measure(pairs[: options.n], labels, noise, errors, options.false_claims, options.seed)
                print(json.dumps(found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
