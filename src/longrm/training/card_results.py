"""What evaluations of a trained model say on its card: results by length, how to repeat them, the model index."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longrm import hub
from longrm.errors import ConfigError
from longrm.evaluation.evaluation_run import Evaluation
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.evaluation.summaries import read_summary
from longrm.reading import read_toml
from longrm.runs.folder import CONFIG, SUMMARY, read_manifest
from longrm.runs.records import FEW_GROUPS

EVALUATIONS = "evaluations"
"""The folder of a training run that holds the evaluations made while it went on, each under its step."""

_PLACES = ("path", "cache", "haystack")
"""Settings that are always a place on this machine."""
_FILE = re.compile(r"\.(jsonl?|csv|parquet|txt|md|jinja2?)$")
_NOT_REPEATED = ("model", "recorded", "bench", "remote")


@dataclass(frozen=True, slots=True)
class CardEvaluation:
    """An evaluation of the model that a card is about.

    Attributes:
        settings: Its settings, plain.
        summary: Its summary.
        commit: The commit of its benchmark, where that comes from the Hub.
        in_training: Whether the model judged while it was in memory, before it was written.
    """

    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    commit: str | None = None
    in_training: bool = False

    @property
    def bench(self) -> str:
        """The benchmark, without the place of its files."""
        return str(without_places(self.summary["bench"], "bench"))


def read_evaluation(folder: Path, *, in_training: bool = False) -> CardEvaluation:
    """A finished evaluation.

    Raises:
        RunError: The folder holds none that is finished, or it was changed.
    """
    summary = read_summary(folder)
    commit = (read_manifest(folder).get("bench") or {}).get("commit")
    return CardEvaluation(read_toml(folder / CONFIG, ConfigError), summary, commit, in_training)


def evaluations_of(run: Path, step: int) -> list[CardEvaluation]:
    """The evaluation after a step of a training run, where its evaluator wrote one."""
    folder = run / EVALUATIONS / str(step)
    return [read_evaluation(folder, in_training=True)] if (folder / SUMMARY).exists() else []


def without_places(value: Any, key: str = "") -> Any:
    """Plain settings as anybody may read them: of every file and folder of this machine the name alone.

    What may be an id of the Hub stays, unless there is such a folder here.
    """
    if isinstance(value, Mapping):
        return {name: without_places(part, name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(part, key) for part in value]
    if not isinstance(value, str):
        return value
    kind, colon, rest = value.partition(":") if key == "bench" else ("", "", value)
    if not colon:
        kind, rest = "", value
    place = Path(rest).expanduser()
    named = key in _PLACES or rest.startswith(("/", "~", "./", "../")) or _FILE.search(rest)
    if named or (kind and hub.split_revision(rest) is None) or (rest and _exists(place)):
        return f"{kind}{colon}{place.name}"
    return value


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # a text too long to be a name
        return False


def told(one: CardEvaluation, model: str) -> dict[str, Any]:
    """What the card's template tells of an evaluation, with the command that repeats it on `model`."""
    summary = one.summary
    metrics, counts = summary["metrics"], summary["counts"]
    parts = [(f"{int(length):,}", metrics["by_length"][length]) for length in _lengths(metrics)]
    rows = [(name, part[PAIR_ACCURACY.name]) for name, part in [*parts, ("all", metrics["overall"])]]
    unanswered = [
        f"{count:,} {name.replace('_', ' ')}"
        for name, count in counts["outcomes"].items()
        if name != "answered" and count
    ]
    return {
        "bench": one.bench,
        "comparisons": counts["comparisons"],
        "sampled_from": counts.get("sampled_from"),
        "in_training": one.in_training,
        "accuracies": [(name, metric, _few(metric)) for name, metric in rows],
        "few": any(_few(metric) for _, metric in rows)
        and f"† fewer than {FEW_GROUPS} groups: the interval is rough.",
        "measured": _measured(one),
        "boundary": _boundary(summary.get("boundary")),
        "unanswered": ", ".join(unanswered),
        "command": _command(one, model),
    }


def model_index(name: str, task: str, evaluations: Sequence[CardEvaluation]) -> list[dict[str, Any]]:
    """The results as the Hub's metadata has them: accuracy overall and at every length, with its interval.

    Args:
        name: The model's.
        task: The Hub's name of what the model does.
        evaluations: Those that the card tells of.

    Returns:
        What stands under `model-index`; empty without any result.
    """
    from huggingface_hub.repocard_data import eval_results_to_model_index  # slow to import

    results = [result for one in evaluations for result in _results(one, task)]
    return eval_results_to_model_index(name, results) if results else []


def _results(one: CardEvaluation, task: str) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    metrics, (kind, _, place) = one.summary["metrics"], one.bench.partition(":")
    parts = [(None, metrics["overall"]), *((size, metrics["by_length"][size]) for size in _lengths(metrics))]
    for length, part in parts:
        metric = part[PAIR_ACCURACY.name]
        if metric["value"] is not None:
            at = "" if length is None else f", {int(length):,} tokens"
            yield EvalResult(
                task_type=task,
                dataset_type=place if one.commit else kind,
                dataset_name=f"{one.bench}{at}",
                dataset_config=None if length is None else f"{length}_tokens",
                dataset_revision=one.commit,
                metric_type="accuracy",
                metric_name=PAIR_ACCURACY.title,
                metric_value=metric["value"],
                metric_args={key: metric[key] for key in ("low", "high", "n", "groups")},
            )


def _lengths(metrics: Mapping[str, Any]) -> list[str]:
    return sorted(metrics["by_length"], key=int)


def _measured(one: CardEvaluation) -> str | None:
    """What lengths count in, and what was asked, where the summary says so."""
    held = one.summary.get("measured")
    if held is None:
        return None
    own = (one.settings.get("probe") or {}).get("tokenizer") is None and held["tokenizer"] != "approximate"
    tokenizer = "this model's tokenizer" if own else without_places(held["tokenizer"])
    worlds, depths = ", ".join(held["worlds"]), ", ".join(map(str, held["depths"]))
    return f"Lengths in tokens of {tokenizer}; worlds: {worlds}; depths of the evidence: {depths}."


def _few(metric: Mapping[str, Any]) -> str:
    return "†" if 0 < metric["groups"] < FEW_GROUPS else ""


def _command(one: CardEvaluation, model: str) -> str:
    """The command that repeats an evaluation, with the settings that are not the defaults."""
    usual = Evaluation(bench="probe").to_dict()
    settings = {key: value for key, value in one.settings.items() if key not in _NOT_REPEATED}
    options = [
        f"--set {shlex.quote(f'{key}={_toml(value)}')}"
        for key, value in _changed(without_places(settings), usual)
    ]
    return " ".join(
        [f"longrm evaluate --model {model} --bench {shlex.quote(one.bench)}", *options, "--out runs/repeated"]
    )


def _changed(
    settings: Mapping[str, Any], usual: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        default = usual.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _changed(value, default, f"{prefix}{key}.")
        elif value != default:
            yield prefix + key, value


def _toml(value: Any) -> str:
    """A value in one line of TOML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_toml(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _boundary(boundary: Mapping[str, Any] | None) -> str | None:
    if boundary is None:
        return None
    threshold = f"{boundary['tau']:.2f}"
    reached, below = boundary["at_least"], boundary["below"]
    known = f"at least {threshold} up to {reached:,} tokens" if reached is not None else ""
    match boundary["status"]:
        case "resolved" | "unresolved" | "below_range" | "beyond_range":
            known = known or f"not shown to reach {threshold} anywhere"
            ends = f", and below it from {below:,} tokens on" if below is not None else ""
        case "rising" | "not_monotone":
            known = f"{known}, below it" if known else f"below {threshold}"
            ends = f" at {below:,} tokens, and above it at a longer length"
        case unknown:
            raise ValueError(f"the status {unknown!r} of a boundary is not known")
    return f"Context boundary ({boundary['status'].replace('_', ' ')}): accuracy is {known}{ends}."
