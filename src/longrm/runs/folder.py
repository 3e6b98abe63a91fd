"""A run folder: settings, versions, logs and a summary, arranged so that a killed run continues."""

import datetime
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from longrm import reading
from longrm.config import Config, changed_settings, to_toml
from longrm.errors import RunError
from longrm.runs.logs import PART
from longrm.runs.scratch import replacing, sweep
from longrm.runs.workers import WorkerGroup

SCHEMA_VERSION = 1
CONFIG, MANIFEST, SUMMARY = "config.toml", "manifest.json", "summary.json"
INITIAL_MODEL = "initial_model"  # a training's copy of a model in memory, written before the run begins
FILES = "files.json"  # sizes and digests of the files of a finished run, to detect later damage
LOCK = ".lock"
CACHE = "completions.sqlite"  # the answers of remote models, keyed by their requests
_logger = logging.getLogger(__name__)
_RECORDED_PACKAGES = ("longrm", "torch", "transformers", "accelerate", "peft", "tokenizers", "numpy", "scipy")


class RunFolder:
    """The folder that `--out` names, used by one process at a time. Use it as a context manager.

    Opening the folder of a run continues it; different settings are an error that names them.

    Attributes:
        path: The folder.
        kind: The kind of run: "evaluation", "training", "demo", ...
        continued: Whether an earlier process began this run.
        continues, restarts: What the same command does after an interrupt, with results and without.
        extended: Whether it began with settings that the new ones extend.
    """

    def __init__(self, path: Path, kind: str, config: Config) -> None:
        self.path = path
        self.kind = kind
        self._config = config
        self._lock: Any = None
        self._is_new = False
        self.continued = self.extended = False
        self.continues = "continues where it stopped"
        self.restarts = "starts again from the beginning, as nothing was finished"

    def __enter__(self) -> Self:
        try:
            self._is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RunError(
                f"{self.path} is in use by another process; wait for it or choose another --out"
            ) from None
        except OSError as error:
            raise RunError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
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
            # A part of a log, even if empty, belongs to another process, which may be about to write to it.
            shared = any(self.path.glob(f"*{PART}*"))
            if error is not None and self._is_new and not shared and not self._results():
                # A run that failed before its first result leaves nothing behind, except for a judge's cached answers.
                for entry in [*self.path.iterdir()]:
                    if entry.is_dir():
                        with suppress(OSError):  # not empty: the cache is in it
                            entry.rmdir()
                    elif not entry.name.startswith(CACHE):
                        entry.unlink()
                if not any(self.path.iterdir()):
                    self.path.rmdir()
            self.explain(error)
        finally:
            self._lock.close()

    def explain(self, error: BaseException | None) -> None:
        """Adds to an interrupt (Ctrl-C, SIGTERM) what the same command does next."""
        if isinstance(error, KeyboardInterrupt):
            kept = self.path.exists() and (self._results() or any(self.path.glob(f"{CACHE}*")))
            error.args = (f"the same command {self.continues if kept else self.restarts}",)

    def _claim(self) -> None:
        """Begins the run, or checks that the folder is of the same run."""
        settings = self._config.to_dict()
        results = self._results()
        if results and not (self.path / MANIFEST).exists():
            (self.path / LOCK).unlink()
            raise RunError(
                f"{self.path} is not empty and not a run ({results[0]}, ...); choose another --out"
            )
        if results:
            kind = read_manifest(self.path)["kind"]
            if kind != self.kind:
                raise RunError(
                    f"{self.path} contains a run of kind '{kind}', not '{self.kind}'; choose another --out"
                )
            with reading.reading(self.path / CONFIG, RunError):
                begun = reading.read_toml(self.path / CONFIG, RunError)
                begun_with = self._config.defining(begun)
            changed = changed_settings(begun_with, self._config.defining(settings))
            self.extended = bool(changed) and self._config.extends(begun)
            if changed and not self.extended:
                raise RunError(
                    f"{self.path} contains a run with other settings ({'; '.join(changed)}); choose another --out, or "
                    "use the same settings to continue it"
                )
            self.continued = True
            _logger.info("continuing the %s in %s", self.kind, self.path)
            return
        write_file(self.path / CONFIG, to_toml(settings))
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "versions": installed_versions(_RECORDED_PACKAGES),
        }
        # Last: a folder with settings but no manifest was left by a kill and is claimed again.
        write_json(self.path / MANIFEST, manifest)

    def _results(self) -> list[str]:
        """The names of entries other than the claim and caches that are not empty; without any, a run may restart."""

        def is_result(entry: Path) -> bool:
            if entry.is_dir() and not entry.is_symlink():
                return any(map(is_result, entry.iterdir()))
            return entry.lstat().st_size > 0 and not entry.name.startswith(CACHE)

        entries = [
            entry
            for entry in self.path.iterdir()
            if entry.name not in (LOCK, CONFIG, MANIFEST, INITIAL_MODEL)
        ]
        return sorted(entry.name for entry in entries if is_result(entry))

    def record(self, **facts: Mapping[str, Any]) -> None:
        """Adds facts to the manifest that must stay the same when the run continues, such as a model's commit."""
        manifest = read_manifest(self.path)
        merged = dict(manifest)
        for name, new in facts.items():
            known = manifest.get(name) or {}
            both = known.keys() & new.keys()
            changed = changed_settings({name: {k: known[k] for k in both}}, {name: {k: new[k] for k in both}})
            if changed:
                raise RunError(
                    f"{self.path} was begun with other versions ({'; '.join(changed)}); choose another --out, or pin a "
                    "Hub repository as OWNER/NAME@COMMIT"
                )
            if new:
                merged[name] = {**known, **new}
        if merged != manifest:
            write_json(self.path / MANIFEST, merged)

    def extend(self, **facts: Any) -> None:
        """Gives the run its new settings, with which it is unfinished; the manifest keeps the old ones."""
        manifest = read_manifest(self.path)
        earlier = reading.read_toml(self.path / CONFIG, RunError)
        known = [one for one in manifest.get("extended", []) if one["settings"] != earlier]
        write_json(self.path / MANIFEST, manifest | {"extended": [*known, {**facts, "settings": earlier}]})
        (self.path / SUMMARY).unlink(missing_ok=True)
        write_file(self.path / CONFIG, to_toml(self._config.to_dict()))  # last: a kill before it is no harm

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json` in one step; its schema is `runs/summary.schema.json`."""
        write_json(self.path / SUMMARY, summary)


@contextmanager
def claimed_once(folder: RunFolder, workers: WorkerGroup) -> Iterator[RunFolder]:
    """A run folder that the main process claims for all; the others must wait for it before they use it."""
    with folder if workers.is_main_process else nullcontext():
        try:
            yield folder
        except KeyboardInterrupt as error:  # which the first process that it reaches reports
            folder.explain(error)
            raise


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run folder; `RunError` if the folder is not a run."""
    manifest = read_json(folder / MANIFEST)
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise RunError(f"{folder / MANIFEST}, field 'schema_version': must be {SCHEMA_VERSION}")
    return manifest


def trained_model(folder: Path) -> Path:
    """The folder of a training run's model; any other folder as it is."""
    model = folder / "model"
    return model if model.is_dir() and (folder / MANIFEST).is_file() else folder


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that a run wrote; `RunError` if the file is missing or damaged."""
    if not path.exists():
        raise RunError(f"{path.parent} has no {path.name}; it must be the folder of a run")
    return reading.read_json(path, RunError)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object in one step; see `write_file`."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step; on an error (`RunError`) the earlier version stays."""
    try:
        with replacing(path) as file:
            # Texts may contain file names that are not UTF-8; backslash escapes are valid in JSON.
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def record_files(folder: Path, paths: Iterable[Path]) -> None:
    """Writes the sizes and SHA-256 digests of finished files into `files.json` in a folder above them."""
    record = {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "sha256": reading.file_digest(path, RunError),
        }
        for path in sorted(paths)
    }
    write_json(folder / FILES, record)


def check_files(folder: Path, *, digests: bool = False) -> list[str]:
    """Compares files with `files.json`, their sizes and optionally digests, and returns their names.

    A missing or different file is a `RunError`.
    """
    record = read_json(folder / FILES)
    with reading.reading(folder / FILES, RunError):
        written = {name: (entry["bytes"], entry["sha256"]) for name, entry in record.items()}
    for name, (size, digest) in written.items():
        path = folder / name
        if not path.is_file():
            problem = "is missing"
        elif path.stat().st_size != size:
            problem = f"has {path.stat().st_size:,} bytes, not {size:,} as written"
        elif digests and reading.file_digest(path, RunError) != digest:
            problem = "has other contents than were written (SHA-256 differs)"
        else:
            continue
        raise RunError(
            f"{path} {problem}; restore it or choose another --out (if you changed it on purpose, remove "
            f"{folder / FILES})"
        )
    return list(written)


def keep_umask(file: Path) -> None:
    """Gives a file that a library made with mode 0600 the mode of a new file."""
    probe = file.with_name(f".{secrets.token_hex(8)}.part")
    probe.touch()
    file.chmod(stat.S_IMODE(probe.stat().st_mode))
    probe.unlink()


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that are installed."""
    versions = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
