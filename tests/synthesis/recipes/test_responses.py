"""Candidates: what each perturbation does to a view, and the answers of models under the plans of a recipe."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.clients import Completion
from longrm.data.chunking import approximate_tokens
from longrm.rng import Rng
from longrm.synthesis.documents import Document, candidate_from
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import responses
from longrm.synthesis.recipes.responses import (
    PERTURBATIONS,
    RECIPE,
    Passage,
    View,
    check_perturbation,
    gather_passages,
    passages_of,
)
from longrm.types import Outcome, text_of

from ..sources import all_outcomes

TEXTS = [f"Fact {number} is told here." for number in range(1, 21)]  # six words and marks each
SHOWN = View(
    tuple(Passage(text, at, at % 4 == 0) for at, text in enumerate(TEXTS, start=1)),
    "Which?",
    exemplars=("Q: a? A: b [1] [4].", "Q: c? A: d [2]."),
    steps=("3 and 4 make 7", "so it is", "7 by 2 is 3.5"),
)
FOREIGN = tuple(f"Foreign {number} goes on and on here." for number in range(50))


def perturb(name, seed=0, **settings):
    check_perturbation(name, settings)
    return PERTURBATIONS[name](SHOWN, Rng(seed), FOREIGN, **settings)


def texts(shown):
    return [part.text for part in shown.passages]


SETTINGS = {
    "cut_source": {"share": 0.5},
    "truncate": {"low": 20, "high": 60},
    "inject_distractors": {"low": 40, "high": 80},
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbations_are_pure_seeded_and_recorded(name):
    settings = SETTINGS.get(name, {})
    before = hash(SHOWN.passages), SHOWN.exemplars, SHOWN.steps
    once, again = (perturb(name, **settings) for _ in range(2))
    assert once == again
    assert once != SHOWN
    assert before == (hash(SHOWN.passages), SHOWN.exemplars, SHOWN.steps)
    assert [done["name"] for done in once.done] == [name]
    assert once.content != SHOWN.content
    assert once.question == SHOWN.question


def test_dropping_hits_clues_and_nothing_else():
    clues = [part.text for part in SHOWN.passages if part.clue]
    others = [part.text for part in SHOWN.passages if not part.clue]
    gone = 0
    for seed in range(400):
        kept = texts(perturb("drop_clues", seed))
        assert [text for text in kept if text in others] == others
        gone += len(SHOWN.passages) - len(kept)
    assert 0.45 < gone / (400 * len(clues)) < 0.55
    assert not [p for p in perturb("drop_clues", p=1).passages if p.clue]
    assert texts(perturb("drop_clues", p=0)) == TEXTS


@pytest.mark.parametrize(("share", "left"), [(0, 20), (0.2, 16), (0.5, 10), (0.49, 11), (1, 0)])
def test_the_source_is_cut_at_its_end(share, left):
    cut = perturb("cut_source", share=share)
    assert texts(cut) == TEXTS[:left]
    (done,) = cut.done
    assert done == {"name": "cut_source", "share": share, "cut_tokens": 6 * (20 - left), "of_tokens": 120}


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 90))
def test_truncation_keeps_as_many_passages_as_fit(seed, low, more):
    cut = perturb("truncate", seed, low=low, high=low + more)
    (done,) = cut.done
    kept = sum(map(approximate_tokens, texts(cut)))
    assert low <= done["room_tokens"] <= low + more
    assert kept <= done["room_tokens"]
    assert len(cut.passages) == len(TEXTS) or kept + 6 > done["room_tokens"]


@given(st.integers(0, 100))
def test_distractors_are_inserted_and_no_passage_is_lost(seed):
    shown = perturb("inject_distractors", seed, low=40, high=80)
    (done,) = shown.done
    assert [text for text in texts(shown) if text in TEXTS] == TEXTS
    added = [text for text in texts(shown) if text not in TEXTS]
    assert len({*added}) == len(added)
    assert {*added} <= {*FOREIGN}
    assert sum(map(approximate_tokens, added)) == done["injected_tokens"] <= done["aim_tokens"] <= 80
    assert done["injected_tokens"] > done["aim_tokens"] - 8
    assert len({part.label for part in shown.passages}) == len(shown.passages)


def test_citations_are_moved_and_each_number_stays_in_use():
    noisy = perturb("noisy_citations", share=0.5)
    moved = [part.label != at for at, part in enumerate(noisy.passages, start=1)]
    assert sum(moved) == 10
    assert texts(noisy) == TEXTS
    assert sorted(part.label for part in noisy.passages) == list(range(1, 21))
    everywhere = perturb("noisy_citations", share=1)
    label = {at: part.label for at, part in enumerate(everywhere.passages, start=1)}
    assert everywhere.exemplars[0] == f"Q: a? A: b [{label[1]}] [{label[4]}]."
    assert perturb("noisy_citations", share=0).passages == SHOWN.passages


def test_steps_are_exposed_or_corrupted_in_their_last_number():
    assert perturb("expose_steps").hints == SHOWN.steps
    for seed in range(50):
        wrong = perturb("corrupt_steps", seed, share=1).hints
        assert wrong[0].startswith("3 and 4 make ")
        assert wrong[0] != SHOWN.steps[0]
        assert wrong[1] == SHOWN.steps[1]  # it holds no number
        assert wrong[2].startswith("7 by 2 is ")
        assert wrong[2] != SHOWN.steps[2]
    half = perturb("corrupt_steps").hints
    assert sum(one != other for one, other in zip(half, SHOWN.steps, strict=True)) == 1


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
    settings = {"documents": {"path": "none"}, "writers": [{"model": "simulated:0"}]}
    return RECIPE.resolve(None, settings | changed)


def made_by(documents, models, settings):
    pool, _ = gather_passages(documents, settings.seed)
    return all_outcomes(partial(responses.make_rows, settings, models, pool), documents)


@pytest.fixture(autouse=True)
def short_passages(monkeypatch):
    monkeypatch.setattr(responses, "PASSAGE_SIZE", 6)


def test_every_model_answers_under_every_plan_and_dropped_answers_are_counted():
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


def test_passages_are_the_whole_text_and_clues_have_the_answer(monkeypatch):
    monkeypatch.setattr(responses, "PASSAGE_SIZE", 12)
    parts = passages_of(" ".join(TEXTS), "fact 7 ")
    assert "".join(part.text for part in parts) == " ".join(TEXTS)
    assert [part.text.strip() for part in parts if part.clue] == ["Fact 7 is told here. Fact 8 is told here."]
