"""`longrm.train`: the trainings of `longrm train`, of models and rows in memory."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from longrm.column_names import Columns
from longrm.config import recipe_file
from longrm.data.memory import Data, named
from longrm.errors import ConfigError, RunError
from longrm.evaluation.read_run import Run
from longrm.reading import file_digest
from longrm.runs.folder import INITIAL_MODEL
from longrm.runs.progress import progress_bars
from longrm.runs.workers import world_size
from longrm.training.settings import TrainingSettings
from longrm.training.train import Callback
from longrm.training.train import train as train_into
from longrm.worlds import WORLDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def train(
    objective: str,
    *,
    model: "str | Path | PreTrainedModel | None" = None,
    data: "Data | Sequence[str | Path] | None" = None,
    out: str | Path,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    eval_data: "Data | None" = None,
    columns: Columns | None = None,
    recipe: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: object,
) -> Run:
    """Trains a reward model or a judge into a run folder, or continues the training there, as `longrm train` does.

    Args:
        objective: "bradley-terry", "prm", "preference", "sft" or "grpo".
        model: A folder or Hub id, or a transformers model in memory with its `tokenizer`. A model in memory stays as it
            is: its weights are first written to `initial_model` in the run folder, from which the training starts and
            continues. Instead of it, `new={...}` starts with a small random model.
        data: Rows with the columns that docs/data.md describes: a file, folder or data set of the Hub, a list of these,
            a `datasets.Dataset`, a `DataFrame` or a list of dicts; or the name of a generated world.
        out: The run folder. The same call continues a killed run, and returns a finished one.
        tokenizer: The tokenizer of a model in memory.
        eval_data: Comparisons that the model in training judges every `eval_steps` steps, and after the last one.
        columns: longrm's names of columns, each with the name in `data`, such as `{"prompt": "question"}`.
        recipe: A TOML file with settings, or the name of one in `longrm recipes`; the arguments change it.
        callbacks: Functions `(step, metrics)`, called in the main process after every step and every evaluation, whose
            metrics begin with `eval_`. One that returns True ends the training, which is then finished. A run that
            continues calls them for the steps after its checkpoint only.
        settings: Settings of `longrm train` (docs/cli.md): by group, as in `optimizer={"learning_rate": 1e-5}`, or by
            their own names if these are unique, as in `learning_rate=1e-5, loss_type="hardest"`.

    Returns:
        The run: `model` is the folder of the trained model, `steps` a data frame of the log.

    Raises:
        LongRMError: With the message that `longrm train` prints.
    """
    out, given = Path(out), dict(settings)
    for name, instead in _TRAINER_ARGUMENTS.items():
        if name in given:
            raise ConfigError(f"{name}: longrm.train has {instead}")
    plain = isinstance(callbacks, list | tuple) and not any(isinstance(one, type) for one in callbacks)
    if not plain or not all(map(callable, callbacks)):
        raise ConfigError("callbacks: must be a list of functions of a step and its metrics")
    if model is None or isinstance(model, str | Path):
        if tokenizer is not None:
            raise ConfigError("tokenizer: only valid with a model in memory; a folder has its own")
        given |= {} if model is None else {"model.path": str(model)}
    else:
        given["model.path"] = _stored(model, tokenizer, out)
    if isinstance(data, list | tuple) and data and all(isinstance(part, str | Path) for part in data):
        parts = [named(part) for part in data]
    else:
        parts = [] if data is None else [named(data)]
    judged = None if eval_data is None else named(eval_data)
    if isinstance(data, str) and data in WORLDS and not Path(data).exists():
        given["data.world.name"] = data
    elif len(parts) == 1:
        given |= {"data.path": str(parts[0])} | ({"data.columns": columns} if columns else {})
    elif parts:
        given["data.sources"] = [{"path": str(part), "columns": columns} for part in parts]
    if judged is not None:
        given["evaluation.settings.bench"] = str(judged)
    given["objective"] = objective.replace("-", "_")
    resolved = TrainingSettings.resolve(None if recipe is None else recipe_file(recipe), given)
    with progress_bars() as progress:
        train_into(resolved, out, progress=progress, callbacks=callbacks)
    return Run(out)


_TRAINER_ARGUMENTS = {
    "args": "its settings as arguments, such as learning_rate=1e-5",
    "train_dataset": "data",
    "eval_dataset": "eval_data",
    "processing_class": "tokenizer",
    "compute_metrics": "METRICS, a registry (CONTRIBUTING.md)",
}
"""Arguments of TRL's trainers."""


def _stored(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | None", out: Path) -> str:
    """Writes a model to the run folder, named by the digest of its files; the same model is written once."""
    if tokenizer is None:
        raise ConfigError("tokenizer: a model in memory needs its tokenizer")
    if hasattr(model, "peft_config"):
        raise ConfigError("model: merge its adapter first, with merge_and_unload()")
    if world_size() > 1:
        raise ConfigError("model: several processes start from a folder or Hub id; save the model first")
    home = out / INITIAL_MODEL
    home.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(dir=home, prefix=".new-"))
    try:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        digest = hashlib.sha256()
        for file in sorted(scratch.iterdir()):
            digest.update(f"{file.name} {file_digest(file, RunError)}\n".encode())
        folder = home / digest.hexdigest()[:16]
        if not folder.exists():
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return str(folder)
