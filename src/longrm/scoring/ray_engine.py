"""Scores rows on the workers of a Ray cluster: Ray Data streams batches to actors, each of which holds the model.

The cluster is that of RAY_ADDRESS, or one on this machine that lives as long as the scoring. A worker that is lost is
restarted, and its rows are scored again; rows that kill worker after worker end in errors.

Objects between the processes of one run are pickled, as Ray does with everything it sends; no file is read this way.
"""

import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longrm import reward_models
from longrm.data import ComparisonReader
from longrm.errors import ConfigError, LongRMError, RunError, first_line, importing
from longrm.types import Outcome

if TYPE_CHECKING:
    from longrm.scoring.scored_file import ScoreBatch, ScoreRecord, ScoreSettings

# Batches travel to a worker together up to this size, some 16,000 tokens of text: Ray takes about 30 ms for a block,
# and a killed run loses one for each worker.
_BLOCK_BYTES = 1 << 16

# Size of the object store, which holds what waits for a worker: rows are not read further ahead.
_STORE_BYTES = 1 << 29

_CONNECT_SECONDS = 10.0

# A batch that has killed this many workers is not tried again.
_MAX_TRIES = 4


def scored_by_ray(
    model: str,
    settings: "ScoreSettings",
    reading: ComparisonReader,
    done: Set[int],
    batches: "Callable[[Iterable[Any]], Iterator[ScoreBatch]]",
    score: "Callable[[ScoreBatch, reward_models.RewardModel], list[ScoreRecord]]",
    record: "type[ScoreRecord]",
) -> "Generator[list[ScoreRecord]]":
    """Scores every row that is not done, in any order, by the functions with which one process would.

    A process on this machine reads the rows, and each worker loads the model. By default there is one worker per GPU,
    or one per CPU where there is no GPU.
    """
    workers = settings.workers
    address = os.environ.get("RAY_ADDRESS", "")  # of a cluster that the user has started
    with _cluster(address):
        import ray.data

        resources = ray.cluster_resources()
        gpus, cpus = (int(resources.get(kind, 0)) for kind in ("GPU", "CPU"))
        if model.removeprefix("compress:").startswith(("baseline:", "simulated:")):
            gpus = 0  # these do not use any
        # More workers would wait for a device without end; a cluster may still grow.
        if workers is not None and workers > (gpus or cpus) and not address:
            devices = f"{gpus} GPUs" if gpus else f"{cpus} CPUs"
            raise ConfigError(f"--workers {workers}: this machine has {devices}, and every worker needs one")
        context = ray.data.DataContext.get_current()
        context.target_max_block_size = _BLOCK_BYTES
        context.enable_progress_bars = False
        home = os.getcwd()
        read = ray.data.from_items([0]).map_batches(
            _read,
            fn_kwargs={"batches": batches, "reading": reading, "done": done, "home": home},
            num_cpus=0,  # the workers may use all there are
            label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
        )
        scored = read.map_batches(
            _Worker,
            fn_constructor_args=(
                model,
                settings,
                score,
                record,
                home,
                ray.remote(num_cpus=0)(_Starts).remote(),
            ),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=workers or gpus or cpus),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in scored.iter_rows():
                records = pickle.loads(row["records"])
                if isinstance(records, LongRMError):
                    raise records
                yield records
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise RunError(
                f"the workers of Ray failed: {last}; scores are kept, the same command continues"
            ) from None


def _read(
    _: Mapping[str, Any],
    *,
    batches: "Callable[[Iterable[Any]], Iterator[ScoreBatch]]",
    reading: ComparisonReader,
    done: Set[int],
    home: str,
) -> Iterator[dict[str, Any]]:
    """Streams the batches that have a row without scores."""
    _enter(home)
    try:
        for batch in batches(reading):
            if not all(number in done for number, _ in batch):
                yield {"batch": [pickle.dumps(batch)]}
    except LongRMError as error:  # raised here, it would arrive as a text of Ray's
        yield {"batch": [pickle.dumps(error)]}


class _Starts:
    """Counts how often each batch was started without being finished: it may be the batch that kills its workers."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, first_row: int) -> int:
        """Counts a start; returns how many there were."""
        self._counts[first_row] += 1
        return self._counts[first_row]

    def clear(self, first_row: int) -> None:
        """Notes that a batch is finished."""
        del self._counts[first_row]


class _Worker:
    """Holds the model; it is loaded with the first block, so that an error can be returned as a result."""

    def __init__(
        self,
        model: str,
        settings: "ScoreSettings",
        score: "Callable[[ScoreBatch, reward_models.RewardModel], list[ScoreRecord]]",
        record: "type[ScoreRecord]",
        home: str,
        starts: Any,
    ) -> None:
        _enter(home)
        self._name, self._settings, self._starts = model, settings, starts
        self._score, self._record = score, record
        self._model: reward_models.RewardModel | None = None

    def __call__(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Scores the batches of a block; a `LongRMError` is returned as a result."""
        import ray

        records: list[Any] = []
        try:
            for packed in block["batch"]:
                batch: Any = pickle.loads(packed)
                if isinstance(batch, LongRMError):
                    raise batch
                settings = self._settings
                self._model = self._model or reward_models.load(
                    self._name, model_args=settings.model_args, judge=settings.judge
                )
                first, last = batch[0][0], batch[-1][0]
                if ray.get(self._starts.add.remote(first)) > _MAX_TRIES:
                    detail = (
                        f"{_MAX_TRIES} workers of Ray were killed while scoring rows {first} to {last}, perhaps out of "
                        "memory; check these rows, or give workers more"
                    )
                    records += [self._record(number, Outcome.ERROR, detail=detail) for number, _ in batch]
                else:
                    records += self._score(batch, self._model)
                    ray.get(self._starts.clear.remote(first))
        except LongRMError as error:
            return {"records": [pickle.dumps(error)]}
        return {"records": [pickle.dumps(records)]}


def _enter(home: str) -> None:
    """Resolves relative paths as in the folder of the command, on machines that have it."""
    if Path(home).is_dir():
        os.chdir(home)


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Joins the cluster at the address, or starts one on this machine."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    where = f"at RAY_ADDRESS = {address}" if address else "on this machine"
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():  # not "auto" and the like
        try:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise RunError(
                f"no Ray cluster {where}: {error.strerror or error}; start one, or unset it to use this machine"
            ) from None
    if not address:
        os.environ.update(
            # Listens on the loopback address only: with this, Ray takes 127.0.0.1 as its address.
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=secrets.token_hex(32),
            RAY_USAGE_STATS_ENABLED="0",
        )
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors also come as exceptions
        # By default every other process of a busy machine has priority over Ray's workers.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # "local": by default Ray joins a cluster that `ray start` has left running on this machine.
        options |= {"address": "local", "num_cpus": os.cpu_count(), "object_store_memory": _STORE_BYTES}
        options["include_dashboard"] = False
    with importing("--engine ray"):
        import ray.data
    warnings.filterwarnings("ignore", module=r"ray\.")  # about the one block that is read: it becomes many
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RunError(f"no Ray cluster {where}: {first_line(error)}") from None
    if callable(terminate) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # Ray replaces it by a silent handler
    try:
        with redirect_stdout(sys.stderr):  # where Ray reports lost workers
            yield
    finally:
        ray.shutdown()
