"""The comparison of two servers in docs/serving.md, run against the server of this package."""

import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.testclient import TestClient

import longrm
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings
from tests.reward_models.tiny_models import make_scorer

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.mark.parametrize("other", [False, True], ids=["same model", "another model"])
def test_the_example_compares_scores(tmp_path, monkeypatch, capsys, other):
    model = str(make_scorer(tmp_path / "model"))
    served = str(make_scorer(tmp_path / "other", seed=1)) if other else model
    code = re.search(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)[1]
    code = code.replace("runs/demo/training/long/model", model)
    app = build_app(ServeSettings(model=served), lambda: longrm.load(served))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        post = lambda url, json, timeout: client.post(httpx.URL(url).path, json=json)  # noqa: E731  # one line
        monkeypatch.setattr(httpx, "post", post)
        found = SimpleNamespace(**_run(code))
    assert (found.difference < 1e-5) == (not other)
    assert "pairs flipped" in capsys.readouterr().out


def _run(code):
    names = {}
    exec(code, names)
    return {name: names[name] for name in ("difference", "flipped")}
