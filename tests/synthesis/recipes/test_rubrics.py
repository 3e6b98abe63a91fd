"""Criteria from preferences: how they are asked for, read and checked, and the recipe as a whole."""

import asyncio
import json
import re

import pytest
from scipy.stats import binomtest

from longrm.clients import Completion
from longrm.data import ComparisonRow, read, write_rows
from longrm.errors import ConfigError
from longrm.synthesis.documents import PolicyPrompt
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import rubrics
from longrm.synthesis.recipes.rubrics import (
    RECIPE,
    best_and_worst,
    problem_of,
    read_criteria,
    writing_request,
)
from longrm.types import Comparison, Outcome, as_messages, message_text, text_of

from ..sources import completion_of

GOOD, BAD = "Marlow keeps the key.", "Tamsin has it, I think."
KIND, BRIEF = "It is kind.", "It is brief."


def words(text):
    return re.findall(r"\w+", text.lower())


def meets(criterion, response):
    """Whether a response meets a criterion of a simulated writer, by plain search."""
    _, said, word = re.fullmatch(r'(The response) (says|does not say) "(\w+)"\.', criterion).groups()
    return (word in words(response)) is (said == "says")


def compared(ranks=(2, 1), texts=(BAD, GOOD), **more):
    responses = tuple(as_messages(text, "assistant") for text in texts)
    return Comparison("c", "g", as_messages("Who keeps it?", "user"), responses, ranks, **more)


class Scripted:
    """Drafts one reply, and answers each criterion by whether the better response (GOOD) is shown first."""

    name = "m"

    def __init__(self, written, verdicts=None):
        self.seen, self._written, self._verdicts = [], written, verdicts or {}

    async def ask(self, requests):
        self.seen += requests
        return [completion_of(self._one(request.task, request.parts)) for request in requests]

    def _one(self, task, parts):
        if task in ("criteria", "checklist"):
            return self._written
        return self._verdicts[parts["criterion"]][0 if parts["first"] == GOOD else 1]


def drafted(model, comparison=None, checker=None, **settings):
    given = {"preferences": {"path": "none"}, "writer": {"model": "simulated:0"}}
    recipe = RECIPE.resolve(None, given | settings)
    row = ComparisonRow(1, "here", {}, comparison or compared())
    one = asyncio.run(rubrics.make_rows(recipe, model, checker or model, row))
    return one.rows, nested(one.steps)


def lines(*criteria):
    return "\n".join(f"Criterion: {one}" for one in criteria)


A, B, C = "Hm.\n[[A]]", "Hm.\n[[B]]", "Hm.\n[[C]]"
REFUSED, CUT = (Completion(outcome, "[[A]]") for outcome in (Outcome.REFUSED, Outcome.TRUNCATED))
AGAINST_ITSELF = "Response B is better overall.\n\n[[A]]"


def test_criteria_that_prefer_the_better_response_in_both_orders_are_kept():
    model = Scripted(lines(KIND, BRIEF), {KIND: (A, B), BRIEF: (A, B)})
    (row,), steps = drafted(model, compared(metadata={"task": "t"}))
    assert row == {
        "id": "c",
        "group": "g",
        "prompt": [{"role": "user", "content": "Who keeps it?"}],
        "responses": [[{"role": "assistant", "content": text}] for text in (BAD, GOOD)],
        "ranks": [2, 1],
        "metadata": {"task": "t"},
        "rubrics": [{"criterion": KIND, "weight": 1.0}, {"criterion": BRIEF, "weight": 1.0}],
    }
    assert steps == {
        "pairs": {"kept": 1},
        "replies": {"kept": 1},
        "criteria": {"kept": 2},
        "check": {"kept": 2},
        "rubrics": {"kept": 1},
    }
    assert len(model.seen) == 5
    assert [request.temperature for request in model.seen[1:]] == [0.0] * 4


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        ((B, A), "wrong"),
        ((C, C), "tie"),
        ((A, A), "depends_on_order"),
        ((A, C), "depends_on_order"),
        ((A, "No idea."), "no_verdict"),
        ((A, REFUSED), "refused"),
        ((CUT, B), "truncated"),
        ((AGAINST_ITSELF, B), "contradicted"),
    ],
)
def test_other_criteria_are_dropped_and_counted_by_reason(verdicts, reason):
    rows, steps = drafted(Scripted(lines(KIND), {KIND: verdicts}))
    assert (rows, steps["check"]) == ((), {reason: 1})
    assert steps["rubrics"] == {"no_criterion_left": 1}
    (row,), steps = drafted(Scripted(lines(KIND, BRIEF), {KIND: verdicts, BRIEF: (A, B)}))
    assert [one["criterion"] for one in row["rubrics"]] == [BRIEF]
    assert steps["check"] == {reason: 1, "kept": 1}


def test_unusable_drafts_are_counted_and_not_checked():
    reply = lines("", KIND, "it is KIND", "Response A is kind.", BRIEF, "It is true.")
    model = Scripted(reply, {KIND: (A, B), BRIEF: (A, B)})
    _, steps = drafted(model, most=2)
    assert steps["criteria"] == {
        "empty": 1,
        "kept": 2,
        "repeated": 1,
        "points_at_a_response": 1,
        "beyond_most": 1,
    }
    assert len(model.seen) == 5
    rows, steps = drafted(Scripted(lines("Response A is kind.")))
    assert (rows, steps["rubrics"]) == ((), {"no_criterion_left": 1})


@pytest.fixture
def pairs(tmp_path):
    """Pairs in TRL's columns, of which both responses have many words, some of them shared."""
    path = tmp_path / "pairs.jsonl"
    words_of_all = [f"{kind}{number}" for kind in "abc" for number in range(12)]
    rows = []
    for number in range(60):
        good = " ".join(words_of_all[(number + at * 5) % 36] for at in range(9))
        bad = " ".join(words_of_all[(number + 1 + at * 7) % 36] for at in range(9))
        rows.append({"prompt": f"Which words, {number}?", "chosen": f"{good}.", "rejected": f"{bad}."})
    write_rows(path, rows)
    return path


def test_of_simulated_drafts_the_known_share_is_kept(pairs, tmp_path):
    settings = {"preferences": {"path": str(pairs)}, "writer": {"model": "simulated:0.25"}, "batch": 2}
    manifest = rubrics.synthesize(RECIPE.resolve(None, settings), tmp_path / "out")
    check = manifest["counts"]["steps"]["check"]
    assert check["dropped"].keys() == {"tie", "wrong"}
    faulty = sum(check["dropped"].values())
    assert binomtest(faulty, check["in"], 0.25).pvalue > 0.01
    assert binomtest(faulty, check["in"], 0.4).pvalue < 0.001  # the control
    found = [row.comparison for row in read(tmp_path / "out" / "rows")]
    assert sum(len(one.rubrics) for one in found) == check["kept"]
    before = {row.id: row.comparison for row in read(pairs)}
    for one in found:
        old = before[one.id]
        assert (one.prompt, one.responses, one.ranks) == (old.prompt, old.responses, old.ranks)
        good, bad = map(text_of, one.responses)
        assert all(meets(each.text, good) and not meets(each.text, bad) for each in one.rubrics)
        assert {each.weight for each in one.rubrics} == {1.0}


@pytest.mark.parametrize(
    ("ranks", "found"),
    [((1, 2), (0, 1)), ((2, 1), (1, 0)), ((2, 3, 1), (2, 1)), ((2, 2, 1, 1), (2, 1)), ((2, 2, 2), None)],
)
def test_the_best_response_is_compared_with_the_worst(ranks, found):
    assert best_and_worst(compared(ranks, [f"r{number}" for number in range(len(ranks))])) == found


TWO = ["It names Ann.", "It is kind."]


@pytest.mark.parametrize(
    "reply",
    [
        "Ann is right.\n\nCriterion: It names Ann.\n\n  criterion:It is kind.  \n\n",
        "1. Criterion: It names Ann.\n2. Criterion: It is kind.",
        "**Criterion:** It names Ann.\n**Criterion**: It is kind.",
        "**Criterion: It names Ann.**\n*Criterion 2: It is kind.*",
        "```text\nCriterion: It names Ann.\nCriterion: It is kind.\n```",
        "CRITERION：It names Ann.\r\nCriterion： It is kind.",
        "<think>Criterion: No.</think>Criterion: It names Ann.\nCriterion: It is kind.",
        "Criterion: A draft.\nBetter so:\nCriterion: It names Ann.\nCriterion: It is kind.",
    ],
)
def test_criteria_are_read_from_the_last_lines_of_a_reply(reply):
    assert read_criteria(reply) == TWO


@pytest.mark.parametrize(
    ("criterion", "problem"),
    [
        ("It is brief.", ""),
        (" ... ", "empty"),
        ("it NAMES Ann", "repeated"),
        ("Response A names Ann.", "points_at_a_response"),
        ("The first response names Ann.", "points_at_a_response"),
        ("It is kind, unlike the other.", "points_at_a_response"),
        ("It is kind, while the other one fails to be.", "points_at_a_response"),
        ("Both responses are kind.", "points_at_a_response"),
        ("回答A更准确。", "points_at_a_response"),
        # A prompt may be about these words.
        ("The response says that answer A is right.", ""),
        ("It names both candidates, and then the second answer to the riddle.", ""),
        ("回答提到了安娜。", ""),
    ],
)
def test_reasons_to_drop_a_draft(criterion, problem):
    assert problem_of(criterion, ["It names Ann."], 5) == problem


def request_for(comparison, seed=0):
    request = writing_request(comparison, best_and_worst(comparison), 3, max_tokens=9, seed=seed)
    return message_text(request.messages[0]), request


def test_the_writer_sees_which_response_is_better_in_a_drawn_order():
    first = 0
    for seed in range(200):
        content, request = request_for(compared((2, 1), ("Ann.", "Bo.")), seed)
        better, worse = "<preferred>\nBo.\n</preferred>", "<other>\nAnn.\n</other>"
        assert content.startswith('<turn role="user">\nWho keeps it?\n</turn>\n\n<')
        assert "at most 3" in content
        assert content.endswith("\nCriterion: ...")
        first += content.index(better) < content.index(worse)
        assert request.max_tokens == 9
    assert 70 < first < 130  # 4 standard deviations


def test_best_and_worst_response_and_tools_are_shown_and_cannot_close_their_tags():
    tool = {"type": "function", "function": {"name": "look"}}
    content, _ = request_for(compared((2, 3, 2, 1), ("so-so", "bad</other>", "fine", "good"), tools=(tool,)))
    assert "<preferred>\ngood\n</preferred>" in content
    assert "<other-2>\nbad</other>\n</other-2>" in content
    assert '"name": "look"' in content
    assert "so-so" not in content
    assert "fine" not in content


def test_the_check_shows_the_criterion_and_both_orders_and_not_the_gold():
    model = Scripted(lines(KIND), {KIND: (A, B)})
    drafted(model)
    one, other = (message_text(request.messages[0]) for request in model.seen[1:])
    assert f'<response name="A">\n{GOOD}\n</response>\n\n<response name="B">\n{BAD}' in one
    assert f'<response name="A">\n{BAD}\n</response>\n\n<response name="B">\n{GOOD}' in other
    for content in (one, other):
        assert f"<criterion>\n{KIND}\n</criterion>" in content
        assert "preferred" not in content


# ---- From prompts ----


def checklist(reply, **settings):
    given = {"prompts": {"path": "none"}, "writer": {"model": "simulated:0"}}
    prompt = PolicyPrompt(
        "p", "g", as_messages("Write a letter to Ann.", "user"), metadata={"task": "letter"}
    )
    model = Scripted(reply)
    one = asyncio.run(rubrics.make_checklist(RECIPE.resolve(None, given | settings), model, prompt))
    return one.rows, nested(one.steps), model.seen


def test_a_prompt_alone_gets_criteria_and_a_length():
    (row,), steps, (request,) = checklist(f"Hm.\n\n**Words:** 1,200\n{lines(KIND, BRIEF, KIND)}")
    assert row == {
        "task": "letter",
        "id": "p",
        "group": "g",
        "prompt": [{"role": "user", "content": "Write a letter to Ann."}],
        "rubrics": [{"criterion": KIND, "weight": 1.0}, {"criterion": BRIEF, "weight": 1.0}],
        "target_words": 1200,
    }
    assert steps == {
        "replies": {"kept": 1},
        "criteria": {"kept": 2, "repeated": 1},
        "rubrics": {"kept": 1},
        "lengths": {"kept": 1},
    }
    assert message_text(request.messages[0]).startswith('<turn role="user">\nWrite a letter to Ann.\n</turn>')
    (row,), steps, _ = checklist(f"Words: 0\n{lines(KIND)}")
    assert "target_words" not in row
    assert steps["lengths"] == {"no_length": 1}
    assert checklist("Words: 90")[:2] == ((), {"replies": {"no_criteria": 1}})
    assert checklist(lines("..."))[1]["rubrics"] == {"no_criterion_left": 1}


def test_of_simulated_checklists_the_known_share_is_demanded(tmp_path):
    path = tmp_path / "prompts.jsonl"
    write_rows(
        path, [{"prompt": f"Tell of the river, the mill and house {number}."} for number in range(120)]
    )
    settings = {"prompts": {"path": str(path)}, "writer": {"model": "simulated:0.25"}, "most": 4}
    manifest = rubrics.synthesize(RECIPE.resolve(None, settings), tmp_path / "out")
    assert manifest["counts"]["rows"] == 120
    found = [
        json.loads(line)
        for file in (tmp_path / "out" / "rows").iterdir()
        for line in file.read_text().splitlines()
    ]
    met = [meets(one["criterion"], row["prompt"][0]["content"]) for row in found for one in row["rubrics"]]
    assert binomtest(sum(met), len(met), 0.75).pvalue > 0.01
    assert {row["target_words"] for row in found} == {180}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"prompts": {"path": "p"}, "preferences": {"path": "p"}},
        {"prompts": {"path": "p"}, "checker": {"model": "simulated:0", "name": "other"}},
    ],
)
def test_criteria_come_from_preferences_or_from_prompts(changed):
    with pytest.raises(ConfigError, match="preferences"):
        RECIPE.resolve(None, {"writer": {"model": "simulated:0"}} | changed)
