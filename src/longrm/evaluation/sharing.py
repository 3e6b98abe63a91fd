"""One evaluation or one file of scores, shared out over the processes that a launcher has started."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from longrm.errors import ConfigError
from longrm.runs.folder import RunFolder
from longrm.runs.processes import Processes, launched


def refuse_endpoint(model: str | None, way: str) -> None:
    """Refuses to share out the questions to a server, whose concurrency and budget one process keeps.

    Raises:
        ConfigError: The model is behind HTTP.
    """
    if model is not None and model.removeprefix("compress:").startswith("openai:"):
        raise ConfigError(
            f"{model} is a server, which one process asks many questions at a time (remote.concurrency); "
            f"leave {way} away"
        )


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that the launcher has started; this one alone where there is no launcher.

    Raises:
        ConfigError: The launcher does not say who is who, or there are more processes than devices.
        RunError: Another process is gone.
    """
    if launched() == 1:
        yield Processes()
        return
    from longrm.modeling.processes import join  # torch is loaded where a launcher of its own has started us

    with join() as place:
        yield place


@contextmanager
def claimed(folder: RunFolder, place: Processes) -> Iterator[RunFolder]:
    """A run folder that the first process claims, for all; the others touch it after they have waited for it."""
    with folder if place.leads else nullcontext():
        yield folder
