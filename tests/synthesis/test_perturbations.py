import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.data.chunking import approximate_tokens
from longrm.errors import ConfigError
from longrm.rng import Draws
from longrm.synthesis.documents import Document
from longrm.synthesis.perturbations import (
    PERTURBATIONS,
    Passage,
    View,
    check_perturbation,
    contains_answer,
    passages_of,
)

TEXTS = [f"Fact {number} is told here." for number in range(1, 21)]  # six words and marks each
SHOWN = View(
    tuple(Passage(text, at, at % 4 == 0) for at, text in enumerate(TEXTS, start=1)),
    "Which?",
    exemplars=("Q: a? A: b [1] [4].", "Q: c? A: d [2]."),
    steps=("3 and 4 make 7", "so it is", "7 by 2 is 3.5"),
)
FOREIGN = tuple(f"Foreign {number} goes on and on here." for number in range(50))


def context_of(seed=0):
    return Draws(seed), FOREIGN


def perturb(view, context, name, **settings):
    check_perturbation(name, settings)
    return PERTURBATIONS[name](view, *context, **settings)


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
    once, again = (perturb(SHOWN, context_of(), name, **settings) for _ in range(2))
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
        kept = texts(perturb(SHOWN, context_of(seed), "drop_clues"))
        assert [text for text in kept if text in others] == others
        gone += len(SHOWN.passages) - len(kept)
    assert 0.45 < gone / (400 * len(clues)) < 0.55
    assert not [p for p in perturb(SHOWN, context_of(), "drop_clues", p=1).passages if p.clue]
    assert texts(perturb(SHOWN, context_of(), "drop_clues", p=0)) == TEXTS


@pytest.mark.parametrize(("share", "left"), [(0, 20), (0.2, 16), (0.5, 10), (0.49, 11), (1, 0)])
def test_the_source_is_cut_at_its_end(share, left):
    cut = perturb(SHOWN, context_of(), "cut_source", share=share)
    assert texts(cut) == TEXTS[:left]
    (done,) = cut.done
    assert done == {"name": "cut_source", "share": share, "cut_tokens": 6 * (20 - left), "of_tokens": 120}


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 90))
def test_what_is_kept_fits_and_the_next_passage_would_not(seed, low, more):
    cut = perturb(SHOWN, context_of(seed), "truncate", low=low, high=low + more)
    (done,) = cut.done
    kept = sum(map(approximate_tokens, texts(cut)))
    assert low <= done["room_tokens"] <= low + more
    assert kept <= done["room_tokens"]
    assert len(cut.passages) == len(TEXTS) or kept + 6 > done["room_tokens"]


@given(st.integers(0, 100))
def test_distractors_stand_between_and_nothing_is_lost(seed):
    shown = perturb(SHOWN, context_of(seed), "inject_distractors", low=40, high=80)
    (done,) = shown.done
    assert [text for text in texts(shown) if text in TEXTS] == TEXTS
    added = [text for text in texts(shown) if text not in TEXTS]
    assert len({*added}) == len(added)
    assert {*added} <= {*FOREIGN}
    assert sum(map(approximate_tokens, added)) == done["injected_tokens"] <= done["aim_tokens"] <= 80
    assert done["injected_tokens"] > done["aim_tokens"] - 8
    assert len({part.label for part in shown.passages}) == len(shown.passages)


def test_citations_are_moved_and_each_number_stays_in_use():
    noisy = perturb(SHOWN, context_of(), "noisy_citations", share=0.5)
    moved = [part.label != at for at, part in enumerate(noisy.passages, start=1)]
    assert sum(moved) == 10
    assert texts(noisy) == TEXTS
    assert sorted(part.label for part in noisy.passages) == list(range(1, 21))
    everywhere = perturb(SHOWN, context_of(), "noisy_citations", share=1)
    label = {at: part.label for at, part in enumerate(everywhere.passages, start=1)}
    assert everywhere.exemplars[0] == f"Q: a? A: b [{label[1]}] [{label[4]}]."
    assert perturb(SHOWN, context_of(), "noisy_citations", share=0).passages == SHOWN.passages


def test_steps_are_exposed_or_corrupted_in_their_last_number():
    assert perturb(SHOWN, context_of(), "expose_steps").hints == SHOWN.steps
    for seed in range(50):
        wrong = perturb(SHOWN, context_of(seed), "corrupt_steps", share=1).hints
        assert wrong[0].startswith("3 and 4 make ")
        assert wrong[0] != SHOWN.steps[0]
        assert wrong[1] == SHOWN.steps[1]  # it holds no number
        assert wrong[2].startswith("7 by 2 is ")
        assert wrong[2] != SHOWN.steps[2]
    half = perturb(SHOWN, context_of(), "corrupt_steps").hints
    assert sum(one != other for one, other in zip(half, SHOWN.steps, strict=True)) == 1


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("drop_clue", {}, "'drop_clue'"),
        ("drop_clues", {"q": 1}, "'q'"),
        ("remove_exemplars", {"keep": 1.5}, "'keep'"),
        ("truncate", {"low": -1}, "'low'"),
        ("drop_clues", {"p": 2}, "'p'"),
        ("cut_source", {}, "'share'"),
        ("cut_source", {"share": "half"}, "'share'"),
        ("truncate", {"low": 9, "high": 3}, "low <= high"),
    ],
)
def test_wrong_perturbations_are_refused(name, settings, named):
    with pytest.raises(ConfigError, match=named):
        check_perturbation(name, settings)


def test_passages_are_the_whole_text_and_clues_hold_the_answer():
    text = " ".join(TEXTS)
    document = Document("d", text, "Which?", "fact 7 ")
    parts = passages_of(text, 12, contains_answer(document))
    assert "".join(part.text for part in parts) == text
    assert [part.text.strip() for part in parts if part.clue] == ["Fact 7 is told here. Fact 8 is told here."]
