"""Models and data sets of the Hugging Face Hub (OWNER/NAME) and of ModelScope (modelscope:OWNER/NAME).

OWNER/NAME@REVISION names a branch, a tag or a commit.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longrm.errors import ConfigError, LongRMError, RunError, first_line, missing_package

# huggingface_hub is slow to import, and modelscope is optional: they are imported in the functions that need them.

_MODELSCOPE = "modelscope:"
_ID = re.compile(rf"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?|{_MODELSCOPE}[\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The meanings of the Hub's statuses for an upload.
_REJECTED = {
    401: "the Hub rejected the token (hf auth login, or HF_TOKEN)",
    403: "the token may not write there; use one with write access, and your own user or organization",
    404: "no such repository or owner, or the token has no access",
}


def split_revision(source: str) -> tuple[str, str | None] | None:
    """The id and the revision, if one is named; None if it is not an id. Those of ModelScope keep their prefix."""
    found = _ID.fullmatch(source)
    return None if found is None else (found[1], found[2])


def missing_part(source: str) -> str | None:
    """What is missing from a name with `modelscope:` or `@` to be an id; None for any other name."""
    if split_revision(source) is not None:
        return None
    if on_modelscope(source):
        return f"needs an owner and a name: {_MODELSCOPE}OWNER/NAME, or {_MODELSCOPE}OWNER/NAME@REVISION"
    if source.endswith("@") and split_revision(source[:-1]) is not None:
        return "the revision behind @ is missing: name a branch, a tag or a commit, or omit the @"
    return None


def on_modelscope(source: str) -> bool:
    """Whether a name is that of a model or data set of ModelScope."""
    return source.startswith(_MODELSCOPE)


def fetch(
    source: str, patterns: Sequence[str], error_type: type[LongRMError], *, data_set: bool = False
) -> Path:
    """Downloads the files of an id unless the cache has them; returns their folder, which is named by their commit.

    A folder of ModelScope is named by the requested revision, which is a commit only if one was named. `error_type` is
    raised if the files cannot be downloaded.
    """
    found = split_revision(source)
    assert found is not None, "callers pass ids"
    identity, revision = found
    kind = "dataset" if data_set else "model"
    where, instead = "the Hub", ", or set HF_ENDPOINT to a mirror"
    try:
        if on_modelscope(source):
            where, instead = "ModelScope", ""
            import modelscope

            name = identity.removeprefix(_MODELSCOPE)
            return Path(
                modelscope.snapshot_download(
                    name, revision=revision, repo_type=kind, allow_patterns=[*patterns]
                )
            )
        import huggingface_hub

        return Path(
            huggingface_hub.snapshot_download(
                identity, repo_type=kind, revision=revision, allow_patterns=[*patterns]
            )
        )
    except ImportError:
        raise missing_package("modelscope", source) from None
    except Exception as error:  # of two clients, each with errors of its own and of its HTTP library
        raise error_type(
            f"{source}: no such file or folder, and the download from {where} failed: "
            f"{first_line(error).rstrip('.')}; check the name and the network, name a local folder{instead}"
        ) from None


def cached_file(identity: str, file: str, revision: str | None) -> Path | None:
    """A file of a model at a revision; None unless the Hub's cache has it."""
    if split_revision(identity) is None or on_modelscope(identity):
        return None
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(identity, file, revision=revision)
    return Path(found) if isinstance(found, str) else None


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in the Hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else None


def license_in(card: Path) -> dict[str, str]:
    """The license in a local model card, under the Hub's names; empty if it has none."""
    if not card.is_file():
        return {}
    import huggingface_hub

    try:
        data = huggingface_hub.ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # a third party's card may have any content
        return {}
    return {name: data[name] for name in ("license", "license_name", "license_link") if data.get(name)}


@dataclass(frozen=True, slots=True)
class Upload:
    """The result of an upload.

    Attributes:
        url: Where the model is.
        commit: The new commit; None if the same files were there.
        was_there: Whether the branch had files of a model before.
        removed: Files of the earlier model that this one lacks, and that the commit removed.
    """

    url: str
    commit: str | None
    was_there: bool
    removed: tuple[str, ...]


def check_new_id(identity: str) -> None:
    """Raises `ConfigError` unless it is OWNER/NAME, as the Hub accepts it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(identity)
        problem = "" if identity.count("/") == 1 else "it needs an owner and a name"
    except HFValidationError as error:
        problem = first_line(error)
    if problem:
        raise ConfigError(f"{identity!r} is not an id of the Hub (OWNER/NAME): {problem}")


def upload(
    identity: str,
    files: Mapping[str, Path | bytes],
    *,
    stale: Callable[[str], bool],
    private: bool,
    revision: str | None,
    message: str,
) -> Upload:
    """Uploads the files of a model in one commit; creates the repository and the branch if necessary.

    Args:
        identity: OWNER/NAME.
        files: The files by their names there.
        stale: Whether a file that is there, and not among these, belongs to the model that they replace.
        private: Whether the repository is private.
        revision: The branch; the main one by default.
        message: The message of the commit.

    Raises:
        RunError: There is no token, the Hub cannot be reached or rejects the upload, or a public repository exists
            although it is to be private.
    """
    import huggingface_hub
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    if huggingface_hub.get_token() is None:
        raise RunError(f"{identity}: no token for the Hub: run hf auth login, or set HF_TOKEN")
    api = huggingface_hub.HfApi()
    try:
        api.create_repo(identity, private=private or None, exist_ok=True)
        if private and not api.model_info(identity).private:
            raise RunError(f"{identity} exists and is public: make it private on the Hub, or omit --private")
        if revision is not None:
            api.create_branch(identity, branch=revision, exist_ok=True)
        before = api.model_info(identity, revision=revision).sha
        there = api.list_repo_files(identity, revision=revision)
        removed = tuple(name for name in there if stale(name) and name not in files)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationDelete(name) for name in removed),
            *(CommitOperationAdd(name, content) for name, content in files.items()),
        ]
        done = api.create_commit(identity, operations, commit_message=message, revision=revision)
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = _REJECTED.get(status, f"status {status}, {first_line(error)}")
        raise RunError(f"{identity}: the upload was rejected: {reason}") from None
    except LongRMError:
        raise
    except Exception as error:  # of its client's HTTP library, which differs from version to version
        reason = first_line(error.__cause__ or error)
        where = huggingface_hub.constants.ENDPOINT
        raise RunError(f"{identity}: the upload to {where} failed, and can be repeated: {reason}") from None
    tree = f"/tree/{revision}" if revision is not None else ""
    commit = done.oid if done.oid != before else None
    return Upload(f"{api.endpoint}/{identity}{tree}", commit, any(map(stale, there)), removed)
