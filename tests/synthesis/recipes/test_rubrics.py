"""Criteria from preferences: how they are asked for, read and checked, and the recipe as a whole."""

import asyncio
import re
from collections import Counter

import pytest
from scipy.stats import binomtest

from longrm.clients import Completion
from longrm.data import ComparisonRow, read, write_rows
from longrm.reward_models.simulated import ErrorRates
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import rubrics
from longrm.synthesis.recipes.rubrics import (
    RECIPE,
    best_and_worst,
    problem_of,
    read_criteria,
    writing_request,
)
from longrm.synthesis.simulated import GoldAnswers, SimulatedModel
from longrm.types import Comparison, Outcome, as_messages, message_text, text_of

from ..sources import completion_of, killed_and_resumed

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
        if task == "criteria":
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


def test_a_criterion_by_which_both_orders_name_the_better_response_stays():
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
def test_any_other_criterion_is_dropped_for_its_reason_and_the_others_stay(verdicts, reason):
    rows, steps = drafted(Scripted(lines(KIND), {KIND: verdicts}))
    assert (rows, steps["check"]) == ((), {reason: 1})
    assert steps["rubrics"] == {"no_criterion_left": 1}
    (row,), steps = drafted(Scripted(lines(KIND, BRIEF), {KIND: verdicts, BRIEF: (A, B)}))
    assert [one["criterion"] for one in row["rubrics"]] == [BRIEF]
    assert steps["check"] == {reason: 1, "kept": 1}


def test_drafts_that_are_no_use_are_counted_and_not_checked():
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
    told = [f"{kind}{number}" for kind in "abc" for number in range(12)]
    rows = []
    for number in range(60):
        good = " ".join(told[(number + at * 5) % 36] for at in range(9))
        bad = " ".join(told[(number + 1 + at * 7) % 36] for at in range(9))
        rows.append({"prompt": f"Which words, {number}?", "chosen": f"{good}.", "rejected": f"{bad}."})
    write_rows(path, rows)
    return path


def recipe(pairs, **changed):
    settings = {"preferences": {"path": str(pairs)}, "writer": {"model": "simulated:0.25"}, "batch": 2}
    return rubrics.RECIPE.resolve(None, settings | changed)


def expected(path, rates, most):
    """What must stay of the drafts, each looked up by hand, by comparison; and the counts of the check."""
    model, kept, counts = (
        SimulatedModel(ErrorRates.parse(rates), f"simulated:{rates}", 0, GoldAnswers()),
        {},
        Counter(),
    )
    for row in read(path):
        one = row.comparison
        request = writing_request(one, best_and_worst(one), most, max_tokens=1024, seed=0)
        (reply,) = asyncio.run(model.ask([request]))
        good, bad = map(text_of, one.responses)
        for criterion in re.findall("Criterion: (.*)", reply.text):
            first, second = meets(criterion, good), meets(criterion, bad)
            verdict = "tie" if first == second else "kept" if first else "wrong"
            counts[verdict] += 1
            if verdict == "kept":
                kept.setdefault(row.id, []).append(criterion)
    return kept, counts


def test_of_simulated_drafts_the_known_share_stays_and_judges_the_rows(pairs, tmp_path):
    out = tmp_path / "out"
    manifest = rubrics.synthesize(recipe(pairs), out)
    kept, counts = expected(pairs, "0.25", 5)
    steps = manifest["counts"]["steps"]
    assert steps["check"] == {
        "in": counts.total(),
        "kept": counts["kept"],
        "dropped": {name: counts[name] for name in ("tie", "wrong")},
    }
    faulty = counts["tie"] + counts["wrong"]
    assert min(counts.values()) > 10
    assert binomtest(faulty, counts.total(), 0.25).pvalue > 0.01
    assert binomtest(faulty, counts.total(), 0.4).pvalue < 0.001  # the control
    assert manifest["models"] == {"writer": "simulated:0.25"}
    found = [row.comparison for row in read(out / "rows")]
    assert {one.id: [each.text for each in one.rubrics] for one in found} == kept
    before = {row.id: row.comparison for row in read(pairs)}
    for one in found:
        old = before[one.id]
        assert (one.prompt, one.responses, one.ranks) == (old.prompt, old.responses, old.ranks)
        assert {each.weight for each in one.rubrics} == {1.0}


def reply(content):
    """Drafts by single words, a sound one and a faulty one, and looks them up."""
    if "<preferred>" in content:
        good, bad = (
            words(re.search(f"<{name}>\n(.*)\n</{name}>", content)[1]) for name in ("preferred", "other")
        )
        word = next(word for word in good if word not in bad)
        return lines(f'The response says "{word}".', f'The response says "{bad[0]}".')
    (criterion,) = re.findall("<criterion>\n(.*)\n</criterion>", content)
    shown = [
        meets(criterion, one) for one in re.findall('<response name="[AB]">\n(.*)\n</response>', content)
    ]
    return "[[C]]" if shown[0] == shown[1] else "[[A]]" if shown[0] else "[[B]]"


@pytest.mark.full
def test_a_killed_run_ends_with_the_same_bytes_and_pays_for_nothing_twice(pairs, tmp_path):
    settings = {"preferences": {"path": str(pairs), "limit": 8}}
    manifest = killed_and_resumed(rubrics, settings, reply, tmp_path)
    assert manifest["spending"]["m"]["answers"] == 8 * 5
    assert manifest["counts"]["steps"]["check"]["kept"] == manifest["counts"]["rows"] == 8


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
        "Criterion: It names Ann.\nCriterion: It is kind.",
        "Ann is right.\n\nCriterion: It names Ann.\n\n  criterion:It is kind.  \n\n",
        "1. Criterion: It names Ann.\n2. Criterion: It is kind.",
        "- Criterion 1: It names Ann.\n- Criterion 2: It is kind.",
        "**Criterion:** It names Ann.\n**Criterion**: It is kind.",
        "**Criterion: It names Ann.**\n*Criterion 2: It is kind.*",
        "```text\nCriterion: It names Ann.\nCriterion: It is kind.\n```",
        "CRITERION：It names Ann.\r\nCriterion： It is kind.",
        "<think>Criterion: No.</think>Criterion: It names Ann.\nCriterion: It is kind.",
        "Criterion: A draft.\nBetter so:\nCriterion: It names Ann.\nCriterion: It is kind.",
    ],
)
def test_the_lines_that_a_reply_ends_with_are_its_criteria(reply):
    assert read_criteria(reply) == TWO


@pytest.mark.parametrize(
    ("criterion", "problem"),
    [
        ("It is brief.", ""),
        ("", "empty"),
        (" ... ", "empty"),
        ("it NAMES Ann", "repeated"),
        ("Response A names Ann.", "points_at_a_response"),
        ("It says more than response 2.", "points_at_a_response"),
        ("The first response names Ann.", "points_at_a_response"),
        ("It is kind, unlike the other.", "points_at_a_response"),
        ("It is kind, while the other one fails to be.", "points_at_a_response"),
        ("Both responses are kind.", "points_at_a_response"),
        ("回答A更准确。", "points_at_a_response"),
        # What a prompt may be about is nobody's response.
        ("The response says that answer A is right.", ""),
        ("It names both candidates, and then the second answer to the riddle.", ""),
        ("回答提到了安娜。", ""),
    ],
)
def test_a_criterion_that_is_no_use_has_its_reason(criterion, problem):
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


def test_of_more_responses_the_best_and_the_worst_are_shown_with_the_tools_and_cannot_close_their_tags():
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
