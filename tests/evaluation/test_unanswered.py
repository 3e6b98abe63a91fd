"""What was not answered, against counts by hand; a part that was answered and all wrong is the control."""

import pytest

from longrm.evaluation.breakdown import empty_cells, missing_answers
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import MissingAnswers, parse_summary
from longrm.evaluation.table import JudgmentTable
from longrm.types import Outcome

SAID = "31,333 > 4,096 tokens; prompt and longest response have more than the model reads; model_args.cut names it"


@pytest.fixture
def grid(judgment):
    """Pairs at two lengths and two depths: at 31,333 tokens nothing is answered, or everything and all wrong."""

    def made(*, answered):
        return [
            judgment(
                f"{length}-{depth}-{k}",
                outcome=Outcome.ANSWERED if answered or length == 4096 else Outcome.TOO_LONG,
                scores=(1.0, 0.0) if length == 4096 else (0.0, 1.0) if answered else (),
                detail="" if answered or length == 4096 else SAID,
                length=length,
                depth=depth,
                task="Cite",
            )
            for length in (4096, 31333)
            for depth in (0.0, 1.0)
            for k in range(4)
        ]

    return made


def summed(records):
    return parse_summary(summarize(records, model="m", bench="b", resamples=100).to_dict())


def test_a_part_without_an_answer_is_not_one_that_was_all_wrong(grid):
    silent, wrong = summed(grid(answered=False)), summed(grid(answered=True))
    for found, value in ((silent, None), (wrong, 0.0)):
        metrics = found.metrics
        assert metrics.by_length["31333"]["pair_accuracy"].value == value
        assert metrics.by_length_and_depth["31333"]["0.8-1.0"]["pair_accuracy"].value == value
        assert metrics.by_task_and_length["Cite"]["31333"]["pair_accuracy"].value == value
        # Where some were answered, what was not is wrong still.
        assert (
            metrics.overall["pair_accuracy"].value
            == metrics.by_depth["0.0-0.2"]["pair_accuracy"].value
            == 0.5
        )
    assert silent.metrics.macro.by_length.value is None
    assert wrong.metrics.macro.by_length.value == 0.5
    assert (silent.boundary.below, wrong.boundary.below) == (None, 31333)
    assert [*silent.boundary.effective_n] == ["4096"]
    assert (silent.complete, wrong.complete) == (False, True)


def test_missing_answers_are_counted_with_reasons(grid):
    found = missing_answers(JudgmentTable.of(grid(answered=False)))
    assert [*found.by_length] == ["31333"], "what was answered whole is not here"
    assert found.by_length["31333"].reason == "8 of 8 too long: 31,333 > 4,096 tokens"
    assert found.by_length_and_depth["31333"]["0.0-0.2"].reason == "4 of 4 too long: 31,333 > 4,096 tokens"
    assert (found.overall.comparisons, found.overall.answered, found.overall.outcomes) == (
        16,
        8,
        {Outcome.TOO_LONG: 8},
    )
    assert found.by_task_and_length["Cite"]["31333"].answered == 0
    assert [*empty_cells(found)] == ["at 31,333 tokens"], "its depths are not named again"
    assert missing_answers(JudgmentTable.of(grid(answered=True))) == MissingAnswers()


def test_a_depth_or_a_task_without_an_answer_is_named_and_makes_the_run_incomplete(judgment):
    def made(task, depth, *, answered):
        outcome = Outcome.ANSWERED if answered else Outcome.UNPARSED
        scores = (1.0, 0.0) if answered else ()
        return judgment(f"{task}{depth}", outcome=outcome, scores=scores, task=task, depth=depth, length=64)

    records = [made("A", 0.1, answered=True), made("A", 0.5, answered=False), made("B", 0.1, answered=False)]
    assert [*empty_cells(missing_answers(JudgmentTable.of(records)))] == [
        "at 64 tokens and depth 0.4-0.6",
        "in the task B",
    ]
    assert summed(records).complete is False
    assert summed(records[:1]).complete is True
