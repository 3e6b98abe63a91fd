"""The card of a trained model, and what `longrm push` uploads: the model's files, and the card with its results.

A card is published. So it has the names, but not the paths, of files and folders on this machine.
"""

import datetime
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from pydantic import TypeAdapter

from longrm import hub, reading
from longrm.config import to_toml
from longrm.data.tokenizing import Tokenizer, scored_at
from longrm.errors import ModelError, RunError
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.evaluation.read_run import Run
from longrm.modeling.folders import ADAPTER, ADAPTER_WEIGHTS, has_mlp_head, weight_files
from longrm.runs.folder import (
    CONFIG,
    FILES,
    MANIFEST,
    SUMMARY,
    check_files,
    installed_versions,
    write_file,
    write_json,
)
from longrm.training.evaluations import EVALUATIONS
from longrm.training.objectives import OBJECTIVES
from longrm.training.settings import TrainingSettings

CARD = "README.md"
CONTEXT = "card.json"
"""The `CardContext` of a merged model, which is stored next to its card and not uploaded."""

_PATH_SETTINGS = ("path", "cache", "haystack")  # always a path on this machine
_FILE_NAME = re.compile(r"\.(jsonl?|csv|parquet|txt|md|jinja2?)$")
_PACKAGES = ("longrm", "torch", "transformers", "peft", "tokenizers")
_COUNTS = {
    "read": "rows read",
    "used": "rows trained on",
    "bad": "omitted: unreadable, or without gold order",
    "tied": "omitted: all responses tied",
    "too_long": "omitted: too long",
    "labeled_bad": "omitted: labeled as bad",
    "without_contrast": "chosen and rejected judgments give the same score",
    "margin": "with a margin between the scores",
    "probability": "with a probability of the gold order",
    "unlabeled": "omitted: no labels of steps that the loss can read",
    "labeled_steps": "steps with a label, trained on",
    "neutral_steps": "neutral steps",
    "unlabeled_steps": "steps without a label",
    "outcomes": "with an outcome only, trained at their end",
}


@dataclass(frozen=True, slots=True)
class CardEvaluation:
    """An evaluation of the model of a card."""

    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    commit: str | None = None  # the commit of its benchmark, if that comes from the Hub
    in_training: bool = False  # the model was evaluated in memory, before it was saved

    @property
    def bench(self) -> str:
        """The benchmark, without the path of its files."""
        return str(without_paths(self.summary["bench"], "bench"))


@dataclass(frozen=True, slots=True)
class CardContext:
    """The facts on a trained model's card that are not in the model's folder."""

    settings: TrainingSettings
    summary: Mapping[str, Any]  # of the training
    evaluations: Sequence[CardEvaluation] = ()
    # What identifies the initial model, as `ModelFolders.origin` returns it.
    origin: Mapping[str, str] = field(default_factory=dict)


def read_evaluation(folder: Path, *, in_training: bool = False) -> CardEvaluation:
    """Reads a finished evaluation; raises `RunError` if the folder has none."""
    run = Run(folder)
    commit = (run.manifest.get("bench") or {}).get("commit")
    return CardEvaluation(run.settings, run.summary.to_dict(), commit, in_training)


def evaluations_of(run: Path, step: int) -> list[CardEvaluation]:
    """The evaluation after a step of a training run, if there is one."""
    folder = run / EVALUATIONS / str(step)
    return [read_evaluation(folder, in_training=True)] if (folder / SUMMARY).exists() else []


def write_card(folder: Path, context: CardContext) -> None:
    """Writes the README.md of a model folder."""
    write_file(folder / CARD, card_text(folder, context))


def card_text(folder: Path, context: CardContext, *, place: str = ".") -> str:
    """The text of the card of a full model or an adapter, valid as a README of the Hub.

    `place` is where the code on the card finds the model: this folder, or its id on the Hub.
    """
    from huggingface_hub import ModelCardData  # slow to import

    settings, origin = context.settings, context.origin
    objective = OBJECTIVES[settings.objective]
    scores, adapter = objective.trains == "scorer", (folder / ADAPTER).is_file()
    path, commit = settings.model.path, origin.get("commit")
    if place != ".":
        name = place.rpartition("/")[2]
    else:
        saved = folder.resolve()
        name = saved.parent.name if saved.name == "model" else saved.name  # of the run, or of the folder

    task = "text-classification" if scores else "text-generation"
    metadata: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": task,
        "tags": ["reward-model", "long-context", "longrm", *(["lora"] if adapter else [])],
    }
    published = without_paths(settings.to_dict())
    # The initial model: an id of the Hub or of ModelScope, or a folder's name; None for random weights.
    base, start = None, "random weights"
    if path is not None:
        identity = hub.split_revision(path)
        on_hub = identity is not None and bool(commit or hub.on_modelscope(path))
        base = identity[0] if identity and on_hub else Path(path).expanduser().resolve().name
        start = f"`{base}` at commit `{commit}`" if commit else f"`{base}`"
        published["model"]["path"] = path if on_hub else base  # an id keeps its revision
        if commit and not hub.on_modelscope(base):
            # The Hub links base_model, so it accepts only ids of its own.
            metadata |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
        # The license of the initial model, if its card is on this machine.
        card = hub.cached_file(base, CARD, commit) if commit else Path(path).expanduser() / CARD
        metadata |= {} if card is None else hub.license_in(card)
    results = [result for one in context.evaluations for result in _eval_results(one, task)]
    if results:
        metadata |= {"model_name": name, "eval_results": results}

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["number"] = "{:,}".format
    versions = [f"{package} {version}" for package, version in installed_versions(_PACKAGES).items()]
    return environment.from_string((files(__package__) / "model_card.md.j2").read_text()).render(
        metadata=ModelCardData(**metadata).to_yaml(),
        name=name,
        place=place,
        start=start,
        base=base,
        commit=commit,
        adapter=adapter,
        scores=scores,
        auto_class="SequenceClassification" if scores else "CausalLM",
        objective=objective,
        loss=settings.loss.loss,
        settings=settings,
        world=settings.data.world,
        sources=[(Path(file.path).name, file.weight) for file in settings.data.files()],
        summary={"accuracy": None, **context.summary},
        counts=_COUNTS,
        evaluations=[_evaluation_context(one) for one in context.evaluations],
        # An adapter is loaded onto a base whose weights are as they were when it was evaluated.
        rounded=settings.model.bf16 and not adapter,
        toml=to_toml(published).strip(),
        versions=", ".join([f"Python {platform.python_version()}", *versions]),
        mlp=has_mlp_head(folder),
        **_reading_context(folder),
    )


def _reading_context(folder: Path) -> dict[str, Any]:
    """The context window, and the token at which transformers reads a score; an adapter leaves both to its base."""
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


def without_paths(value: Any, key: str = "") -> Any:
    """Plain settings for publication: of every file and folder on this machine only the name remains.

    A value that may be an id of the Hub is kept, unless such a folder exists here.
    """
    if isinstance(value, Mapping):
        return {name: without_paths(part, name) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(part, key) for part in value]
    if not isinstance(value, str):
        return value
    # A benchmark may be KIND:PATH, such as file:rows.jsonl.
    kind, colon, rest = value.partition(":") if key == "bench" else ("", "", value)
    if not colon:
        kind, rest = "", value
    is_path = key in _PATH_SETTINGS or rest.startswith(("/", "~", "./", "../")) or _FILE_NAME.search(rest)
    short = 0 < len(rest.encode()) < 256  # a longer text is no file name, and exists() would raise OSError
    unknown = kind and hub.split_revision(rest) is None
    if is_path or unknown or (short and Path(rest).expanduser().exists()):
        return f"{kind}{colon}{Path(rest).name}"
    return value


def _evaluation_context(one: CardEvaluation) -> dict[str, Any]:
    """What the template needs about an evaluation."""
    summary = one.summary
    metrics, counts = summary["metrics"], summary["counts"]
    accuracies = [
        (f"{int(length):,}", metrics["by_length"][length][PAIR_ACCURACY.name])
        for length in sorted(metrics["by_length"], key=int)
    ]
    unanswered = {name: count for name, count in counts["outcomes"].items() if name != "answered" and count}
    measured = None
    if summary.get("measured"):
        tokenizer = summary["measured"]["tokenizer"]
        own = (one.settings.get("probe") or {}).get("tokenizer") is None and tokenizer != "approximate"
        measured = "this model's tokenizer" if own else f"the tokenizer `{without_paths(tokenizer)}`"
    settings = {
        key: value for key, value in one.settings.items() if key not in ("model", "recorded", "remote")
    }
    return {
        "bench": one.bench,
        "comparisons": counts["comparisons"],
        "sampled_from": counts.get("sampled_from"),
        "in_training": one.in_training,
        "accuracies": [*accuracies, ("all", metrics["overall"][PAIR_ACCURACY.name])],
        "measured": measured,
        "boundary": summary.get("boundary"),
        "unanswered": ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in unanswered.items()),
        "toml": to_toml(without_paths(settings)).strip(),
    }


def _eval_results(one: CardEvaluation, task: str) -> Iterator[Any]:
    """The results in the Hub's format: accuracy overall and at every length, with its interval."""
    from huggingface_hub import EvalResult

    metrics, (kind, _, place) = one.summary["metrics"], one.bench.partition(":")
    for length in ("", *sorted(metrics["by_length"], key=int)):
        metric = (metrics["by_length"][length] if length else metrics["overall"])[PAIR_ACCURACY.name]
        if metric["value"] is not None:
            yield EvalResult(
                task_type=task,
                dataset_type=place if one.commit else kind,
                dataset_name=f"{one.bench}, {int(length):,} tokens" if length else one.bench,
                dataset_config=f"{length}_tokens" if length else None,
                dataset_revision=one.commit,
                metric_type="accuracy",
                metric_name=PAIR_ACCURACY.title,
                metric_value=metric["value"],
                metric_args={key: metric[key] for key in ("low", "high", "n", "groups")},
            )


# --- Upload ----------------------------------------------------------------------------------------------------------

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
"""The files of a model; nothing else is uploaded but its card."""


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
    return any(fnmatch(name, pattern) for pattern in _MODEL_FILES)


def training_run(source: Path) -> Path | None:
    """The training run of a path, which is its folder or that of its model; None for a model folder elsewhere."""
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
    """The context for the card of a finished training run."""
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
    further = [_checked_evaluation(path, folder, weights) for path in results]
    context = replace(context, evaluations=[*context.evaluations, *further])
    if (folder / FILES).is_file():
        check_files(folder, digests=True)
    files: dict[str, Path | bytes] = {
        entry.name: entry
        for entry in sorted(folder.iterdir())
        if entry.is_file() and is_model_file(entry.name)
    }
    card = card_text(folder, context, place=identity)
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
