"""A wire format is added by one file and one entry: the server accepts it and documents it."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

import longrm
from longrm.serving import app as serving_app
from longrm.serving.settings import ServeSettings
from longrm.serving.wire_formats import WIRE_FORMATS

SOURCE = '''
from longrm.serving import wire


class GradeBody(wire.ClientBody):
    """A question and its answers."""

    question: str
    answers: list[str]


GRADES = (
    wire.Route(
        "/grade",
        GradeBody,
        lambda body: [wire.ScoreRequest(body.question, body.answers)],
        lambda body, results, model: {"grades": wire.all_scores(results), "by": model},
        {"question": "Who?", "answers": ["They.", "We all."]},
    ),
)
'''


@pytest.fixture
def client(tmp_path: Path, monkeypatch):
    (tmp_path / "grades.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    from grades import GRADES

    monkeypatch.setattr(serving_app, "WIRE_FORMATS", {**WIRE_FORMATS, "grades": GRADES})
    built = serving_app.build_app(
        ServeSettings(model="baseline:longest"), lambda: longrm.load("baseline:longest")
    )
    with TestClient(built, "http://127.0.0.1") as client:
        yield client


def test_an_added_format_is_accepted_and_documented(client):
    sent = {"question": "Who?", "answers": ["They.", "We all."]}
    expected = longrm.load("baseline:longest").score("Who?", ["They.", "We all."])
    assert client.post("/grade", json=sent).json() == {"grades": expected, "by": "baseline:longest"}
    assert client.post("/grade", json={"question": "Who?", "answers": []}).status_code == 400
    documented = client.get("/openapi.json").json()["paths"]["/grade"]["post"]
    assert "grades" in documented["summary"]
    assert client.get("/info").json()["formats"]["grades"] == ["/grade"]
