"""Reasons for preferences: what the writer and the checker see, what is dropped, and the recipe as a whole."""

import asyncio
from dataclasses import replace

import pytest
from scipy.stats import binomtest

from longrm.clients import Completion
from longrm.data import ComparisonRow, read_demonstrations, write_rows
from longrm.errors import ConfigError
from longrm.judging.pairwise import Pairwise
from longrm.synthesis.models import TaskRequest
from longrm.synthesis.pipeline import nested
from longrm.synthesis.recipes import rationales
from longrm.synthesis.recipes.rationales import RECIPE, with_names_swapped, without_winner
from longrm.types import Comparison, Outcome, as_messages, message_text, text_of

from ..sources import completion_of

GOOD, BAD = "Marlow keeps the key.", "Tamsin has it, I think."
ANALYSIS = "Response A is as the text has it. Response B guesses: answer B says so itself."


def compared(ranks=(2, 1), texts=(BAD, GOOD), **more):
    responses = tuple(as_messages(text, "assistant") for text in texts)
    return Comparison("c", "g", as_messages("Who keeps it?", "user"), responses, ranks, **more)


class Scripted:
    """Writes one analysis, in which {own} and {other} are the letters, and prefers GOOD wherever it is shown."""

    name = "m"

    def __init__(self, written="Response {own} names Marlow.\n\n[[{own}]]", verdicts=("A", "B")):
        self.seen, self._written, self._verdicts = [], written, verdicts

    async def ask(self, requests):
        self.seen += requests
        return [completion_of(self._one(request)) for request in requests]

    def _one(self, request: TaskRequest):
        if request.task == "rationale":
            if isinstance(self._written, Completion):
                return self._written
            own = request.parts["letter"]
            return self._written.format(own=own, other="BA"["AB".index(own)])
        verdict = self._verdicts[0 if request.parts["first"] == GOOD else 1]
        return verdict if isinstance(verdict, Completion) else f"I looked.\n\n[[{verdict}]]"


def made(model, comparison=None, judge=None, **settings):
    given = {"preferences": {"path": "none"}, "writer": {"model": "simulated:0"}}
    row = ComparisonRow(1, "here", {}, comparison or compared())
    one = asyncio.run(rationales.make_rows(RECIPE.resolve(None, given | settings), model, model, judge, row))
    return one.rows, nested(one.steps)


def test_a_kept_analysis_makes_a_judgment_for_each_order_of_the_prompt_of_evaluation():
    firsts = set()
    for seed in range(12):
        model = Scripted()
        rows, steps = made(model, seed=seed)
        assert steps == {"pairs": {"kept": 1}, "rationales": {"kept": 1}, "check": {"kept": 1}}
        assert {row["id"] for row in rows} == {"c#0-1", "c#1-0"}
        firsts.add(rows[0]["id"])
        for row in rows:
            letter = "A" if row["order"] == [1, 0] else "B"
            assert row["completion"] == f"Response {letter} names Marlow.\n\n[[{letter}]]"
            content = row["prompt"][0]["content"]
            assert content.endswith(Pairwise.request)
            assert f'<response name="{letter}">\n{GOOD}' in content
        writing, one, other = (message_text(request.messages[0]) for request in model.seen)
        assert f"response {model.seen[0].parts['letter']} is better" in writing
        for content in (one, other):
            assert "[[A]] if response A is better" in content
            assert "names Marlow.\n</analysis>" in content
            assert "is better. Write" not in content
        assert sorted(request.parts["first"] for request in model.seen[1:]) == [GOOD, BAD]
    assert len(firsts) == 2, "the place of the better response is drawn"


REFUSED, CUT = (Completion(outcome, "[[A]]") for outcome in (Outcome.REFUSED, Outcome.TRUNCATED))


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("Response {own} names Marlow.", "no_verdict"),
        ("Response {own} names Marlow.\n\n[[{other}]]", "another_verdict"),
        ("Response {own} names Marlow.\n\n[[C]]", "another_verdict"),
        ("Response {own} is better overall.\n\n[[{own}]]", "no_analysis"),
        ("I was told that Response {own} names Marlow.\n\n[[{own}]]", "mentions_the_label"),
        ("Response {own} names Marlow, while B and A's words differ.\n\n[[{own}]]", "bare_letters"),
        (REFUSED, "refused"),
        (CUT, "truncated"),
    ],
)
def test_replies_that_are_no_analysis_of_the_label_are_dropped(written, reason):
    model = Scripted(written)
    rows, steps = made(model)
    assert (rows, steps["rationales"]) == ((), {reason: 1})
    assert len(model.seen) == 1, "nothing is checked"


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        (("B", "A"), "wrong"),
        (("C", "C"), "tie"),
        (("A", "A"), "depends_on_order"),
        (("A", REFUSED), "refused"),
        ((Completion(Outcome.ANSWERED, "No idea."), "B"), "no_verdict"),
    ],
)
def test_an_analysis_that_does_not_lead_to_the_label_in_both_orders_is_dropped(verdicts, reason):
    rows, steps = made(Scripted(verdicts=verdicts))
    assert (rows, steps["check"]) == ((), {reason: 1})


@pytest.mark.parametrize(
    ("analysis", "left"),
    [
        ("Response A cites line 3. Response A is better overall.", "Response A cites line 3."),
        ("Overall, response B is better than response A. It quotes Ann.", "It quotes Ann."),
        ("It quotes Ann.\nVerdict: B", "It quotes Ann."),
        ("It quotes Ann.\n**Winner: Response A**", "It quotes Ann."),
        ("Response A wins.", ""),
        # A single respect is a reason.
        (
            "Response A is not better in tone. It quotes Ann.",
            "Response A is not better in tone. It quotes Ann.",
        ),
    ],
)
def test_sentences_that_only_name_the_winner_are_not_shown_to_the_checker(analysis, left):
    assert without_winner(analysis) == left


def test_names_are_swapped_for_the_other_order():
    swapped = with_names_swapped(ANALYSIS)
    assert swapped == "Response B is as the text has it. Response A guesses: answer A says so itself."
    assert with_names_swapped(swapped) == ANALYSIS


def test_pairs_without_a_label_get_one_that_does_not_depend_on_the_order():
    unlabeled = replace(compared(), ranks=None)
    rows, steps = made(Scripted(), unlabeled)
    assert (rows, steps) == ((), {"pairs": {"order_unknown": 1}})
    rows, steps = made(Scripted(), unlabeled, Scripted())
    assert steps["labels"] == {"kept": 1}
    assert {row["label"] for row in rows} == {"model"}
    assert {(row["id"], row["completion"][-3]) for row in rows} == {("c#0-1", "B"), ("c#1-0", "A")}
    for verdicts, reason in ((("A", "A"), "depends_on_order"), (("C", "C"), "tie")):
        rows, steps = made(Scripted(), unlabeled, Scripted(verdicts=verdicts))
        assert (rows, steps["labels"]) == ((), {reason: 1})
    # A label of the labeler's that the checker does not find again.
    rows, steps = made(Scripted(), unlabeled, Scripted(verdicts=("B", "A")))
    assert (rows, steps["check"]) == ((), {"wrong": 1})
    three = replace(compared((1, 2, 3), ("a", "b", "c")), ranks=None)
    assert made(Scripted(), three, Scripted())[1] == {"pairs": {"more_than_two_responses": 1}}
    with pytest.raises(ConfigError, match="labeler"):
        made(Scripted(), labeler={"model": "simulated:0"})


@pytest.fixture
def pairs(tmp_path):
    path, words = tmp_path / "pairs.jsonl", [f"w{number}" for number in range(40)]
    write_rows(
        path,
        [
            {
                "prompt": f"Which words, {number}?",
                "chosen": " ".join(words[(number + at * 5) % 40] for at in range(7)),
                "rejected": " ".join(words[(number + 1 + at * 7) % 40] for at in range(7)),
            }
            for number in range(200)
        ],
    )
    return path


def test_of_simulated_analyses_the_known_share_is_kept(pairs, tmp_path):
    settings = {"preferences": {"path": str(pairs)}, "writer": {"model": "simulated:0.25"}, "batch": 8}
    recipe = RECIPE.resolve(None, settings)
    manifest = rationales.synthesize(recipe, tmp_path / "out")
    check = manifest["counts"]["steps"]["check"]
    assert check["dropped"].keys() == {"tie"}
    assert binomtest(check["kept"], check["in"], 0.75).pvalue > 0.01
    assert binomtest(check["kept"], check["in"], 0.55).pvalue < 0.001  # the control
    found = [row.demonstration for row in read_demonstrations(tmp_path / "out" / "rows")]
    assert len(found) == 2 * check["kept"] == len({one.id for one in found})
    verdicts = [text_of(one.completion)[-3] for one in found]
    assert verdicts.count("A") == verdicts.count("B")


def test_a_simulated_checker_with_an_error_rate_is_refused():
    models = {"preferences": {"path": "none"}, "writer": {"model": "simulated:0.2"}}
    RECIPE.resolve(None, {**models, "checker": {"model": "simulated:0"}})
    for rates in ("0.2", "misformat=0.1"):
        with pytest.raises(ConfigError, match="checker"):
            RECIPE.resolve(None, {**models, "checker": {"model": f"simulated:{rates}"}})
