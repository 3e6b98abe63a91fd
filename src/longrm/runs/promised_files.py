"""`files.json`: sizes and digests of the files of a finished run, to detect later damage."""

from collections.abc import Iterable
from pathlib import Path

from longrm.errors import RunError
from longrm.reading import file_digest, reading
from longrm.runs.folder import read_json, write_json

FILES = "files.json"


def record_files(folder: Path, paths: Iterable[Path]) -> None:
    """Writes the sizes and SHA-256 digests of finished files into `files.json` in a folder above them."""
    record = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_digest(path, RunError)}
        for path in sorted(paths)
    }
    write_json(folder / FILES, record)


def check_files(folder: Path, *, digests: bool = False) -> list[str]:
    """Compares files with `files.json`: their sizes and optionally digests; returns their names.

    Raises:
        RunError: There is no `files.json`, or a file is missing or differs from it.
    """
    record = read_json(folder / FILES)
    with reading(folder / FILES, RunError):
        written = {name: (entry["bytes"], entry["sha256"]) for name, entry in record.items()}
    for name, (size, digest) in written.items():
        path = folder / name
        if not path.is_file():
            problem = "is missing"
        elif path.stat().st_size != size:
            problem = f"has {path.stat().st_size:,} bytes, not {size:,} as written"
        elif digests and file_digest(path, RunError) != digest:
            problem = "has other contents than were written (SHA-256 differs)"
        else:
            continue
        raise RunError(
            f"{path} {problem}; restore it or choose another --out (if you changed it on purpose, remove "
            f"{folder / FILES})"
        )
    return list(written)
