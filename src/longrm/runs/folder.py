"""A run folder: resolved settings, versions, logs and a summary, made so that a killed run continues."""

import datetime
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from longrm.config import Config, differences, to_toml
from longrm.errors import RunError
from longrm.runs.parts import PART
from longrm.runs.scratch import replacing, sweep

SCHEMA_VERSION = 1
CONFIG, MANIFEST, SUMMARY = "config.toml", "manifest.json", "summary.json"
_logger = logging.getLogger(__name__)
_RECORDED_PACKAGES = ("longrm", "torch", "transformers", "accelerate", "peft", "tokenizers", "numpy", "scipy")


class RunFolder:
    """The folder that `--out` names, held by one process at a time.

    Opening it with the settings that it already holds continues what is there; other settings are refused
    with the differing keys. Use it as a context manager.

    Attributes:
        path: Where the folder lies.
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
            self._lock = (self.path / ".lock").open("w")
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
        # A part, empty as it may be, is of another process, which may be about to write to it.
        alone = not any(self.path.glob(f"*{PART}*"))
        if error is not None and self._made and alone and not self._work():
            self._withdraw()
        self._lock.close()

    def _withdraw(self) -> None:
        """Takes back the claim of a run that was refused before it did any work, and files that stayed empty."""
        for entry in [*self.path.iterdir()]:
            if entry.name in (CONFIG, MANIFEST, ".lock") or (entry.is_file() and not entry.stat().st_size):
                entry.unlink()
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def _claim(self) -> None:
        """Begins the run, or checks that the folder holds the same one."""
        settings = self._config.to_dict()
        if (self.path / MANIFEST).exists() and self._work():
            held = read_manifest(self.path)
            if held["kind"] != self.kind:
                raise RunError(
                    f"{self.path} holds a run of kind '{held['kind']}', not '{self.kind}'; take another --out"
                )
            held_settings = _read_settings(self.path)
            changed = differences(self._config.defining(held_settings), self._config.defining(settings))
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
            (self.path / ".lock").unlink()
            raise RunError(
                f"{self.path} is not empty and holds no run ({foreign[0]}, ...); take another --out"
            )
        write_file(self.path / CONFIG, to_toml(settings))
        write_json(self.path / MANIFEST, _manifest(self.kind))

    def _work(self) -> list[str]:
        """What the folder holds beside the claim; a run that recorded nothing may be begun anew."""
        own = (".lock", CONFIG, MANIFEST)
        return sorted(entry.name for entry in self.path.iterdir() if entry.name not in own and _size(entry))

    def record(self, **told: Mapping[str, Any]) -> None:
        """Adds to the manifest what shows only when the work begins, such as the commit of a model of the Hub.

        Raises:
            RunError: The run was begun with another one.
        """
        held = read_manifest(self.path)
        known = {name: held.get(name) or {} for name in told}
        both = {name: known[name].keys() & new.keys() for name, new in told.items()}
        before, now = (
            {name: {key: one[name][key] for key in keys} for name, keys in both.items()}
            for one in (known, told)
        )
        changed = differences(before, now)
        if changed:
            raise RunError(
                f"{self.path} was begun with something else than there is now ({'; '.join(changed)}); take another "
                "--out; what comes from the Hub stays the same as OWNER/NAME@COMMIT"
            )
        merged = held | {name: {**known[name], **new} for name, new in told.items() if new}
        if merged != held:
            write_json(self.path / MANIFEST, merged)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json` in one step; its schema is `runs/summary.schema.json`."""
        write_json(self.path / SUMMARY, summary)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder.

    Raises:
        RunError: The folder holds no run.
    """
    manifest = read_json(folder / MANIFEST)
    if "kind" not in manifest:
        raise RunError(f"{folder / MANIFEST} is not the manifest of a run: it names no kind")
    return manifest


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        RunError: The run has no summary yet, or one of another schema version.
    """
    summary = read_json(folder / SUMMARY)
    if summary.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"{folder / SUMMARY} has schema version {summary.get('schema_version')}, not {SCHEMA_VERSION}"
        )
    return summary


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that a run wrote.

    Raises:
        RunError: The file is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no {path.name}; is it a finished run folder?") from None
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} holds no JSON object")
    return value


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
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def _size(entry: Path) -> int:
    """Bytes of a file; a folder counts as one if it holds anything."""
    return int(any(entry.iterdir())) if entry.is_dir() else entry.stat().st_size


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"cannot read the settings of the run in {folder}: {error}") from None


def _manifest(kind: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": _installed_versions(),
    }


def _installed_versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
