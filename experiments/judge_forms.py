"""How should a small judge be asked? One model and the same pairs, by every form: accuracy, order, unread answers."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from recording import circumstances

import longrm
from longrm.errors import RunError
from longrm.reading import read_json

CRITERION = '{"criterion": "Every statement is supported by the passages, and answers the question."}\n'
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "pairwise": ("", {"judge.format": "pairwise"}),
    "listwise": ("", {"judge.format": "listwise"}),
    "pointwise": ("", {"judge.format": "pointwise"}),
    "pairwise, answers first": ("", {"judge.format": "pairwise", "judge.solve": True}),
    "pairwise, one criterion": ("", {"judge.format": "pairwise", "judge.rubrics": "criterion"}),
    "token A or B": ("tokens:", {"judge.format": "pairwise"}),
    "token Yes or No": ("tokens:", {"judge.format": "pointwise"}),
    "token Yes or No, one criterion": (
        "tokens:",
        {"judge.format": "pointwise", "judge.rubrics": "criterion"},
    ),
    "likelihood": ("likelihood:", {}),
    "likelihood, mean": ("likelihood:", {"model_args.likelihood": "mean"}),
}


def shown(estimate: dict[str, Any] | None) -> list[float] | None:
    return [round(100 * estimate[key], 1) for key in ("value", "low", "high")] if estimate else None


def measured(form: str, options: argparse.Namespace) -> dict[str, Any]:
    """What one form of question leads to. A form that was killed continues, and then has no time."""
    kind, settings = FORMS[form]
    options.out.mkdir(parents=True, exist_ok=True)
    criterion = options.out / "criterion.jsonl"
    criterion.write_text(CRITERION)
    settings = {key: str(criterion) if value == "criterion" else value for key, value in settings.items()}
    if kind != "likelihood:":
        settings |= {"judge.max_tokens": options.max_tokens, "judge.retries": 0}
    out = options.out / form.replace(", ", "-").replace(" ", "-")
    resumed, began = out.exists(), time.perf_counter()
    settings |= {"source.limit": options.n, "model_args.dtype": options.dtype, "judging.baselines": []}
    longrm.evaluate(f"{kind}{options.model}", options.bench, out, settings)
    seconds = time.perf_counter() - began
    summary = read_json(out / "summary.json", RunError)
    position = summary["position"] or {}
    return {
        "form": form,
        "bench": options.bench.partition(":")[0],
        "pairs": summary["metrics"]["overall"]["pair_accuracy"]["n"],
        "accuracy": shown(summary["metrics"]["overall"]["pair_accuracy"]),
        "consistency": shown(position.get("consistency")),
        "first_wins": shown(position.get("first_wins")),
        "outcomes": summary["counts"]["outcomes"],
        "seconds_per_pair": None if resumed else round(seconds / options.n, 1),
        **circumstances(options),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a causal language model")
    parser.add_argument(
        "--bench",
        default="qa-feedback:../shared/data/qa-feedback/dev_feedback.json",
        help="pairs (%(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS), metavar="FORM")
    parser.add_argument("--n", type=int, default=32, help="pairs (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=160, help="of an answer (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for form in options.forms:
        print(json.dumps(measured(form, options)), flush=True)


if __name__ == "__main__":
    main()
