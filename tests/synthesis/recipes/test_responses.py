from functools import partial

import pytest

from longrm.clients import Completion
from longrm.synthesis.documents import Document, candidate_from
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import responses
from longrm.synthesis.recipes.responses import RECIPE, gather_passages
from longrm.types import Outcome, text_of

from ..sources import all_outcomes

TEXTS = [f"Fact {number} is told here." for number in range(1, 21)]  # six words and marks each


class Echo:
    """Writes how many passages it saw; truncated at every prompt without any."""

    def __init__(self, name):
        self.name, self.seen = name, []

    async def ask(self, requests):
        self.seen += requests
        return [self._one(text_of(request.messages)) for request in requests]

    def _one(self, text):
        count = text.count("told here")
        return (
            Completion(Outcome.ANSWERED, f"{self.name} saw {count}")
            if count
            else Completion(Outcome.TRUNCATED, "x")
        )


def recipe(**changed):
    given = {"documents": {"path": "none"}, "writers": [{"model": "simulated:0"}]}
    return RECIPE.resolve(None, given | changed)


def made_by(documents, models, settings):
    pool, _ = gather_passages(documents, settings.seed)
    return all_outcomes(partial(responses.make_rows, settings, models, pool), documents)


@pytest.fixture(autouse=True)
def short_passages(monkeypatch):
    monkeypatch.setattr(responses, "PASSAGE_SIZE", 6)


def test_every_model_answers_under_every_plan_and_what_is_lost_is_counted():
    document = Document("d", " ".join(TEXTS), "Which?", "Fact 7", metadata={"steps": ["3 and 4 make 7"]})
    plans = [
        {},
        {"perturbations": [{"name": "cut_source", "share": 0.5}, {"name": "expose_steps"}]},
        {"perturbations": [{"name": "cut_source", "share": 1}], "temperature": 0.7},
    ]
    settings = recipe(plans=plans, seed=3)
    models = [Echo("a"), Echo("b")]
    (made,) = made_by([document], models, settings)
    written = [candidate_from(row, "here") for row in made.rows]
    assert [(c.model, c.perturbation, c.text) for c in written] == [
        ("a", "", "a saw 20"),
        ("a", "cut_source+expose_steps", "a saw 10"),
        ("b", "", "b saw 20"),
        ("b", "cut_source+expose_steps", "b saw 10"),
    ]
    assert nested(made.steps) == {"written": {"kept": 4, "truncated": 2}}
    assert written[1].metadata["perturbations"][0] == {
        "name": "cut_source", "share": 0.5, "cut_tokens": 60, "of_tokens": 120,
    }  # fmt: skip
    first, second = models[0].seen, models[1].seen
    assert [r.messages for r in first] == [r.messages for r in second]
    assert {(r.max_tokens, r.temperature) for r in first} == {(512, 0.0), (512, 0.7)}
    assert len({r.seed for r in (*first, *second)}) == 6
    assert made_by([document], models, settings) == [made]
    assert len({candidate.metadata["prompt_hash"] for candidate in written}) == 2


def test_a_document_gets_the_same_candidates_in_any_company():
    documents = [Document(name, " ".join(TEXTS), f"Which {name}?", name) for name in "abc"]
    settings = recipe()
    assert made_by(documents, [Echo("m")], settings)[1:2] == made_by(documents[1:2], [Echo("m")], settings)


def test_the_pool_is_an_even_draw_of_bounded_size(monkeypatch):
    monkeypatch.setattr(responses, "PASSAGE_SIZE", 5)
    monkeypatch.setattr(responses, "POOL_PASSAGES", 40)
    texts = [" ".join(f"Tale {number} of {text}." for number in range(50)) for text in "abcd"]
    documents = [Document(f"{at}", text, "q", "a") for text in texts for at in range(2)]
    pool, total = gather_passages(documents, 0)
    assert (len(pool), total) == (40, 8)
    per_text = [sum(group == document.group for group, _ in pool) for document in documents[::2]]
    assert min(per_text) >= 3
    assert (pool, total) == gather_passages(iter(documents), 0)


def test_distractors_come_from_other_documents_and_rows_are_read_back(monkeypatch):
    monkeypatch.setattr(responses, "PASSAGE_SIZE", 12)
    tales = {name: " ".join(f"Tale {at} is told here by {name}." for at in range(40)) for name in "abc"}
    documents = [Document(name, tale, "Which?", name) for name, tale in tales.items()]
    plan = {"perturbations": [{"name": "inject_distractors", "low": 50, "high": 90}]}
    settings = recipe(plans=[{}, plan])
    echo = Echo("m")
    made = made_by(documents, [echo], settings)
    assert [(one.id, nested(one.steps)) for one in made] == [
        (name, {"written": {"kept": 2}}) for name in "abc"
    ]
    for document, (_, hard) in zip(documents, zip(echo.seen[::2], echo.seen[1::2], strict=True), strict=True):
        text = text_of(hard.messages)
        assert text.count(f"here by {document.id}.") == 40
        assert sum(text.count(f"here by {other}.") for other in "abc") >= 44
    again = [candidate_from(row, "here") for one in made for row in one.rows]
    assert [candidate.perturbation for candidate in again] == ["", "inject_distractors"] * 3
    assert again[1].metadata["perturbations"][0]["injected_tokens"] > 40
