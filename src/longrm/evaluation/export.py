"""Exports an evaluation for tools that calibrate judges."""

from collections.abc import Callable, Iterator
from typing import Any

from scipy.special import expit

from longrm.evaluation.read_run import Run
from longrm.reward_models.trials import to_scores
from longrm.types import Scale, text_of

_PREFERENCE: dict[Scale, Callable[[float], float]] = {
    "logit": lambda lead: float(expit(lead)),
    "points": lambda lead: min(1.0, max(0.0, 0.5 + lead / 20)),  # of 10
    "verdict": lambda lead: 0.5 + lead / 2,
    "none": lambda lead: 0.5 + 0.5 * ((lead > 0) - (lead < 0)),
}


def cje_rows(run: Run) -> Iterator[dict[str, Any]]:
    """A row for each response of every answered comparison, as cje-eval 0.9 reads it (arXiv 2512.11150).

    `judge_score` is how far the judge prefers the response to the others of its comparison, 0 to 1, and `oracle_label`
    the share of them that gold ranks below it, ties counting half; absent without gold. `target_policy` is the writer,
    or "unknown". Rows of one group have one `prompt_id`, by which cje-eval clusters. The texts are there if the run
    keeps the comparison in full (`judging.examples`).
    """
    preference = _PREFERENCE[run.evaluation.scale]
    for record in run.judgments:
        values, example = to_scores(record), run.examples.get(record.id)
        for index, value in enumerate(values):
            others = [other for other in range(len(values)) if other != index]
            row: dict[str, Any] = {
                "prompt_id": record.group,
                "row_id": f"{record.id}/{index}",
                "target_policy": record.writers[index] if record.writers else "unknown",
                "judge_score": sum(preference(value - values[other]) for other in others) / len(others),
            }
            if ranks := record.ranks:
                below = [(ranks[other] > ranks[index]) - (ranks[other] < ranks[index]) for other in others]
                row["oracle_label"] = 0.5 + 0.5 * sum(below) / len(others)
            if example is not None:
                row |= {"prompt": text_of(example.prompt), "response": text_of(example.responses[index])}
            yield row


EXPORTS = {"cje": cje_rows}
"""The formats of `longrm runs export`, each a function of a run that yields rows."""
