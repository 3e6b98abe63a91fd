"""How far SQuALITY's annotators agree: the ceiling of a judge, as a Markdown table.

- `others`: one annotator compared with the majority of the others; a tie of these counts half. A judge is compared
  with the majority of all, so an annotator who is left out is compared with less.
- `majority`: one annotator compared with the majority of all, which includes that annotator: an upper limit.
- `alpha`: Krippendorff's alpha of the preferences, 0 at chance.

Intervals are bootstraps over stories.
"""

import argparse
import json
from dataclasses import asdict

import numpy as np

from longrm.benchmarks import load
from longrm.benchmarks.squality import MODELS, PEOPLE
from longrm.evaluation.estimates import ratio
from longrm.runs.records import Estimate
from longrm.synthesis.voting import Agreement


def with_others(votes: tuple[int, int]) -> float:
    """The mean agreement of each annotator of a pair with the majority of the others."""
    one, other = votes
    total = 0.0
    for own, opposed in ((one, other), (other, one)):
        total += own * (0.5 + 0.5 * np.sign(own - 1 - opposed))
    return total / (one + other)


def agreement(pairs: list[tuple[str, tuple[int, int]]]) -> dict[str, Estimate]:
    """The agreement on pairs, given by their story and the votes for either summary."""
    names = sorted({story for story, _ in pairs})
    groups = np.array([names.index(story) for story, _ in pairs])
    preferences = Agreement()
    for story, (one, other) in pairs:
        preferences.see({str(n): float(n < one) for n in range(one + other)}, story)

    def mean(values: list[float]) -> Estimate:
        return ratio(np.array(values), np.ones(len(values)), groups, seed=0, resamples=2000)

    return {
        "unanimous": mean([float(min(votes) == 0) for _, votes in pairs]),
        "others": mean([with_others(votes) for _, votes in pairs]),
        "majority": mean([max(votes) / sum(votes) for _, votes in pairs]),
        "alpha": preferences.alpha(resamples=2000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="as in `squality:PATH`")
    parser.add_argument("--json", action="store_true", help="print a JSON line per task instead of the table")
    options = parser.parse_args()
    bench = load(f"squality:{options.path}")
    pairs: dict[str, list[tuple[str, tuple[int, int]]]] = {MODELS: [], PEOPLE: []}
    for pair in bench.comparisons:
        one, other = pair.metadata["votes"]
        pairs[pair.metadata["task"]].append((pair.group, (one, other)))
    if not options.json:
        print("| task | pairs | unanimous, % | others, % | majority, % | alpha |\n|---|---|---|---|---|---|")
    for task, some in pairs.items():
        found = agreement(some)
        if options.json:
            print(json.dumps({"task": task, **{name: asdict(one) for name, one in found.items()}}))
            continue
        cells = [shown(one, 100, 1) for name, one in found.items() if name != "alpha"]
        print(f"| {task} | {len(some)} | {' | '.join(cells)} | {shown(found['alpha'], 1, 2)} |")


def shown(one: Estimate, times: int, digits: int) -> str:
    if one.value is None or one.low is None or one.high is None:
        return "-"
    value, low, high = (f"{times * number:.{digits}f}" for number in (one.value, one.low, one.high))
    return f"{value} [{low}, {high}]"


if __name__ == "__main__":
    main()
