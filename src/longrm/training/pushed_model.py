"""A trained model as it goes to the Hub: its files, and the card with what was measured of it."""

import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from longrm import reading
from longrm.errors import ModelError, RunError
from longrm.evaluation.summaries import parse_summary, read_summary
from longrm.modeling.folders import ADAPTER, ADAPTER_WEIGHTS, weight_files
from longrm.runs.folder import CONFIG, MANIFEST, SUMMARY, read_manifest, write_json
from longrm.runs.promised_files import FILES, check_files
from longrm.training.card_results import CardEvaluation, evaluations_of, read_evaluation
from longrm.training.model_card import CARD, FIGURE, CardFacts, card_text
from longrm.training.objectives import OBJECTIVES

FACTS = "card.json"
"""What the card of a merged model is made from, which lies beside it and is not uploaded."""

_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    ADAPTER,
    ADAPTER_WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)
"""The files of a model; nothing else is uploaded but its card and the card's figure."""


_SETTINGS = ("config.json", "generation_config.json", ADAPTER, "tokenizer_config.json")


class _Facts(BaseModel):
    """What `card.json` holds."""

    model_config = ConfigDict(extra="forbid")

    settings: dict[str, Any]
    summary: dict[str, Any]
    evaluations: list[CardEvaluation]
    origin: dict[str, str]


_FACTS = TypeAdapter(_Facts)


@dataclass(frozen=True, slots=True)
class PushedModel:
    """What is uploaded of a trained model.

    Attributes:
        folder: Its folder.
        files: What is uploaded, by its name.
        left_out: Names of what else lies in the folder.
        evaluations: How many evaluations the card tells of.
    """

    folder: Path
    files: dict[str, Path | bytes]
    left_out: tuple[str, ...]
    evaluations: int

    @property
    def card(self) -> str:
        """The text of the card."""
        text = self.files[CARD]
        assert isinstance(text, bytes), "it is made here"
        return text.decode()

    def sizes(self) -> dict[str, int]:
        """The bytes of every file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


def is_model_file(name: str) -> bool:
    """Whether a file of a repository belongs to the model that it holds, as its name says."""
    return name == FIGURE or any(fnmatch(name, pattern) for pattern in _MODEL_FILES)


def training_run(source: Path) -> Path | None:
    """The training run that a path names, as its folder or that of its model; None for a model folder elsewhere.

    Raises:
        RunError: It is a run of another kind, or its training has not ended.
    """
    own = source.resolve()
    run = source if (source / MANIFEST).is_file() or own.name != "model" else own.parent
    if not (run / MANIFEST).is_file():
        return None
    kind = read_manifest(run)["kind"]
    if kind != "training":
        raise RunError(f"{run} holds a run of kind '{kind}', and no model: give the folder of a training")
    if not (run / "model").is_dir() or not (run / SUMMARY).is_file():
        raise RunError(f"{run} has no model yet: let its training end first, with the same longrm train")
    return run


def facts_of_run(run: Path) -> CardFacts:
    """What a finished training run tells of its model."""
    summary = read_summary(run)
    settings = OBJECTIVES[summary["objective"]].settings.resolve(run / CONFIG)
    evaluations = evaluations_of(run, summary["model_step"])
    return CardFacts(settings, summary, evaluations, read_manifest(run).get("model") or {})


def keep_facts(folder: Path, facts: CardFacts) -> None:
    """Writes what the card of a merged model is made from beside it, so that it can be pushed without its run."""
    plain = {
        "settings": facts.settings.to_dict(),
        "summary": dict(facts.summary),
        "evaluations": [asdict(one) for one in facts.evaluations],
        "origin": dict(facts.origin),
    }
    write_json(folder / FACTS, plain)


def pushed_model(source: Path, identity: str, results: Sequence[Path] = ()) -> PushedModel:
    """What `longrm push` uploads of a trained model, with its card.

    Args:
        source: The folder of a training run, of its model, or of one that `longrm merge` wrote.
        identity: What the model will be called on the Hub.
        results: Run folders of finished evaluations of this very model, whose results the card has too.

    Raises:
        ModelError: The folder holds no model, or an adapter of a base that nobody else has.
        RunError: Nothing is known of how it was trained, or an evaluation is not finished or of another model, or a
            file is not what was written.
    """
    run = training_run(source)
    folder = source if run is None else run / "model"
    facts = _facts(folder) if run is None else facts_of_run(run)
    adapter = (folder / ADAPTER).is_file()
    weights = [folder / ADAPTER_WEIGHTS] if adapter else weight_files(folder)
    if adapter and "commit" not in facts.origin:
        raise ModelError(
            f"{folder} is an adapter of a model on this machine, which nobody else could load: merge it "
            f"(longrm merge {source} --out MODEL) and push MODEL"
        )
    further = [_judged(place, folder, weights) for place in results]
    figure = (folder / FIGURE).is_file() and bool(facts.evaluations)
    facts = replace(facts, evaluations=[*facts.evaluations, *further])
    files: dict[str, Path | bytes] = {
        entry.name: entry
        for entry in sorted(folder.iterdir())
        if entry.is_file() and is_model_file(entry.name) and (entry.name != FIGURE or figure)
    }
    _check_places(folder)
    if (folder / FILES).is_file():
        check_files(folder, digests=True)
    files[CARD] = card_text(folder, facts, figure=figure, place=identity).encode()
    left_out = sorted(entry.name for entry in folder.iterdir() if entry.name not in files)
    return PushedModel(folder, files, tuple(left_out), len(facts.evaluations))


def _check_places(folder: Path) -> None:
    """Refuses a model whose settings tell of a file or folder of this machine, as some programs write them."""
    for name in _SETTINGS:
        if (folder / name).is_file():
            for place in _absolute(reading.read_json(folder / name, ModelError)):
                raise ModelError(
                    f"{folder / name} names {reading.short(place)} of this machine: take it out of there"
                )


def _absolute(value: Any) -> Iterator[str]:
    """The texts among JSON values that are absolute paths of something that is there."""
    if isinstance(value, str) and value.startswith("/") and os.path.exists(value):
        yield value
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in below:
        yield from _absolute(part)


def _facts(folder: Path) -> CardFacts:
    if not (folder / FACTS).is_file():
        raise RunError(
            f"{folder} does not tell how it was trained: give the folder of a training run, or of what longrm merge "
            "makes of one"
        )
    held = reading.typed(_FACTS, reading.read_json(folder / FACTS, RunError), folder / FACTS, RunError)
    try:
        parse_summary(held.summary)
        for one in held.evaluations:
            parse_summary(one.summary)
    except ValueError as error:
        raise RunError(f"{folder / FACTS}: {reading.short(str(error))}; merge the model again") from None
    settings = OBJECTIVES[held.summary["objective"]].settings.resolve(overrides=held.settings)
    return CardFacts(settings, held.summary, held.evaluations, held.origin)


def _judged(place: Path, folder: Path, weights: Sequence[Path]) -> CardEvaluation:
    """An evaluation of the model in a folder; one that is of another model, or judged a part alone, is refused."""
    one = read_evaluation(place)
    counts, judged = one.summary.get("counts"), one.settings.get("model")
    if one.summary["kind"] != "evaluation" or counts is None:
        raise RunError(
            f"--results {place}: it holds a run of kind '{one.summary['kind']}', and no evaluation"
        )
    if judged is None:
        raise RunError(f"--results {place}: it scored recorded judgments, which may be of any model")
    if Path(judged).expanduser().resolve() != folder.resolve():
        raise RunError(f"--results {place}: it judged with {judged}, and {folder} is pushed")
    started = datetime.datetime.fromisoformat(read_manifest(place)["started"]).timestamp()
    if max(file.stat().st_mtime for file in weights) > started + 1:  # it is written in whole seconds
        raise RunError(
            f"--results {place}: it judged before these weights of {folder} were written: evaluate again"
        )
    if one.summary.get("shard"):
        raise RunError(f"--results {place}: it is shard {one.summary['shard']} alone: merge the shards first")
    if counts["outcomes"]["error"]:
        raise RunError(
            f"--results {place}: {counts['outcomes']['error']:,} comparisons ended in errors: run it again"
        )
    return one
