"""The solve-to-judge gap: what a judge answers correctly itself and still judges wrong."""

import random
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import longrm
from longrm import read_run
from longrm.benchmarks import LoadedBenchmark
from longrm.cli.evaluate import print_evaluation
from longrm.cli.runs import command as runs
from longrm.clients import Completion, TextGenerator
from longrm.errors import ConfigError, DataError
from longrm.evaluation.estimates import ratio
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.judge_behavior import solve_to_judge
from longrm.evaluation.table import JudgmentTable, is_scored
from longrm.evaluation.trials import JudgingSettings
from longrm.reward_models import JudgeSettings
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.runs.judgments import Judgments
from longrm.runs.logs import JUDGMENTS, Log, to_line
from longrm.runs.records import JudgmentRecord
from longrm.types import CommittedAnswer, Outcome, message_text, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

OPTIONS = {"seed": 0, "resamples": 300}
SCORES = {"right": (1.0, 0.0), "wrong": (0.0, 1.0), "tie": (0.5, 0.5), "silent": ()}


@pytest.fixture
def records(judgment):
    """Records of all kinds: solved, unsolved and unchecked, right, wrong, tied and silent, without gold, errors."""
    draw, made = random.Random(3), []
    for number in range(240):
        verdict = draw.choice(["right", "right", "wrong", "tie", "silent"])
        solved = draw.choice([True, True, False, None])
        outcome = draw.choice([Outcome.ANSWERED] * 3 + [Outcome.TRUNCATED])
        fields = {
            "scores": SCORES[verdict],
            "outcome": Outcome.ANSWERED if SCORES[verdict] else Outcome.UNPARSED,
            "length": draw.choice([None, 512, 2048]),
            "committed": CommittedAnswer("x", outcome, solved),
        }
        if number % 40 == 0:
            fields |= {"outcome": Outcome.ERROR, "scores": (), "committed": None}
        if number % 40 == 1:
            fields["ranks"] = (1, 1)
        made.append(judgment(f"{number}", f"group {number // 3}", **fields))
    return made


def by_hand(records, length=None):
    """Shares of the comparisons that were checked: solved, and of these the credit that the verdict lost."""
    solved = missed = checked = 0
    for record in records:
        usable = record.outcome is not Outcome.ERROR and len(set(record.ranks)) > 1
        if not usable or record.committed.solved is None or length not in (None, record.length):
            continue
        checked += 1
        if record.committed.solved:
            solved += 1
            missed += {(1.0, 0.0): 0, (0.5, 0.5): 0.5}.get(record.scores, 1)
    return solved / checked, missed / checked, checked


def test_shares_are_those_of_brute_force(records):
    found = solve_to_judge(JudgmentTable.of(records), **OPTIONS)
    for part, length in ((found, None), *((found.by_length[str(n)], n) for n in (512, 2048))):
        solved, gap, checked = by_hand(records, length)
        assert (part.solved.value, part.gap.value) == (pytest.approx(solved), pytest.approx(gap))
        assert part.solved.n == part.gap.n == checked
        assert 0 < part.gap.low < gap < part.gap.high < solved
    assert list(found.by_length) == ["512", "2048"]
    ended = [record.committed.outcome for record in records if record.committed]
    assert {o: n for o, n in found.outcomes.items() if n} == {o: ended.count(o) for o in set(ended)}
    # The interval is that of a mean over clusters.
    credit = {"right": 0.0, "wrong": 1.0, "tie": 0.5, "silent": 1.0}
    names = {scores: name for name, scores in SCORES.items()}
    kept = [r for r in records if is_scored(r) and r.committed.solved is not None]
    missed = np.array([r.committed.solved * credit[names[r.scores]] for r in kept])
    group = np.array([int(r.group.split()[1]) for r in kept])
    _, group = np.unique(group, return_inverse=True)
    reference = ratio(missed, np.ones(len(kept)), group, **OPTIONS)
    assert found.gap == reference

    # Negative control: with each comparison's own answer given to the next one, the gap is another.
    moved = [
        replace(one, committed=other.committed)
        for one, other in zip(records, records[-1:] + records[:-1], strict=True)
        if one.committed and other.committed
    ]
    assert solve_to_judge(JudgmentTable.of(moved), **OPTIONS).gap.value != pytest.approx(found.gap.value)


def test_it_is_absent_where_no_judge_answers_first_and_undefined_without_gold_answers(records):
    silent = [replace(record, committed=None) for record in records]
    assert solve_to_judge(JudgmentTable.of(silent), **OPTIONS) is None
    unchecked = [replace(record, committed=CommittedAnswer("x")) for record in records]
    found = solve_to_judge(JudgmentTable.of(unchecked), **OPTIONS)
    assert (found.solved.n, found.gap.value, found.by_length) == (0, None, {})
    assert found.outcomes[Outcome.ANSWERED] == len(records)


def test_records_are_logged_and_old_logs_still_load(tmp_path, judgment):
    record = judgment("a", scores=(1.0, 0.0), committed=CommittedAnswer("amber", Outcome.TRUNCATED, False))
    old = replace(record, committed=None)
    assert b"committed" not in to_line(old)
    with Log(tmp_path / JUDGMENTS, JudgmentRecord) as log:
        log.append(record, old)
    assert [one.committed for one in Log(tmp_path / JUDGMENTS, JudgmentRecord)] == [record.committed, None]


class Knowing(TextGenerator):
    """A judge of records: knows the answer to some questions, and judges some of them wrong, by fixed rules."""

    name = "knowing"
    limit = None

    def __init__(self, rows, stop_after=None):
        self._rows = {row.prompt[0]["content"]: row for row in rows}
        self._number = {row.id: number for number, row in enumerate(rows)}
        self._stop_after = stop_after
        self.asked = 0

    def generate(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        self.asked += 1
        if self._stop_after is not None and self.asked > self._stop_after:
            raise KeyboardInterrupt
        text = message_text(request.messages[0])
        row = next(row for prompt, row in self._rows.items() if prompt in text)
        number, best = self._number[row.id], text_of(row.responses[row.best_first()[0]])
        if len(request.messages) == 1:
            if number % 7 == 6:
                return Completion(Outcome.TRUNCATED, "It could be anything, for example")
            return Completion(Outcome.ANSWERED, best if solves(number) else "It is a secret.")
        first = message_text(request.messages[2]).split('<response name="A">')[1]
        good = (best in first.split("</response>")[0]) != errs(number)
        return Completion(Outcome.ANSWERED, f"[[{'A' if good else 'B'}]]")

    def tokens(self, messages):
        return len(text_of(messages).split())


def solves(number):
    return number % 7 < 5


def errs(number):
    return number % 3 == 0


def rows(count=90):
    return list(generate(WorldPlan("records", 64, per_group=3), count, words_tokenizer()))


def judge(comparisons, path, *, stop_after=None, **settings):
    judging = JudgingSettings(resamples=200, **settings)
    model = GenerativeRewardModel(Knowing(comparisons, stop_after), JudgeSettings(solve=True))
    run = Evaluation(model="x", bench="x", judging=judging, judge=JudgeSettings(solve=True))
    return run_evaluation(run, path, bench=LoadedBenchmark("test", comparisons), model=model)


def logs(path):
    return tuple((path / f"{name}.jsonl").read_bytes() for name in ("judgments", "examples", "gold"))


def test_an_evaluation_end_to_end(tmp_path, capsys):
    data = rows()
    summary = judge(data, tmp_path / "run")
    found, count = summary.solve_to_judge, len(data)
    numbers = range(count)
    assert found.solved.value == pytest.approx(sum(map(solves, numbers)) / count)
    assert found.gap.value == pytest.approx(sum(solves(n) and errs(n) for n in numbers) / count)
    assert summary.accuracy.strict.value == pytest.approx(sum(not errs(n) for n in numbers) / count)
    assert found.outcomes[Outcome.TRUNCATED] == count // 7
    solved = [record.committed.solved for record in Judgments(tmp_path / "run")]
    assert solved == [solves(number) for number in numbers]
    assert read_run(tmp_path / "run")["solved"].tolist() == solved
    print_evaluation(summary)
    printed = capsys.readouterr()
    for share in (found.solved, found.gap):
        assert f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]" in printed.out
    assert f"{count // 7} truncated" in printed.out
    shown = CliRunner().invoke(runs, ["show", str(tmp_path / "run"), "--limit", "7"]).output
    assert [shown.count(f"Own answer, {status}") for status in ("right", "wrong:", "wrong, truncated:")] == [
        5,
        1,
        1,
    ]
    longrm.report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert 'id="solving"' in page
    assert f"{100 * found.gap.value:.1f}%" in page


def test_another_metric_decides_what_is_solved(tmp_path):
    data = rows(30)
    assert judge(data, tmp_path / "exact", answer_metric="exact_match").solve_to_judge.solved.value == 0.0
    with pytest.raises(ConfigError, match="answer_metric"):
        Evaluation.resolve(overrides={"model": "x", "bench": "x", "judging.answer_metric": "luck"})


@pytest.mark.parametrize("stop_after", [1, 200, 250])
def test_a_killed_run_continues_to_the_same_bytes(tmp_path, stop_after):
    data = rows()
    whole = judge(data, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        judge(data, tmp_path / "cut", stop_after=stop_after)
    assert judge(data, tmp_path / "cut") == whole
    assert logs(tmp_path / "cut") == logs(tmp_path / "whole")


def test_a_gold_answer_must_not_change_when_a_run_continues(tmp_path):
    data = rows()
    judge(data, tmp_path / "run")
    other = [replace(row, metadata={**row.metadata, "answer": "another"}) for row in data]
    with pytest.raises(DataError, match="gold answer"):
        judge(other, tmp_path / "run")
