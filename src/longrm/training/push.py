"""What `longrm push` uploads of a trained model: its files, and a card with its results."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from pydantic import TypeAdapter

from longrm import reading
from longrm.errors import ModelError, RunError
from longrm.evaluation.run import Run
from longrm.modeling.folders import ADAPTER, ADAPTER_WEIGHTS, weight_files
from longrm.runs.folder import CONFIG, MANIFEST, write_json
from longrm.runs.promised_files import FILES, check_files
from longrm.training.model_card import (
    CARD,
    FIGURE,
    CardContext,
    CardEvaluation,
    card_text,
    evaluations_of,
    read_evaluation,
)
from longrm.training.settings import TrainingSettings

CONTEXT = "card.json"
"""The `CardContext` of a merged model, which is stored next to its card and not uploaded."""

_MODEL_FILES = [
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *(ADAPTER, ADAPTER_WEIGHTS, "chat_template.jinja", "tokenizer.json", "tokenizer_config.json"),
    *("tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
]
"""The files of a model; nothing else is uploaded but its card and the card's figure."""


@dataclass(frozen=True, slots=True)
class PushedModel:
    """What is uploaded of a trained model."""

    files: dict[str, Path | bytes]  # the path or the content of every file, by its name
    left_out: tuple[str, ...]  # names of other files in the folder
    evaluations: int  # on the card
    card: str

    def sizes(self) -> dict[str, int]:
        """The bytes of every file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


def is_model_file(name: str) -> bool:
    """Whether a file of a repository belongs to a model, judged by its name."""
    return name == FIGURE or any(fnmatch(name, pattern) for pattern in _MODEL_FILES)


def training_run(source: Path) -> Path | None:
    """The training run of a path, which is its folder or that of its model; None for a model folder elsewhere.

    Raises:
        RunError: It is a run of another kind, or an unfinished training.
    """
    own = source.resolve()
    folder = source if (source / MANIFEST).is_file() or own.name != "model" else own.parent
    if not (folder / MANIFEST).is_file():
        return None
    run = Run(folder)
    if run.kind != "training":
        raise RunError(
            f"{folder} is a run of kind '{run.kind}', without a model; give the folder of a training"
        )
    if not (folder / "model").is_dir() or not run.is_finished:
        raise RunError(f"{folder} is not finished: run the same longrm train again")
    return folder


def card_context_of_run(run: Path) -> CardContext:
    """What the card of a finished training run says."""
    opened = Run(run)
    summary = opened.summary.to_dict()
    settings = TrainingSettings.resolve(run / CONFIG)
    evaluations = evaluations_of(run, summary["model_step"])
    return CardContext(settings, summary, evaluations, opened.manifest.get("model") or {})


def save_card_context(folder: Path, context: CardContext) -> None:
    """Stores the context of a merged model's card, so that the model can be pushed without its run."""
    write_json(folder / CONTEXT, TypeAdapter(CardContext).dump_python(context, mode="json"))


def pushed_model(source: Path, identity: str, results: Sequence[Path] = ()) -> PushedModel:
    """Collects what `longrm push` uploads to the Hub as the model `identity`.

    `source` is the folder of a training run, of its model, or of one that `longrm merge` wrote. `results` are run
    folders of finished evaluations of this model, for the card.

    Raises:
        ModelError: The folder has no model, or an adapter of a base on this machine.
        RunError: It is unknown how the model was trained; or an evaluation is unfinished or of another model; or a
            file of the model has changed.
    """
    run = training_run(source)
    folder = source if run is None else run / "model"
    if run is not None:
        context = card_context_of_run(run)
    elif (folder / CONTEXT).is_file():
        stored = reading.read_json(folder / CONTEXT, RunError)
        with reading.reading(folder / CONTEXT, RunError):
            context = TypeAdapter(CardContext).validate_python(stored)
    else:
        raise RunError(
            f"{folder} has no record of its training: give the folder of a training run, or one that longrm merge wrote"
        )
    adapter = (folder / ADAPTER).is_file()
    weights = [folder / ADAPTER_WEIGHTS] if adapter else weight_files(folder)
    if adapter and "commit" not in context.origin:
        raise ModelError(
            f"{folder} is an adapter of a model on this machine, which others cannot load: push the folder that longrm "
            f"merge {source} --out MODEL writes"
        )
    figure = (folder / FIGURE).is_file() and bool(context.evaluations)
    further = [_checked_evaluation(path, folder, weights) for path in results]
    context = replace(context, evaluations=[*context.evaluations, *further])
    if (folder / FILES).is_file():
        check_files(folder, digests=True)
    files: dict[str, Path | bytes] = {
        entry.name: entry
        for entry in sorted(folder.iterdir())
        if entry.is_file() and is_model_file(entry.name) and (entry.name != FIGURE or figure)
    }
    card = card_text(folder, context, figure=figure, place=identity)
    files[CARD] = card.encode()
    left_out = sorted(entry.name for entry in folder.iterdir() if entry.name not in files)
    return PushedModel(files, tuple(left_out), len(context.evaluations), card)


def _checked_evaluation(path: Path, folder: Path, weights: Sequence[Path]) -> CardEvaluation:
    """Reads a complete evaluation of the model in a folder; raises `RunError` for any other run."""
    one = read_evaluation(path)
    counts, model = one.summary.get("counts"), one.settings.get("model")
    if one.summary["kind"] != "evaluation" or counts is None:
        raise RunError(f"--results {path}: a run of kind '{one.summary['kind']}', not an evaluation")
    if model is None:
        raise RunError(f"--results {path}: it scored recorded judgments, which may be of any model")
    if Path(model).expanduser().resolve() != folder.resolve():
        raise RunError(f"--results {path}: an evaluation of {model}, not of {folder}")
    started = datetime.datetime.fromisoformat(Run(path).manifest["started"]).timestamp()
    if max(file.stat().st_mtime for file in weights) > started + 1:  # `started` has whole seconds
        raise RunError(f"--results {path}: {folder} was written after this evaluation; evaluate it again")
    if one.summary.get("shard"):
        raise RunError(f"--results {path}: shard {one.summary['shard']} alone; merge the shards first")
    if counts["outcomes"]["error"]:
        raise RunError(
            f"--results {path}: {counts['outcomes']['error']:,} comparisons ended in errors; rerun it"
        )
    return one
