"""Every test runs offline, with one thread, and with the caches of all libraries in a temporary folder."""

import json
import logging
import os
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest

_CACHES = tempfile.mkdtemp(prefix="longrm-tests-")
os.environ.update(
    OMP_NUM_THREADS="1",  # tests run side by side: more threads than processors wait for each other
    HF_HUB_OFFLINE="1",
    HF_HOME=f"{_CACHES}/huggingface",
    TORCH_EXTENSIONS_DIR=f"{_CACHES}/torch_extensions",
    TORCHINDUCTOR_CACHE_DIR=f"{_CACHES}/inductor",
    XDG_CACHE_HOME=f"{_CACHES}/cache",
    TOKENIZERS_PARALLELISM="false",
)

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell's background jobs ignore it, and so would all they start
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline for a single example: on a busy machine any of them may take a second.
hypothesis.settings.register_profile("longrm", deadline=None)
hypothesis.settings.load_profile("longrm")

REAL_MODEL = Path(
    os.environ.get("LONGRM_REAL_MODEL", Path(__file__).parents[1] / "runs/real-model")
).resolve()
_APART = {
    "full": "too slow for a plain run: make test-full",
    "browser": "needs Chromium: make test-browser",
    "real_model": "needs a download of 93 MB: make test-real",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the way in to the tests that a plain run leaves out."""
    parser.addoption("--run", choices=list(_APART), help="run the tests with this marker, and no others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips, so that the summary lists them, what a plain run leaves out."""
    _skip_without_gpu(items)
    wanted = config.getoption("--run")
    if wanted:
        items[:] = [item for item in items if item.get_closest_marker(wanted)]
        return
    for item in items:
        for mark, reason in _APART.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # only here: most test runs collect files that need none

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch sees"))


@pytest.fixture(autouse=True)
def _no_handler_stays():
    """One that stayed would write to what has long been closed, in every test that follows."""
    handlers = logging.getLogger("longrm").handlers
    before = [*handlers]
    yield
    left = [handler for handler in handlers if handler not in before]
    handlers[:] = before
    assert not left, "the test leaves a handler of the package's messages behind"


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of SmolLM2-135M-Instruct, for tests that are marked `real_model`."""
    if not (REAL_MODEL / "config.json").is_file():
        pytest.fail(
            f"{REAL_MODEL} holds no model: make real-model, or name its folder with LONGRM_REAL_MODEL"
        )
    return REAL_MODEL


@pytest.fixture
def put(tmp_path):
    """Writes rows as JSONL below the temporary folder."""

    def write(name: str, *rows: dict) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def install_plugin(tmp_path, monkeypatch):
    """Installs a package with an entry point of the group `longrm.plugins`; the test's end removes it again."""
    from longrm.plugins import load_plugins

    def install(entry_point: str) -> Path:
        info = tmp_path / "site" / "example-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[longrm.plugins]\nexample = {entry_point}\n")
        monkeypatch.syspath_prepend(info.parent)
        return info.parent

    load_plugins.cache_clear()
    yield install
    load_plugins.cache_clear()


@pytest.fixture
def example_plugin(install_plugin):
    """Registers `tests/example_plugin.py`; the registries are as before afterwards."""
    from longrm.plugins import load_plugins

    from . import example_plugin

    registries = [
        value for name, value in vars(example_plugin).items() if name.isupper() and type(value) is dict
    ]
    before = [dict(registry) for registry in registries]
    install_plugin("tests.example_plugin:register")
    load_plugins()
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
