"""Results of `real_experiment.py`: accuracy of every arm by length, and differences of two arms.

Seeds are pooled. Intervals resample the contexts of all seeds, so they hold for these models only. A result replaces
those of the same seeds, or of some of them, in the file of results.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from real_experiment import ARMS, PREFERENCES, SHORT_PAIRS

from longrm.evaluation.estimates import estimate_metric, paired_difference
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.evaluation.table import scored_table
from longrm.runs.judgments import Judgments
from longrm.runs.records import Estimate, JudgmentRecord
from longrm.types import Outcome

LONGEST = "baseline:longest"
CONTRASTS = (
    *(
        pair
        for kind, short in (
            ("likelihood", "likelihood-short"),
            ("scalar", "scalar-short"),
            ("preferences", "preferences-3e-5"),
        )
        for pair in (
            (f"{kind}-long", f"{kind}-control"),
            (f"{kind}-long", short),
            (f"{kind}-control", short),
            (short, "likelihood"),
            (f"{kind}-long", "likelihood"),
        )
    ),
    *(
        pair
        for kind in ("likelihood", "scalar")
        for pair in (
            (f"{kind}-long-more", f"{kind}-control-more"),
            (f"{kind}-long-more", f"{kind}-long"),
            (f"{kind}-control-more", f"{kind}-control"),
        )
    ),
    *((arm, "preferences-3e-5") for arm in ("preferences", "preferences-mlp", "preferences-3e-4")),
    *((arm, LONGEST) for arm in ARMS if arm.startswith("preferences")),
)
RESAMPLES = 10_000

Records = dict[int, list[JudgmentRecord]]
"""Of one arm and probe, by seed."""


def read_arm(folder: Path, arm: str, probe: str) -> Records:
    """The judgments of every seed that is complete; ids carry their seed, and so do contexts of its own."""
    found: Records = {}
    for run in sorted(folder.glob(f"{arm}-[0-9]/{probe}/summary.json")):
        seed = int(run.parent.parent.name.removeprefix(f"{arm}-"))
        found[seed] = [
            replace(
                record,
                id=f"{seed} {record.id}",
                group=record.group if probe in PREFERENCES else f"{seed} {record.group}",
            )
            for record in Judgments(run.parent)
        ]
    return found


def by(
    key: Callable[[JudgmentRecord], str], records: Iterable[JudgmentRecord]
) -> dict[str, list[JudgmentRecord]]:
    cells: dict[str, list[JudgmentRecord]] = {}
    for record in records:
        cells.setdefault(key(record), []).append(record)
    return cells


def length(record: JudgmentRecord) -> str:
    return str(record.length)


def everything(_: JudgmentRecord) -> str:
    return "all"


def task_and_length(record: JudgmentRecord) -> str:
    return f"{record.task} {record.length}"


def accuracy(records: list[JudgmentRecord]) -> Estimate:
    """Pair accuracy; unanswered comparisons count as wrong."""
    return estimate_metric(scored_table(records), PAIR_ACCURACY, seed=0, resamples=RESAMPLES)


def difference(ours: Records, theirs: Records, cell: Callable[[JudgmentRecord], str]) -> dict[str, Estimate]:
    """The paired difference over comparisons that both judged: an arm may have judged the first contexts only."""
    sides = [[record for seed in side for record in side[seed]] for side in (ours, theirs)]
    both = set.intersection(*({record.id for record in side} for side in sides))
    one, two = (by(cell, (record for record in side if record.id in both)) for side in sides)
    return {name: paired_difference(one[name], two[name], resamples=RESAMPLES) for name in one}


CELLS = {"length": length, "task and length": task_and_length}


def longest(records: Iterable[JudgmentRecord]) -> list[JudgmentRecord]:
    """The judgments of the baseline that prefers the longest response."""
    return [
        replace(record, outcome=Outcome.ANSWERED, scores=record.baselines["longest"]) for record in records
    ]


def results(folder: Path) -> Iterator[dict[str, Any]]:
    """The accuracy of every arm and every contrast, for each probe, as JSON values."""
    for probe in dict.fromkeys(probe for arm in ARMS.values() for probe in arm.probes):
        arms = {arm: found for arm in ARMS if (found := read_arm(folder, arm, probe))}
        cells_by = {"all": everything} if probe in SHORT_PAIRS else CELLS
        if probe in PREFERENCES and arms:
            arms[LONGEST] = {seed: longest(side) for arm in arms.values() for seed, side in arm.items()}
        for arm, found in arms.items():
            records = [record for seed in found for record in found[seed]]
            answered = sum(record.outcome is Outcome.ANSWERED for record in records)
            facts = {
                "probe": probe,
                "arm": arm,
                "seeds": sorted(found),
                "answered": answered,
                "judged": len(records),
            }
            for kind, cell in cells_by.items():
                cells = {name: asdict(accuracy(cell_)) for name, cell_ in by(cell, records).items()}
                yield {**facts, "by": kind, "accuracy": cells}
        for one, other in CONTRASTS:
            seeds = sorted(arms.get(one, {}).keys() & arms.get(other, {}).keys())
            for kind, cell in cells_by.items() if seeds else ():
                cells = {name: asdict(e) for name, e in difference(arms[one], arms[other], cell).items()}
                yield {
                    "probe": probe,
                    "arm": one,
                    "minus": other,
                    "seeds": seeds,
                    "by": kind,
                    "difference": cells,
                }
    for arm, own, other in (
        *((arm, *SHORT_PAIRS) for arm in ARMS if {*SHORT_PAIRS} <= {*ARMS[arm].probes}),
        ("preferences-control", "inbox", "other-inbox"),
        ("preferences-long", "inbox", "other-inbox"),
    ):
        ours, theirs = read_arm(folder, arm, own), read_arm(folder, arm, other)
        if seeds := sorted(ours.keys() & theirs.keys()):
            # Lengths together as well: the comparisons of one length are few.
            kinds = {"all": everything, "length": length} if own == "inbox" else {"all": everything}
            for kind, cell in kinds.items():
                cells = {name: asdict(e) for name, e in difference(ours, theirs, cell).items()}
                facts = {"probe": own, "arm": arm, "minus": other, "seeds": seeds}
                yield {**facts, "by": kind, "difference": cells}


def replaces(new: dict[str, Any], old: dict[str, Any]) -> bool:
    same = all(new.get(key) == old.get(key) for key in ("probe", "arm", "minus", "by"))
    return same and {*old["seeds"]} <= {*new["seeds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/smollm2"), help="folder of the arms' runs (%(default)s)"
    )
    parser.add_argument("--results", type=Path, help="JSONL file to add the results to")
    options = parser.parse_args()
    computed = list(results(options.out))
    if not computed:
        raise SystemExit(f"error: {options.out} has no judged arm: run real_experiment.py first")
    if options.results:
        lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
        earlier = [old for old in map(json.loads, lines) if not any(replaces(new, old) for new in computed)]
        text = "".join(json.dumps(line) + "\n" for line in [*earlier, *computed])
        options.results.write_text(text, encoding="utf-8")
    for line in computed:
        what = f"{line['arm']} - {line['minus']}" if "minus" in line else line["arm"]
        print(f"{line['probe']}, {what}, seeds {line['seeds']}")
        for name, found in (line.get("difference") or line.get("accuracy")).items():
            low, high = (
                f"{100 * limit:.1f}" if limit is not None else "?" for limit in (found["low"], found["high"])
            )
            print(
                f"  {name:28} {100 * found['value']:6.1f} [{low}, {high}]  n = {found['n']}, {found['groups']} contexts"
            )


if __name__ == "__main__":
    main()
