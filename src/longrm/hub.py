"""Models and data sets of the Hugging Face Hub: OWNER/NAME, or OWNER/NAME@REVISION for a branch, a tag or a commit."""

import re
from collections.abc import Sequence
from pathlib import Path

from longrm.errors import LongRMError, first_line

_ID = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def split_revision(source: str) -> tuple[str, str | None] | None:
    """The id and the revision, if one is named; None for what can be no id of the Hub."""
    found = _ID.fullmatch(source)
    return None if found is None else (found[1], found[2])


def fetch(
    source: str, patterns: Sequence[str], error_type: type[LongRMError], *, data_set: bool = False
) -> Path:
    """Downloads files of the Hub unless the cache has them; returns their folder, which is named by their commit.

    Where there is no such model, or data set if that is meant, `error_type` is raised.
    """
    import huggingface_hub  # slow to import, and needed for the Hub only

    found = split_revision(source)
    assert found is not None, "callers know that it is an id"
    identity, revision = found
    kind = "dataset" if data_set else "model"
    try:
        folder = huggingface_hub.snapshot_download(
            identity, repo_type=kind, revision=revision, allow_patterns=list(patterns)
        )
    except (OSError, ValueError) as error:  # all of the Hub's errors descend from these
        raise error_type(
            f"{source}: there is no such file or folder, nor can it be had from the Hub: {first_line(error)}"
        ) from None
    return Path(folder)


def is_cached(identity: str, file: str, revision: str | None = None) -> bool:
    """Whether the Hub's cache holds a file of a model; False for what can be no id of the Hub."""
    if split_revision(identity) is None:
        return False
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(identity, file, revision=revision), str)


def commit_of(folder: Path) -> str | None:
    """The commit that a folder of the Hub's cache holds; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else None
