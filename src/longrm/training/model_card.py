"""The model card: what a stranger must know before using a trained model, as the README.md of its folder."""

import json
import platform
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, StrictUndefined

from longrm import hub
from longrm.config import to_toml
from longrm.data.tokenizing import Tokenizer
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.modeling.folders import ADAPTER
from longrm.modeling.loading import scored_at
from longrm.runs.folder import installed_versions, write_file
from longrm.training.objectives import OBJECTIVES
from longrm.training.training_settings import TrainingSettings

CARD, FIGURE = "README.md", "results.png"

_PACKAGES = ("longrm", "torch", "transformers", "peft", "tokenizers")
_COUNTS = {
    "read": "rows read",
    "used": "rows trained on",
    "bad": "left out: could not be read, or had no gold order",
    "tied": "left out: all responses tied",
    "too_long": "left out: longer than is read",
    "without_contrast": "chosen and rejected judgments give the same score",
    "margin": "with a margin between the scores",
    "probability": "with a probability of the gold order",
}


def write_card(
    folder: Path,
    settings: TrainingSettings,
    summary: Mapping[str, Any],
    *,
    evaluation: Mapping[str, Any] | None = None,
    figure: bytes | None = None,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes the model card of a folder with a trained model, valid as a README of the Hub.

    Args:
        folder: A full model, or an adapter.
        settings: What it was trained with.
        summary: Of its training.
        evaluation: The summary of an evaluation of this very model.
        figure: Its results as a PNG, which is written beside the card.
        origin: What identifies the model that training started from; see `ModelFolders.origin`.
    """
    objective = OBJECTIVES[settings.objective]
    path = settings.model.path
    named = None if path is None or Path(path).exists() else hub.split_revision(path)
    base = path if named is None else named[0]  # a folder, or an id of the Hub without its revision
    adapter, scores = (folder / ADAPTER).is_file(), objective.trains == "scorer"
    saved = folder.resolve()
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= {"number": "{:,}".format, "to_json": json.dumps}  # JSON is YAML
    versions = [f"{name} {version}" for name, version in installed_versions(_PACKAGES).items()]
    text = environment.from_string((files(__package__) / "model_card.md.j2").read_text()).render(
        front=_front(base, adapter=adapter, scores=scores),
        name=saved.parent.name if saved.name == "model" else saved.name,
        start=_start(base, origin),
        base=base,
        commit=origin.get("commit"),
        gguf="gguf" in origin,
        adapter=adapter,
        scores=scores,
        auto_class="SequenceClassification" if scores else "CausalLM",
        objective=objective,
        loss=settings.loss_spec,
        settings=settings,
        summary={"accuracy": None, **summary},
        counts=_COUNTS,
        evaluation=evaluation,
        figure=None if figure is None else FIGURE,
        # An adapter is loaded onto a base whose weights are as they were measured.
        rounded=settings.model.precision == "bfloat16" and not adapter,
        toml=to_toml(settings.to_dict()).strip(),
        versions=", ".join([f"Python {platform.python_version()}", *versions]),
        **_evaluated(evaluation),
        **_read_by(folder),
    )
    if figure is not None:
        write_file(folder / FIGURE, figure)
    write_file(folder / CARD, text)


def _start(base: str | None, origin: Mapping[str, str]) -> str:
    """What training started from, as the card names it."""
    if base is None:
        return "random weights"
    if "gguf" in origin:
        types, digest = origin["gguf_types"], origin["gguf_sha256"]
        return f"`{base}`, a GGUF file (weights in {types}; SHA-256 `{digest}`),"
    return f"`{base}` at commit `{origin['commit']}`" if "commit" in origin else f"`{base}`"


def _front(base: str | None, *, adapter: bool, scores: bool) -> dict[str, Any]:
    """The YAML front matter."""
    fields: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        "tags": ["reward-model", "long-context", "longrm", *(["lora"] if adapter else [])],
    }
    if base is not None and not Path(base).exists():  # the Hub takes its own ids only
        fields |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    return fields


def _read_by(folder: Path) -> dict[str, Any]:
    """How many tokens the model reads, and at which one transformers scores; an adapter leaves both to its base."""
    if not (folder / "config.json").is_file():
        return {"limit": None, "scored_at": None, "padding_closes": False, "has_template": False}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    padding, tokenizer = config.get("pad_token_id"), Tokenizer.load(folder)
    return {
        "limit": config["max_position_embeddings"],
        "scored_at": scored_at(padding, tokenizer),
        "padding_closes": padding in tokenizer.closing_ids(),
        "has_template": (folder / "chat_template.jinja").is_file(),
    }


def _evaluated(evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    if evaluation is None:
        return {}
    metrics = evaluation["metrics"]
    rows = [
        (f"{int(length):,}", metrics["by_length"][length]) for length in sorted(metrics["by_length"], key=int)
    ]
    unanswered = [
        f"{count:,} {name.replace('_', ' ')}"
        for name, count in evaluation["counts"]["outcomes"].items()
        if name != "answered" and count
    ]
    return {
        "accuracies": [(name, row[PAIR_ACCURACY.name]) for name, row in [*rows, ("all", metrics["overall"])]],
        "boundary": _boundary(evaluation.get("boundary")),
        "unanswered": ", ".join(unanswered),
    }


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
