"""Chunks as arms: the trace of upper confidence bounds against a second implementation, and answers round by round."""

import math
import random
import re
from functools import partial

import pytest

from longrm.data import read, write_rows
from longrm.data.formats import from_native_row
from longrm.errors import ConfigError
from longrm.reward_models import Baseline, RewardModel
from longrm.synthesis.bandit import ChunkBandit, reward_of
from longrm.synthesis.documents import Document, candidate_from
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import responses
from longrm.synthesis.recipes.responses import RECIPE, best_and_worst_answer, rater
from longrm.types import Judgment, Outcome, text_of

from .sources import all_outcomes, completion_of


def reference(priors, rounds, count, reward):
    """The paper's rule from sums: new chunks first, by prior; others by their mean plus sqrt(2 ln t / n)."""
    earned = [[prior] for prior in priors]  # the prior counts as one reward
    trace = []
    for t in range(1, rounds + 1):

        def key(arm, t=t):
            mean, n = sum(earned[arm]) / len(earned[arm]), len(earned[arm]) - 1
            if t == 1:
                return (0, -mean, arm)
            return (0, -mean, arm) if n == 0 else (1, -mean - math.sqrt(2 * math.log(t) / n), arm)

        chosen = sorted(sorted(range(len(priors)), key=key)[:count])
        for arm in chosen:
            earned[arm].append(reward(t, chosen))
        trace.append((chosen, [sum(own) / len(own) for own in earned]))
    return trace


def rewarded(seed):
    """Fixed rewards of every set of chunks in every round; some chunks are better than others."""
    worth = [random.Random(f"{seed} {arm}").random() for arm in range(50)]
    return lambda t, arms: random.Random(f"{seed} {t} {arms}").random() * max(worth[arm] for arm in arms)


@pytest.mark.parametrize(("arms", "count", "rounds"), [(1, 4, 5), (5, 2, 40), (12, 4, 30), (30, 4, 60)])
def test_the_trace_is_that_of_the_paper_s_equations(arms, count, rounds):
    for seed in range(20):
        priors, reward = [random.Random(f"p {seed} {arm}").random() for arm in range(arms)], rewarded(seed)
        bandit, found = ChunkBandit(priors), []
        for t in range(1, rounds + 1):
            chosen = bandit.select(count)
            bandit.update(chosen, reward(t, chosen))
            found.append((chosen, [*bandit.values]))
        expected = reference(priors, rounds, count, reward)
        assert [one for one, _ in found] == [one for one, _ in expected]
        for (_, values), (_, means) in zip(found, expected, strict=True):
            assert values == pytest.approx(means, abs=1e-12)


def test_without_exploration_the_trace_differs():
    """The control: a reference that takes the best means only."""
    greedy = ChunkBandit([0.5] * 12)
    trace, reward = [], rewarded(0)
    for t in range(1, 31):
        chosen = sorted(sorted(range(12), key=lambda arm: -greedy.values[arm])[:4])
        greedy.update(chosen, reward(t, chosen))
        trace.append(chosen)
    assert trace != [chosen for chosen, _ in reference([0.5] * 12, 30, 4, reward)]


def test_rewards_are_from_0_to_1_on_every_scale():
    assert reward_of(7, [1, 2], "points") == 0.7
    assert reward_of(-300.0, [], "logit") == 0.5
    assert reward_of(2.0, [1.0, 2.0, 3.0, -5.0], "logit") == 0.625


# ---- The recipe ----

FACTS = [
    f"Clerk {number} notes that room {number} has a {kind} door." for number, kind in enumerate("abcdefghij")
]
DOCUMENT = Document("d", " ".join(FACTS), "What door has room 7?", "an h door", metric="contains")


class FromPassages:
    """Answers by the fact about room 7 if it is shown; in round 3 it is cut off."""

    name = "m"

    def __init__(self):
        self.seen = []

    async def ask(self, requests):
        self.seen += requests
        return [self._one(request) for request in requests]

    def _one(self, request):
        if len(self.seen) == 3:
            return completion_of(responses.Completion(Outcome.TRUNCATED, "an"))
        found = "an h door" if "room 7 has" in request.parts["shown"] else "no idea"
        return completion_of(f"{found}, says {len(self.seen) // 4}")


def recipe(bandit=None, **changed):
    settings = {"documents": {"path": "none"}, "writers": [{"model": "simulated:0"}]}
    chosen = {"rounds": 16, "chunks": 2, "chunk_size": 13} | (bandit or {})
    return RECIPE.resolve(None, settings | {"sampling": "bandit", "bandit": chosen} | changed)


def made(settings, model, reward_model=None, document=DOCUMENT):
    make = partial(responses.make_rows_by_bandit, settings, settings.bandit, [model], rater(reward_model))
    (one,) = all_outcomes(make, [document])
    return one.rows, nested(one.steps)


def test_chunks_are_chosen_by_rewards_and_rows_have_the_trace():
    model = FromPassages()
    rows, steps = made(recipe(), model)
    candidates = [candidate_from(row, "here") for row in rows]
    assert len(model.seen) == 16
    assert {request.temperature for request in model.seen} == {1.0}
    assert len({request.seed for request in model.seen}) == 16
    assert steps["documents"] == {"kept": 1}
    assert steps["written"]["truncated"] == 1
    assert steps["written"]["kept"] == len(rows) == len({one.text for one in candidates})
    shown = [
        [int(label) for label in re.findall(r"^\[(\d+)\]", text_of(one.messages), re.M)] for one in model.seen
    ]
    for one in candidates:
        assert one.metadata["chunks"] == shown[one.metadata["round"] - 1]
        assert one.score == float("h door" in one.text)
    # The same trace by the reference; the one answer that was cut off earns nothing.
    lexicon = responses.index((DOCUMENT.text,), 13)
    relevance = lexicon.scores(f"{DOCUMENT.question} {DOCUMENT.answer}")
    expected = reference(
        (relevance / relevance.max()).tolist(), 16, 2, lambda t, arms: float(t != 3 and 7 in arms)
    )
    assert shown == [[arm + 1 for arm in arms] for arms, _ in expected]
    assert {arm for arms in shown for arm in arms} == {*range(1, 11)}, "every chunk is tried"
    assert sum(8 in arms for arms in shown) > 6


def test_the_best_and_the_worst_answer_make_a_pair_about_the_whole_context():
    (row,), steps = made(recipe({"rows": "pairs"}), FromPassages())
    one = from_native_row(row, 1)
    good, bad = map(text_of, one.responses)
    assert ("h door" in good, "no idea" in bad, one.ranks) == (True, True, (1, 2))
    assert DOCUMENT.text in text_of(one.prompt)
    assert one.metadata["answer_scores"] == [1.0, 0.0]
    assert steps["pairs"] == {"kept": 1}
    rows, steps = made(recipe({"rows": "pairs", "rounds": 1, "chunks": 4}), FromPassages())
    assert (rows, steps["pairs"]) == ((), {"tie": 1})
    assert best_and_worst_answer([], 0) is None


def test_without_a_gold_answer_only_a_reward_model_can_rate():
    rows, steps = made(recipe(), FromPassages(), document=Document("d", "Some text.", "Which?", " "))
    assert (rows, steps) == ((), {"documents": {"no gold answer that a metric can rate by": 1}})
    rows, steps = made(
        recipe({"reward_model": "baseline:longest", "rounds": 4, "chunks": 4}),
        FromPassages(),
        Baseline("longest"),
        Document("d", DOCUMENT.text, "Which?", ""),
    )
    assert [row["score"] for row in rows] == [float(len(row["text"])) for row in rows]


class Comparing(RewardModel):
    name, sees_order, scale = "j", True, "verdict"

    def judge(self, queries):
        return [Judgment(Outcome.ERROR, detail="gone") for _ in queries]


def test_judges_that_compare_and_plans_are_refused():
    with pytest.raises(ConfigError, match="j compares answers"):
        rater(Comparing())
    with pytest.raises(ConfigError, match=r"remove \[\[plans\]\]"):
        recipe(plans=[{}])


def test_a_run_ends_with_the_same_rows_whatever_its_batch(tmp_path):
    rows = [
        {"context": DOCUMENT.text, "question": f"What door has room {number}?", "answer": f"a {kind} door"}
        for number, kind in enumerate("abcdefghij")
    ]
    write_rows(tmp_path / "documents.jsonl", rows)
    found = []
    for batch in (1, 7):
        settings = recipe(
            {"rows": "pairs"},
            documents={"path": str(tmp_path / "documents.jsonl")},
            writers=[{"model": "simulated:0.3"}],
            batch=batch,
        )
        responses.synthesize(settings, tmp_path / str(batch))
        (shard,) = (tmp_path / str(batch) / "rows").iterdir()
        found.append(shard.read_bytes())
    assert found[0] == found[1]
    pairs = [row.comparison for row in read(tmp_path / "7" / "rows")]
    assert pairs
    assert all(one.metadata["answer_scores"][0] > one.metadata["answer_scores"][1] for one in pairs)
