"""Distillation: rollouts, the choice of the best, and whole runs."""

import json
import re
from functools import partial

import pytest

from longrm.clients import Completion
from longrm.data import read_demonstrations, write, write_rows
from longrm.errors import DataError, RunError
from longrm.reward_models import Baseline, RewardModel
from longrm.synthesis.documents import PolicyPrompt, read_policy_prompts
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import distill
from longrm.synthesis.recipes.distill import RECIPE, synthesize
from longrm.types import Judgment, Outcome, Span, message_text, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

from ...clients.conftest import said, server  # noqa: F401  # the server is a fixture
from ..sources import all_outcomes


class Policy:
    """Answers with one of its texts, drawn by the request's seed alone."""

    name = "policy"

    def __init__(self, *texts, outcome=Outcome.ANSWERED):
        self.texts, self.outcome, self.seeds = texts, outcome, set()

    async def ask(self, requests):
        self.seeds |= {request.seed for request in requests}
        return [
            Completion(self.outcome, self.texts[request.seed % len(self.texts)], detail="gone")
            for request in requests
        ]


class Reader(RewardModel):
    """Prefers the response with the number that the prompt names as right, if it reads that far."""

    name = "reader"

    def judge(self, queries):
        found = []
        for query in queries:
            right = re.search(r"code is (\d+)", text_of(query.prompt))
            scores = tuple(float(bool(right) and right[1] in text_of(one)) for one in query.responses)
            found.append(Judgment(Outcome.ANSWERED, scores))
        return found


def task(number, depth=0.5, filler=200):
    fact, before = f" The code is {number}. ", int(depth * filler)
    context = "Walls are here. " * before + fact + "Walls are here. " * (filler - before)
    question = "What is the code?"
    span = Span(0, 0, len(context))
    prompt = ({"role": "user", "content": context + question},)
    asked = Span(0, len(context), len(context) + len(question))
    return PolicyPrompt(f"task-{number}", f"group-{number}", prompt, (span,), asked, {"source": "made up"})


def distill_recipe(**settings):
    given = {
        "documents": {"path": "none"},
        "policy": {"model": "simulated:0"},
        "reward_model": "baseline:longest",
    }
    return RECIPE.resolve(None, given | settings)


def made(policy, reward_model, *tasks, **settings):
    score = distill.batched_scores(reward_model)
    make_rows = partial(distill.make_rows, distill_recipe(**settings), policy, reward_model, score)
    return all_outcomes(make_rows, tasks)


def test_the_best_of_many_rollouts_is_kept_and_read_back(tmp_path):
    found = made(Policy("It is 7.", "It is 8.", "It is 9."), Reader(), task(7), task(9), rollouts=16)
    write_rows(tmp_path / "rows.jsonl", (row for one in found for row in one.rows))
    rows = [row.demonstration for row in read_demonstrations(tmp_path / "rows.jsonl")]
    assert [message_text(row.completion[0]) for row in rows] == ["It is 7.", "It is 9."]
    assert rows[0].metadata["reward_model"] == "reader"
    assert rows[0].prompt == task(7).messages
    assert nested(found[0].steps)["rollouts"] == {"kept": 3, "repeated": 13}


def test_rows_do_not_depend_on_the_batch():
    tasks = [task(number) for number in range(6)]
    policy = Policy(*(f"It is {number}." for number in range(6)))
    together = made(policy, Reader(), *tasks, rollouts=4)
    assert together == [made(policy, Reader(), one, rollouts=4)[0] for one in tasks]
    assert len(policy.seeds) == 24


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        (Policy("It is 1."), {"rollouts": {"kept": 1, "repeated": 1}, "best": {"tie": 1}}),
        (Policy(" "), {"rollouts": {"empty": 2}, "best": {"no_answer": 1}}),
        (Policy("It", outcome=Outcome.TRUNCATED), {"rollouts": {"truncated": 2}, "best": {"no_answer": 1}}),
    ],
)
def test_prompts_without_a_best_answer_are_counted(policy, steps):
    (found,) = made(policy, Reader(), task(7))
    assert (found.rows, nested(found.steps)) == ((), steps)


def best_of(policy, reward_model):
    (found,) = made(policy, reward_model, task(7), rollouts=8)
    return nested(found.steps)["best"]


class Silent(RewardModel):
    name = "silent"

    def __init__(self, outcome):
        self.outcome = outcome

    def judge(self, queries):
        return [Judgment(self.outcome, detail="nothing said") for _ in queries]


def test_ties_and_silence_of_the_reward_model():
    policy = Policy("It is 1.", "It is 2.")
    assert best_of(policy, Reader()) == {"tie": 1}
    assert best_of(policy, Silent(Outcome.UNPARSED)) == {"unjudged": 1}
    with pytest.raises(RunError, match="silent could not be asked .nothing said"):
        best_of(policy, Silent(Outcome.ERROR))
    with pytest.raises(RunError, match="policy could not be asked .gone"):
        made(Policy("x", outcome=Outcome.ERROR), Reader(), task(7))


def test_a_model_that_sees_the_order_is_asked_in_all():
    # A judge that always takes the first place prefers nothing, once it is asked in all orders.
    policy = Policy("one", "two", "three")
    assert best_of(policy, Baseline("first")) == {"tie": 1}
    (found,) = made(policy, Baseline("longest"), task(7), rollouts=8)
    assert found.rows[0]["completion"] == "three"


@pytest.fixture
def recipe(put):
    rows = [
        {
            "id": f"d{number}",
            "context": f"The code of room {number} is {number}7{number}1. " + "Walls are here. " * 80,
            "question": f"What is the code of room {number}?",
            "answer": f"The code of room {number} is {number}7{number}1",
        }
        for number in range(12)
    ]
    return {
        "documents.path": str(put("documents.jsonl", *rows)),
        "documents.license": "mit",
        "policy.model": "simulated:0.5",
        "policy.name": "pupil",
        "reward_model": "baseline:overlap",
        "rollouts": 6,
    }


def of(recipe, **more):
    return RECIPE.resolve(None, recipe | more)


def test_answers_that_are_in_the_text_become_demonstrations(tmp_path, recipe):
    manifest = synthesize(of(recipe), tmp_path / "out")
    rows = [row.demonstration for row in read_demonstrations(tmp_path / "out" / "rows")]
    assert len(rows) == manifest["counts"]["rows"] >= 6
    # The overlap with the text shows which answer is right.
    for row in rows:
        number = row.id.removeprefix("d")
        assert text_of(row.completion) == f"The code of room {number} is {number}7{number}1"
    assert all(text_of(row.prompt).endswith(row.metadata["question"]) for row in rows)
    assert rows[0].metadata["reward_model"] == "baseline:overlap"
    assert manifest["models"] == {"policy": "pupil", "reward model": "baseline:overlap"}
    steps = manifest["counts"]["steps"]
    assert steps["rollouts"]["in"] == 12 * 6
    assert steps["best"]["in"] == 12


def test_prompts_of_every_kind_are_read(tmp_path, put):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 3, words_tokenizer()))
    pairs = list(read_policy_prompts(tmp_path / "pairs.jsonl"))
    assert len(pairs) == 3
    assert all(task.context and task.question for task in pairs)
    golden = put("golden.jsonl", {"prompt": "Say it.", "completion": "It.", "task": "chat"})
    (task,) = read_policy_prompts(golden)
    assert (text_of(task.messages), task.metadata) == ("Say it.", {"task": "chat"})
    alone = put(
        "alone.jsonl", {"prompt": "One?"}, {"id": "b", "prompt": [{"role": "user", "content": "Two?"}]}
    )
    assert [(task.id, text_of(task.messages)) for task in read_policy_prompts(alone)] == [
        ("row-1", "One?"),
        ("b", "Two?"),
    ]
    with pytest.raises(DataError, match=r"wrong.jsonl, line 1, field 'prompt"):
        list(read_policy_prompts(put("wrong.jsonl", {"query": "One?"})))


def test_a_reward_model_behind_http_is_named_and_its_answers_are_counted(tmp_path, recipe, server):  # noqa: F811
    server.script = lambda seen, number: said(f"Fine.\n\n[[{len(seen.text) % 10}]]", usage=(100, 7))
    name = f"openai:{server.url}#tiny"
    for _ in range(2):  # the second finds everything in the cache, and the account as it was
        manifest = synthesize(of(recipe, reward_model=name), tmp_path / "out")
        asked = {"answers": len(server.seen), "prompt_tokens": 100 * len(server.seen)}
        assert manifest["spending"][name].items() >= asked.items()
        assert manifest["models"] == {"policy": "pupil", "reward model": name}
        assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert len(server.seen) > 12
    lines = (tmp_path / "out" / "spending.jsonl").read_text().splitlines()
    assert [json.loads(line)["model"] for line in lines] == [name] * len(server.seen)
