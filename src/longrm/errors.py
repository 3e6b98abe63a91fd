"""The errors that a user can cause."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec


class LongRMError(Exception):
    """The base class: the command line prints its message as one line and exits with status 1."""


class ConfigError(LongRMError, ValueError):
    """An unknown key, a wrong value, or settings that do not go together."""


class ContextLengthError(ConfigError):
    """A generated context cannot be as short as requested."""


class DataError(LongRMError, ValueError):
    """A file or row of data that cannot be read."""


class ModelError(LongRMError, ValueError):
    """A model or tokenizer that cannot be loaded, or an unsupported architecture."""


class RunError(LongRMError):
    """A run that cannot continue: its folder is unusable, its budget spent, its server unreachable."""


class TrainingError(LongRMError):
    """Training that cannot succeed: NaN, or a loss that does not fall."""


class MissingPackageError(LongRMError, ImportError):
    """A package of an extra is not installed; the message names the command that installs it."""


_EXTRAS = {
    "local": ("torch", "accelerate", "peft", "psutil", "safetensors", "jaxtyping"),
    "report": ("altair", "vl_convert"),
    "synthesis": ("datasketch", "math_verify", "rapidfuzz", "sacrebleu"),
    "attribution": ("sklearn",),
    "quantize": ("bitsandbytes",),
    "ray": ("ray",),
    "modelscope": ("modelscope",),
    "serve": ("fastapi", "starlette", "uvicorn", "prometheus_client"),
}
"""The optional dependencies of pyproject.toml, by the names under which their packages are imported."""


def missing_package(module: str, user: str) -> MissingPackageError:
    """The error for a missing module of an extra that `user` needs."""
    package = module.partition(".")[0]
    extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), "all")
    # longrm is on no package index, so `pip install 'longrm[...]'` would find nothing.
    return MissingPackageError(
        f"{user} needs the package '{package}', which is not installed; in your clone of longrm, run "
        f"pip install '.[{extra}]'"
    )


def require(*packages: str, user: str) -> None:
    """Raises `MissingPackageError` before any work if one of the packages is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise missing_package(package, user)


@contextmanager
def importing(user: str) -> Iterator[None]:
    """Turns a failed import of an extra's package into a `MissingPackageError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        if not any(name.partition(".")[0] in packages for packages in _EXTRAS.values()):
            raise
        raise missing_package(name, user) from error


def nearest(name: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or all of them."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
