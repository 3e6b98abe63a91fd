"""Makes a full model of an adapter and its base."""

from pathlib import Path
from typing import assert_never

from longrm.errors import ModelError, RunError
from longrm.modeling.adapters import merge_adapter
from longrm.modeling.capabilities import check_trainable
from longrm.modeling.folders import find_model_folders, kind_of
from longrm.modeling.loading import LanguageModel, Scorer, load_language_model, load_scorer, save
from longrm.modeling.model_files import read_config


def merge(source: str | Path, out: str | Path, *, trust_remote_code: bool = False) -> None:
    """Writes a model with its adapter merged in, the scalar head included, in the base's dtype.

    Args:
        source: The folder or Hub id of an adapter.
        out: The folder to write.
        trust_remote_code: Whether code that comes with the base may run.

    Raises:
        ModelError: There is no adapter, its base cannot be loaded, or the sum of both is not finite.
        RunError: The folder is not empty, or cannot be written.
    """
    parts = find_model_folders(source)
    if parts.adapter is None:
        raise ModelError(f"{source} is a full model: there is no adapter to merge")
    if Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise RunError(f"{out} is not empty: choose another place for the merged model")
    check_trainable(read_config(parts.base, str(source), trust_remote_code), str(source))
    model: Scorer | LanguageModel
    match kind_of(source):
        case "discriminative":
            model = load_scorer(source, device="cpu", trust_remote_code=trust_remote_code)
        case "generative":
            model = load_language_model(source, device="cpu", trust_remote_code=trust_remote_code)
        case unknown:
            assert_never(unknown)
    merge_adapter(model.model)
    save(model, out)
