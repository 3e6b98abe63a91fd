"""Group rewards: Bradley-Terry strengths, what they cost, how well they rank, and verdicts that tie or are missing."""

import json
import logging
import math
import re
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import kendalltau

import longrm
from longrm.cli.score import command as score
from longrm.errors import ConfigError
from longrm.modeling.group_sampling import GroupSampler
from longrm.reward_models import JudgeSettings, RewardModel
from longrm.reward_models.groups import GroupRewardModel, bradley_terry, verdicts_asked
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.scoring.selection import rank_file
from longrm.serving.wire import ScoreRequest
from longrm.serving.worker import Worker
from longrm.types import Comparison, Judgment, Outcome, Query, query_of, text_of

from .tiny_models import make_model, make_scorer, queries


def said(text, role="assistant"):
    return ({"role": role, "content": text},)


def group(count, name="q"):
    return Query(name, said("Which?", "user"), tuple(said(f"r{index}") for index in range(count)))


class Judge(RewardModel):
    """Answers a pair with what a function makes of the two responses' texts: a lead, an outcome or a judgment."""

    name, sees_order, scale = "judge", True, "verdict"

    def __init__(self, verdict, scale="verdict"):
        self.verdict, self.scale, self.asked = verdict, scale, []

    def judge(self, queries):
        self.asked += queries
        return [self.answer(self.verdict(*map(text_of, query.responses))) for query in queries]

    def answer(self, lead):
        if isinstance(lead, Outcome):
            return Judgment(lead, detail=f"it was {lead}")
        return Judgment(Outcome.ANSWERED, (lead, 0.0), explanation="So it is.")


def by_number(first, second):
    """Prefers the response with the lower number."""
    return 1.0 if first < second else -1.0


# ---- Strengths ----


def loss(strengths, wins):
    """The negative log-likelihood with the prior, from its definition, pair by pair."""
    count = len(wins)
    pairs = [(i, j) for i in range(count) for j in range(i) if wins[i, j] + wins[j, i] > 0]
    ties = (count - 1) / len(pairs)
    total = 0.0
    for i, j in pairs:
        lead = strengths[i] - strengths[j]
        total -= (wins[i, j] + ties / 2) * math.log(expit(lead))
        total -= (wins[j, i] + ties / 2) * math.log(expit(-lead))
    return total


def tournaments():
    draw = np.random.default_rng(0)
    for count in (2, 3, 5, 8):
        for _ in range(4):
            wins = np.triu(draw.integers(0, 5, (count, count)) / 2, 1)
            yield wins + np.triu(2 - wins, 1).T  # two verdicts a pair, with ties
    chain = np.diag([2.0] * 5, 1)  # far from the start of Newton's method
    yield chain
    yield chain * 20


@pytest.mark.parametrize("wins", [*tournaments()])
def test_strengths_minimize_the_loss_and_errors_are_its_curvature(wins):
    strengths, covariance = bradley_terry(wins)
    count = len(wins)
    start = np.random.default_rng(1).normal(size=count)
    found = minimize(loss, start, (wins,), method="BFGS", options={"gtol": 1e-7}).x
    tolerance = 2e-5 * max(1, np.ptp(strengths))
    assert strengths == pytest.approx(found - found.mean(), abs=tolerance)
    assert strengths.mean() == pytest.approx(0, abs=1e-10)
    step, unit = 1e-3, np.eye(count)
    hessian = np.array(
        [
            [
                sum(
                    a * b * loss(strengths + step * (a * unit[i] + b * unit[j]), wins)
                    for a in (1, -1)
                    for b in (1, -1)
                )
                for j in range(count)
            ]
            for i in range(count)
        ]
    ) / (4 * step**2)
    assert covariance == pytest.approx(np.linalg.pinv(hessian, rcond=1e-6), rel=1e-3, abs=1e-4)
    turned, _ = bradley_terry(wins.T)
    assert turned == pytest.approx(-strengths, abs=1e-8)
    if np.ptp(strengths) > 0.1:
        assert np.abs(turned - (found - found.mean())).max() > 100 * tolerance  # the control


@pytest.mark.parametrize(("won", "lost"), [(2, 0), (1.5, 0.5), (1, 1), (0, 1)])
def test_two_responses_differ_by_their_log_odds(won, lost):
    strengths, covariance = bradley_terry(np.array([[0.0, won], [lost, 0.0]]))
    assert strengths[0] - strengths[1] == pytest.approx(math.log((won + 0.5) / (lost + 0.5)))
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert variance == pytest.approx(1 / (won + 0.5) + 1 / (lost + 0.5))


@pytest.mark.parametrize("count", [3, 4, 8])
def test_one_response_that_wins_a_round_robin_in_which_all_others_tie(count):
    wins = np.ones((count, count)) - np.eye(count)
    wins[0, 1:], wins[1:, 0] = 2.0, 0.0
    strengths, _ = bradley_terry(wins)
    # Its share of each pair is the same, and of N - 1 prior ties each of the N (N - 1) / 2 pairs has 2 / N.
    expected = math.log((2 + 1 / count) / (1 / count))
    assert strengths[1:] == pytest.approx([strengths[1]] * (count - 1))
    assert strengths[0] - strengths[1] == pytest.approx(expected)


def test_intervals_of_independent_verdicts_cover_the_truth():
    draw, truth = np.random.default_rng(0), np.linspace(-1, 1, 6)
    chance = np.triu(expit(truth[:, None] - truth), 1)
    covered, narrow = [], []
    for _ in range(300):
        wins = np.triu(draw.binomial(2, chance), 1)
        strengths, covariance = bradley_terry(wins + np.triu(2 - wins, 1).T)
        distance = np.abs(strengths - truth) / np.sqrt(np.diag(covariance))
        covered.append(distance < 1.96)
        narrow.append(distance < 0.98)
    assert 0.94 < np.mean(covered) < 0.98
    assert np.mean(narrow) < 0.8  # the control: errors half as large


# ---- Verdicts ----


@pytest.mark.parametrize(("method", "verdicts"), [("round-robin", 12), ("anchor", 6)])
def test_every_pair_is_asked_about_in_both_orders(method, verdicts):
    judge = Judge(by_number)
    (judgment,) = GroupRewardModel(judge, method).judge([group(4)])
    pairs = [tuple(map(text_of, query.responses)) for query in judge.asked]
    assert len(pairs) == len(set(pairs)) == verdicts == verdicts_asked(method, 4)
    assert {pair[::-1] for pair in pairs} == set(pairs)
    assert [query.trial for query in judge.asked] == [*range(verdicts)]
    if method == "anchor":
        assert len(set.intersection(*map(set, pairs))) == 1
    else:
        assert sorted(judgment.scores, reverse=True) == list(judgment.scores)
    assert sum(judgment.scores) == pytest.approx(0, abs=1e-8)
    assert len(judgment.standard_errors) == 4
    assert judgment.detail == ""


@pytest.mark.parametrize("method", ["round-robin", "anchor"])
def test_the_presented_order_changes_nothing(method):
    comparison = Comparison("c", "c", said("?", "user"), group(5).responses, (1, 2, 3, 4, 5))
    model = longrm.load("simulated:0.3", judge={"group": method}, gold=[comparison])
    orders = [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3)]
    plain, turned = model.judge([query_of(comparison, order) for order in orders])
    assert tuple(plain.scores[index] for index in orders[1]) == turned.scores
    assert tuple(plain.standard_errors[index] for index in orders[1]) == turned.standard_errors
    assert turned.scores != plain.scores


@pytest.mark.parametrize("method", ["round-robin", "anchor"])
@pytest.mark.parametrize("verdict", [lambda *_: 1.0, lambda *_: 0.0], ids=["always the first", "ties"])
def test_position_bias_cancels_and_ties_count_half(method, verdict):
    (judgment,) = GroupRewardModel(Judge(verdict), method).judge([group(5)])
    assert judgment.scores == (0.0,) * 5


def test_log_odds_share_the_win():
    leads = {("r0", "r1"): 2.0, ("r1", "r0"): -0.5}
    (soft,) = GroupRewardModel(Judge(lambda *pair: leads[pair], "logit"), "anchor").judge([group(2)])
    won = expit(2.0) + expit(0.5)
    assert soft.scores[0] == pytest.approx(math.log((won + 0.5) / (2.5 - won)) / 2)
    (hard,) = GroupRewardModel(Judge(lambda *pair: leads[pair]), "anchor").judge([group(2)])
    assert hard.scores[0] == pytest.approx(math.log(2.5 / 0.5) / 2)


def test_missing_verdicts_are_omitted_and_counted(caplog):
    gone = {("r0", "r1"): Outcome.UNPARSED, ("r2", "r1"): Outcome.TRUNCATED}
    model = GroupRewardModel(Judge(lambda *pair: gone.get(pair) or by_number(*pair)), "round-robin")
    (judgment,) = model.judge([group(3)])
    expected, covariance = bradley_terry(np.array([[0, 1, 2], [0, 0, 1], [0, 0, 0.0]]))
    assert judgment.scores == pytest.approx(tuple(expected))
    assert judgment.standard_errors == pytest.approx(tuple(np.sqrt(np.diag(covariance))))
    assert judgment.detail.startswith("2 of 6 verdicts")
    assert model.missing == {"unparsed": 1, "truncated": 1}
    model.judge([group(3)])
    assert model.missing == {"unparsed": 2, "truncated": 2}
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 2  # only the first of each


@pytest.mark.parametrize(
    ("lost", "outcome"), [(Outcome.UNPARSED, Outcome.UNPARSED), (Outcome.TOO_LONG, Outcome.TOO_LONG)]
)
@pytest.mark.parametrize("alone", [{"r3"}, {"r2", "r3"}])
def test_strengths_of_separate_parts_are_not_compared(lost, outcome, alone):
    def verdict(*pair):
        return lost if len(alone.intersection(pair)) == 1 else by_number(*pair)

    (judgment,) = GroupRewardModel(Judge(verdict), "round-robin").judge([group(4)])
    assert (judgment.outcome, judgment.scores) == (outcome, ())
    assert judgment.detail.startswith(f"it was {lost}; {2 * len(alone) * (4 - len(alone))} of 12")
    assert f"response {min(int(name[1]) for name in alone) + 1} " in judgment.detail


def test_an_error_is_one_of_the_whole_group():
    def verdict(*pair):
        return Outcome.ERROR if pair == ("r1", "r0") else by_number(*pair)

    (judgment,) = GroupRewardModel(Judge(verdict), "round-robin").judge([group(4)])
    assert (judgment.outcome, judgment.scores) == (Outcome.ERROR, ())
    (single,) = GroupRewardModel(Judge(by_number), "anchor").judge([group(1)])
    assert single.outcome is Outcome.ERROR


@pytest.mark.parametrize(
    "model",
    ["baseline:longest", "ensemble:votes:baseline:first+baseline:last", "{scalar}", "likelihood:{writer}"],
)
def test_models_that_compare_nothing_are_refused(model, tmp_path):
    names = {"scalar": make_scorer(tmp_path / "scalar"), "writer": make_model(tmp_path / "writer")}
    with pytest.raises(ConfigError, match=r"judge\.group"):
        longrm.load(model.format(**names), judge={"group": "anchor"})
    with pytest.raises(ConfigError, match=r"judge\.group"):
        longrm.load(str(names["writer"]), judge={"group": "anchor", "format": "pointwise", "max_tokens": 8})


# ---- Judges that err ----


def anchored_first(count, error):
    """How often the best of N is first after anchor verdicts that are wrong at a rate, ties shared."""

    def beside(others):
        """The mean of 1 / (1 + K) for K of the others that beat the anchor, each with its own chance."""
        chances = np.ones(1)
        for chance in others:
            chances = np.convolve(chances, [1 - chance, chance])
        return sum(chance / (1 + number) for number, chance in enumerate(chances))

    right = 1 - error
    total = right ** (count - 1)  # the anchor itself is the best
    for better in range(1, count):  # so many are better than the anchor
        total += right * beside([right] * (better - 1) + [error] * (count - 1 - better))
    return total / count


def round_robin_by_enumeration(count, error):
    """Kendall's tau-a and how often the best is first, ties shared, over all results of the pairs."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]  # i is better
    tau = first = 0.0
    for wrong in product((False, True), repeat=len(pairs)):
        chance = math.prod(error if one else 1 - error for one in wrong)
        won = [0] * count
        for (i, j), one in zip(pairs, wrong, strict=True):
            won[j if one else i] += 1
        tau += chance * np.mean([np.sign(won[i] - won[j]) for i, j in pairs])
        best = [index for index in range(count) if won[index] == max(won)]
        first += chance * (0 in best) / len(best)
    return tau, first


@pytest.mark.parametrize("error", [0.0, 0.2])
@pytest.mark.parametrize("method", ["round-robin", "anchor"])
def test_ranks_of_judges_that_err_are_as_expected(method, error):
    count, groups = 4, 600
    if method == "anchor":
        # Kendall's tau-a: pairs with the anchor, and pairs that it separates, are right by 1 - 2 errors more than not.
        expected = ((1 - 2 * error) * (count + 4) / (3 * count), anchored_first(count, error))
    else:
        expected = round_robin_by_enumeration(count, error)
    rows = [
        Comparison(str(number), "", said("?", "user"), group(count).responses, tuple(range(1, count + 1)))
        for number in range(groups)
    ]
    model = longrm.load(f"simulated:{error}", judge={"group": method}, gold=rows)
    taus, firsts = [], []
    for judgment in model.judge([query_of(row, range(count)) for row in rows]):
        pairs = [
            np.sign(judgment.scores[i] - judgment.scores[j])
            for i in range(count)
            for j in range(i + 1, count)
        ]
        taus.append(np.mean(pairs))
        best = np.flatnonzero(np.array(judgment.scores) == max(judgment.scores))
        firsts.append((0 in best) / len(best))
    for values, mean in zip((taus, firsts), expected, strict=True):
        assert abs(np.mean(values) - mean) <= 4 * np.std(values) / math.sqrt(groups) + 1e-9
        other = 1 / count if values is firsts else 0.0  # the control: a judge at chance
        assert abs(np.mean(values) - other) > 8 * np.std(values) / math.sqrt(groups)
    if not error and method == "round-robin":
        assert set(taus) == {1.0}
        assert kendalltau(judgment.scores, [4, 3, 2, 1]).statistic == pytest.approx(1)


# ---- Where it is used ----


def test_a_local_model_reads_the_common_prompt_once(tmp_path, monkeypatch):
    folder, read = make_model(tmp_path / "model"), []
    forward = GroupSampler._forward
    monkeypatch.setattr(
        GroupSampler, "_forward", lambda self, ids, *rest: read.append(len(ids)) or forward(self, ids, *rest)
    )
    (one,) = queries((600, 4))
    settings = {"max_tokens": 1, "retries": 0}
    model = longrm.load(str(folder), judge={**settings, "group": "round-robin"})
    (judgment,) = model.judge([one])
    assert judgment.prompt_tokens > 2500
    together = sum(read)
    # Each verdict after the first reads what follows the context.
    after = judgment.prompt_tokens - len(text_of(one.prompt))
    assert together <= judgment.prompt_tokens + 11 * after + 1
    read.clear()
    for first, second in permutations(one.responses, 2):  # the control: in a new process every time
        model.inner._writer._sampler.forget()
        model.inner.judge([Query("alone", one.prompt, (first, second))])
    assert sum(read) > 2 * together


def test_rewards_of_a_group(caplog):
    model = longrm.load("simulated:0", judge={"group": "round-robin"})
    completions = ["one", "two", "three"]
    reward = longrm.reward_function(model)
    rewards = reward(["Why?"] * 3, completions)
    assert sorted(rewards)[1] == pytest.approx(0, abs=1e-8)
    assert len(set(rewards)) == 3
    # A group whose verdicts are missing has no rewards, and its completions are not judged alone.
    judge = Judge(lambda *pair: Outcome.UNPARSED)
    reward = longrm.reward_function(GroupRewardModel(judge, "anchor"))
    assert reward(["Why?"] * 3, completions) == [None] * 3
    assert (reward.unscored, len(judge.asked)) == ({"unparsed": 3}, 4)


def test_served():
    model = longrm.load("simulated:0", judge={"group": "anchor"})
    worker = Worker(lambda: model, 10)
    (result,) = [one.result() for one in worker.submit([ScoreRequest("Why?", ["one", "two", "three"])])]
    worker.stop()
    assert len(result.scores) == 3
    assert sum(result.scores) == pytest.approx(0, abs=1e-8)
    assert "standard error" in result.explanation


def test_scored_and_ranked_rows_have_standard_errors(tmp_path, caplog):
    data, out, ranked = (tmp_path / name for name in ("data.jsonl", "scored.jsonl", "ranked.jsonl"))
    rows = [{"prompt": f"Question {n}?", "responses": ["one", "two", "three"][: 2 + n % 2]} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = JudgeSettings(group="anchor")
    settings = {"data": str(data), "model": "simulated:misformat=0.2", "judge": judge}
    with caplog.at_level(logging.INFO, "longrm"):
        counts = score_file(ScoreSettings(**settings), out)
    assert any("12 verdicts for 4 rows" in record.getMessage() for record in caplog.records)
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    answered = [row for row in scored if row["scores_outcome"] == "answered"]
    assert {len(row["scores_se"]) == len(row["scores"]) for row in answered} == {True}
    assert {row["scores_se"] for row in scored if row not in answered} <= {None}
    assert {row["scores_by"] for row in scored} == {"simulated:misformat=0.2 (group=anchor)"}
    assert 0 < counts.incomplete <= len(answered)
    rank_file(ScoreSettings(data=str(out)), ranked)
    for row in map(json.loads, ranked.read_text().splitlines()):
        source = next(one for one in answered if one["prompt"] == row["prompt"][0]["content"])
        assert row["scores_se"] == [source["scores_se"][index] for index in row["order"]]
    plain = tmp_path / "plain.jsonl"
    score_file(ScoreSettings(data=str(data), model="simulated:0"), plain)
    assert "scores_se" not in json.loads(plain.read_text().splitlines()[0])


def test_the_command_prints_how_many_rows_lack_verdicts(tmp_path):
    data, out = tmp_path / "data.jsonl", tmp_path / "scored.jsonl"
    data.write_text(json.dumps({"prompt": "Question?", "responses": ["one", "two", "three"]}) + "\n")
    for rate, lacking in ((0, 0), (0.3, 1)):
        given = ["--model", f"simulated:misformat={rate}", "--data", str(data), "--out", str(out), "--force"]
        done = CliRunner().invoke(score, [*given, "--set", "judge.group=round-robin"])
        assert done.exit_code == 0, done.output
        assert len(re.findall(r"verdicts: 1 ", done.output)) == lacking


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text()
    (block,) = (one for one in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "round-robin" in one)
    names = {}
    exec(compile(block, "docs/rewards.md", "exec"), names)
    assert len(set(names["rewards"])) == 4


def test_best_of_n_is_evaluated(tmp_path):
    data = tmp_path / "best.jsonl"
    row = {"prompt": "Question?", "responses": ["one", "two", "three", "four"], "ranks": [2, 1, 2, 2]}
    data.write_text("".join(json.dumps({**row, "id": str(n), "group": str(n)}) + "\n" for n in range(4)))
    accuracy = {}
    for error in (0, 1):
        settings = {"judge": {"group": "round-robin"}, "judging": {"resamples": 100, "baselines": []}}
        run = longrm.evaluate(f"simulated:{error}", f"file:{data}", tmp_path / str(error), settings)
        accuracy[error] = run.items.correct.mean()
    assert accuracy == {0: 1.0, 1: 0.0}
