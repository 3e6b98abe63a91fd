from longrm.evaluation.failures import failures
from longrm.runs.records import Trial
from longrm.types import Outcome

OPTIONS = {"seed": 0, "resamples": 100}


def test_each_pattern_is_counted_over_what_can_show_it(judgment):
    trials = (
        Trial((0, 1), Outcome.ANSWERED, (1.0, 0.0), explanation="[[A]]", contradicted=True),
        Trial((1, 0), Outcome.UNPARSED),
        Trial((0, 1), Outcome.TRUNCATED),
    )
    records = [
        judgment("three", "g", outcome=Outcome.UNPARSED, trials=trials, context_check="unanswered"),
        judgment("one", "g", scores=(1.0, 0.0), contradicted=False, context_check="same"),
        judgment("two", scores=(1.0, 0.0), contradicted=False, context_check="changed"),
        judgment("no text", outcome=Outcome.REFUSED),
        judgment("too long", outcome=Outcome.TOO_LONG),
        judgment("gold unknown", ranks=None, scores=(1.0, 0.0), context_check="changed"),
    ]
    found = failures(records, **OPTIONS)
    assert {name: (metric["value"], metric["n"], metric["groups"]) for name, metric in found.items()} == {
        "format_missed": (2 / 6, 6, 3),
        "context_ignored": (1 / 3, 3, 3),
        "contradicted": (1 / 3, 3, 2),
    }


def test_what_was_not_asked_has_no_rate(judgment):
    found = failures([judgment("a", scores=(1.0, 0.0))], **OPTIONS)
    assert found["format_missed"] is found["context_ignored"] is found["contradicted"] is None


def test_what_was_cut_short_without_a_verdict_missed_the_format_too(judgment):
    ended = [Outcome.ANSWERED] * 5 + [Outcome.UNPARSED] * 2 + [Outcome.TRUNCATED] * 3
    records = [
        judgment(f"c{number}", outcome=outcome, explanation="Some text.", length=128)
        for number, outcome in enumerate(ended)
    ]
    missed = failures(records, **OPTIONS)["format_missed"]
    assert (missed["value"], missed["n"]) == (0.5, 10)
