"""A run folder: resolved settings, versions, logs and a summary, made so that a killed run continues."""

import datetime
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm import reading
from longrm.config import Config, changed_settings, to_toml
from longrm.errors import RunError
from longrm.runs.logs import PART
from longrm.runs.scratch import replacing, sweep
from longrm.runs.workers import WorkerGroup

SCHEMA_VERSION = 1
CONFIG, MANIFEST, SUMMARY = "config.toml", "manifest.json", "summary.json"
LOCK = ".lock"
CACHE = "completions.sqlite"  # the cache of a remote model's answers, which are found by what was asked
_CLAIM = (LOCK, CONFIG, MANIFEST)
_logger = logging.getLogger(__name__)
_RECORDED_PACKAGES = ("longrm", "torch", "transformers", "accelerate", "peft", "tokenizers", "numpy", "scipy")


class _Steps(BaseModel):
    """What a step of a synthesis took in, kept and dropped, as its manifest counts it."""

    model_config = ConfigDict(strict=True)

    taken: int = Field(ge=0, alias="in")
    kept: int = Field(ge=0)
    dropped: dict[str, int]


class _Counts(BaseModel):
    model_config = ConfigDict(strict=True)

    inputs: int = Field(ge=0)
    rows: int = Field(ge=0)
    steps: dict[str, _Steps]


class _Manifest(BaseModel):
    """What every manifest holds, and what a synthesis adds that others read."""

    model_config = ConfigDict(strict=True, extra="allow")

    schema_version: Literal[1]
    kind: str
    started: str
    python: str
    machine: str
    versions: dict[str, str]
    counts: _Counts | None = None


_MANIFEST = TypeAdapter(_Manifest)


class RunFolder:
    """The folder that `--out` names, held by one process at a time.

    Opening it with the settings that it already holds continues what is there; other settings are refused
    with the differing keys. Use it as a context manager.

    Attributes:
        path: The folder.
        kind: What kind of run it holds: "evaluation", "training" or "demo".
        continued: Whether an earlier process had already begun this run.
    """

    def __init__(self, path: Path, kind: str, config: Config) -> None:
        self.path = path
        self.kind = kind
        self._config = config
        self._lock: Any = None
        self._made = False
        self.continued = False

    def __enter__(self) -> Self:
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "w", opener=_without_waiting)
        except OSError as error:
            raise RunError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunError(
                f"{self.path} is in use by another process; wait for it or take another --out"
            ) from None
        try:
            sweep(self.path)
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # A part, empty as it may be, is of another process, which may be about to write to it.
            alone = not any(self.path.glob(f"*{PART}*"))
            if error is not None and self._made and alone and not self._work():
                # A run that was refused before it did any work takes back its claim, and what stayed empty.
                for entry in [*self.path.iterdir()]:
                    if entry.is_dir():
                        with suppress(OSError):  # the cache of a judge may be in it
                            entry.rmdir()
                    elif not entry.name.startswith(CACHE):
                        entry.unlink()
                if not any(self.path.iterdir()):
                    self.path.rmdir()
        finally:
            self._lock.close()

    def _claim(self) -> None:
        """Begins the run, or checks that the folder holds the same one."""
        settings = self._config.to_dict()
        if (self.path / MANIFEST).exists() and self._work():
            held = read_manifest(self.path)
            if held["kind"] != self.kind:
                raise RunError(
                    f"{self.path} holds a run of kind '{held['kind']}', not '{self.kind}'; take another --out"
                )
            held_settings = reading.read_toml(self.path / CONFIG, RunError)
            changed = self._changed(held_settings, settings)
            if changed:
                raise RunError(
                    f"{self.path} holds a run with other settings ({'; '.join(changed)}); "
                    "take another --out, or the same settings to continue it"
                )
            self.continued = True
            _logger.info("continuing the %s in %s", self.kind, self.path)
            return
        foreign = self._work()
        if foreign:
            (self.path / LOCK).unlink()
            raise RunError(
                f"{self.path} is not empty and holds no run ({foreign[0]}, ...); take another --out"
            )
        write_file(self.path / CONFIG, to_toml(settings))
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "versions": installed_versions(_RECORDED_PACKAGES),
        }
        write_json(self.path / MANIFEST, manifest)

    def _changed(self, held: dict[str, Any], settings: dict[str, Any]) -> list[str]:
        """The settings that differ from those that the folder holds, of those that must not."""
        # What is a group here and none there, somebody has written: the settings themselves cannot read it.
        torn = {
            name for name in held if isinstance(settings.get(name), dict) and not isinstance(held[name], dict)
        }
        if torn:
            return changed_settings(
                {name: held[name] for name in torn}, {name: settings[name] for name in torn}
            )
        return changed_settings(self._config.defining(held), self._config.defining(settings))

    def _work(self) -> list[str]:
        """What the folder holds beside the claim; a run without any result may be begun anew.

        Cached answers are no result: a run with other settings asks for what it needs, and finds those that fit.
        """
        return sorted(
            entry.name for entry in self.path.iterdir() if entry.name not in _CLAIM and _is_result(entry)
        )

    def record(self, **facts: Mapping[str, Any]) -> None:
        """Adds to the manifest what shows only when the work begins, such as the commit of a model of the Hub.

        Raises:
            RunError: The run was begun with another one.
        """
        held = read_manifest(self.path)
        known = {name: held.get(name) or {} for name in facts}
        both = {name: known[name].keys() & new.keys() for name, new in facts.items()}
        before, now = (
            {name: {key: one[name][key] for key in keys} for name, keys in both.items()}
            for one in (known, facts)
        )
        changed = changed_settings(before, now)
        if changed:
            raise RunError(
                f"{self.path} was begun with something else than there is now ({'; '.join(changed)}); take another "
                "--out; what comes from the Hub stays the same as OWNER/NAME@COMMIT"
            )
        merged = held | {name: {**known[name], **new} for name, new in facts.items() if new}
        if merged != held:
            write_json(self.path / MANIFEST, merged)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json` in one step; its schema is `runs/summary.schema.json`."""
        write_json(self.path / SUMMARY, summary)


@contextmanager
def claimed_once(folder: RunFolder, workers: WorkerGroup) -> Iterator[RunFolder]:
    """A run folder that the main process claims for all; the others touch it after they have waited for it."""
    with folder if workers.is_main_process else nullcontext():
        yield folder


def folder_labels(folders: Sequence[Path]) -> list[str]:
    """Each folder by its last part, or as it was named where that is the same for several."""
    names = [str(folder.resolve().name) for folder in folders]
    return [
        name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)
    ]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        RunError: The folder holds no run, or its manifest was changed.
    """
    manifest = read_json(folder / MANIFEST)
    reading.typed(_MANIFEST, manifest, folder / MANIFEST, RunError)
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that a run wrote.

    Raises:
        RunError: The file is missing or damaged.
    """
    if not os.path.lexists(path.parent):
        raise RunError(f"{path.parent}: there is no such folder; name the folder of a run")
    if not os.path.lexists(path):
        raise RunError(f"{path.parent} holds no {path.name}; is it a finished run folder?")
    return reading.read_json(path, RunError)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object in one step, as `write_file` does."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step, so that no reader ever sees half of it.

    Raises:
        RunError: The file cannot be written; an earlier version is left as it was.
    """
    try:
        with replacing(path) as file:
            # Names of files, which texts may hold, need not be UTF-8; their escapes are valid in JSON, too.
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def keep_umask(file: Path) -> None:
    """Gives a file that a library made for its owner's eyes alone the mode that every new file gets beside it."""
    probe = file.with_name(f".{secrets.token_hex(8)}.part")
    probe.touch()
    file.chmod(stat.S_IMODE(probe.stat().st_mode))
    probe.unlink()


def _is_result(entry: Path) -> bool:
    """Whether a file, or any file in a folder, is not empty and no cache of answers. A link is a result."""
    if entry.is_dir() and not entry.is_symlink():
        return any(map(_is_result, entry.iterdir()))
    return entry.lstat().st_size > 0 and not entry.name.startswith(CACHE)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; a pipe, on which others would have to wait for a reader, is an error."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of the packages that are here."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
