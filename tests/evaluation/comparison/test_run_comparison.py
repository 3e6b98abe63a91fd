"""Comparison of runs: recomputed numbers, comparisons that are left out, errors and texts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from longrm.errors import ConfigError, RunError
from longrm.evaluation.compare import compare
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.metrics import metric_of
from longrm.evaluation.summarize import summarize
from longrm.runs.folder import RunFolder
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome


def credits(folder):
    """Whether each pair in a run's log is right, and where it belongs; read without the package."""
    rows = [json.loads(line) for line in (folder / "judgments.jsonl").read_text().splitlines()]
    right = np.array(
        [(r["scores"][0] > r["scores"][1]) + 0.5 * (r["scores"][0] == r["scores"][1]) for r in rows]
    )
    return right, {
        key: np.array([row[key] for row in rows]) for key in ("id", "group", "length", "depth", "task")
    }


def brute_force(gain, group, rng, draws=4000):
    """Mean gains of resampled groups, each drawn and put together anew."""
    rows = [np.flatnonzero(group == name) for name in np.unique(group)]
    drawn = (rng.integers(0, len(rows), len(rows)) for _ in range(draws))
    return np.array([gain[np.concatenate([rows[at] for at in picks])].mean() for picks in drawn])


def test_every_part_is_what_the_logs_say(two_runs):
    found = compare(*two_runs)
    (first, place), (second, _) = map(credits, two_runs)
    bins = np.minimum((place["depth"] * 5).astype(int), 4)
    names = np.array(["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0"])[bins]
    length = place["length"].astype(str)
    expected = {("overall", "all"): np.ones(240, bool)}
    expected |= {("length", name): length == name for name in ("1024", "4096")}
    expected |= {("depth", name): names == name for name in np.unique(names)}
    expected |= {("task", name): place["task"] == name for name in ("cite", "count")}
    expected |= {
        ("length and depth", f"{long}, {deep}"): (length == long) & (names == deep)
        for long in np.unique(length)
        for deep in np.unique(names)
    }
    parts = {(kind, name): part for kind, name, part in found.parts()}
    assert parts.keys() == expected.keys()
    for key, rows in expected.items():
        part, one, other = parts[key], first[rows], second[rows]
        assert (part.first, part.second) == pytest.approx((one.mean(), other.mean()))
        assert part.difference.value == pytest.approx(other.mean() - one.mean())
        assert (part.n, part.groups) == (rows.sum(), len(set(place["group"][rows])))
        assert part.few_groups == (part.groups < 10)
        wins = int((one > other).sum()), int((other > one).sum())
        table = mcnemar([[0, wins[0]], [wins[1], 0]], exact=True)
        assert (part.mcnemar.only_first, part.mcnemar.only_second) == wins
        assert part.mcnemar.p == pytest.approx(table.pvalue if sum(wins) else 1.0)
    assert found.wins == {"first": (), "second": tuple(place["id"][second > first])}
    assert found.overall.mcnemar.only_second > 10


def test_p_values_are_adjusted_within_each_kind_of_part(two_runs):
    found = compare(*two_runs)
    kinds = {}
    for kind, _, part in found.parts():
        kinds.setdefault(kind, []).append(part)
    for parts in kinds.values():
        adjusted = multipletests([part.p for part in parts], method="holm")[1]
        assert [part.p_holm for part in parts] == pytest.approx(adjusted)
    assert found.overall.p_holm == found.overall.p < found.overall.p * len(kinds["depth"])


def test_intervals_are_those_of_a_bootstrap_over_groups(written, pairs):
    rng = np.random.default_rng(3)
    # Groups go together: each judge is mostly right or mostly wrong in one.
    chances = [rng.beta(level, 1 - level, 200) for level in (0.6, 0.75)]
    judges = [(rng.random(1000) < np.repeat(chance, 5)).astype(float) for chance in chances]
    runs = [written(name, pairs(right, per_group=5)) for name, right in zip("ab", judges, strict=True)]
    found = compare(*runs).overall.difference
    gain = judges[1] - judges[0]
    drawn = brute_force(gain, np.arange(1000) // 5, rng)
    low, high = np.quantile(drawn, [0.025, 0.975])
    width = high - low
    assert found.low == pytest.approx(low, abs=0.06 * width)
    assert found.high == pytest.approx(high, abs=0.06 * width)
    alone = np.quantile(brute_force(gain, np.arange(1000), rng), [0.025, 0.975])
    assert np.ptp(alone) < 0.6 * width  # negative control: comparisons that were drawn one by one


def test_items_are_paired_by_their_text_whatever_they_are_called(written, pairs):
    right = np.array([1.0, 1, 0, 0] * 20)
    one = pairs(right)
    # The same items in another order, under other names, in groups of other names, and two of them with one text.
    other = [replace(r, id=f"new {r.id}", group=f"new {r.group}") for r in reversed(pairs(1 - right))]
    runs = written("a", one), written("b", other, bench="file:x", digests=lambda r: f"text of {r.id[4:]}")
    found = compare(*runs)
    assert (found.overall.n, found.overall.groups) == (80, 20)
    assert found.wins["first"] == tuple(r.id for r, was in zip(one, right, strict=True) if was)
    assert sum(found.left_out.values()) == 0
    assert found.differs_in == ("bench: 'probe' -> 'file:x'",)
    twice = [
        written(name, records, digests=lambda r: "one text")
        for name, records in (("c", one), ("d", one[:50]))
    ]
    same = compare(*twice)
    assert (same.overall.n, same.left_out["only_in_first"]) == (50, 30)
    assert same.overall.difference.value == 0.0


def test_what_cannot_be_compared_is_left_out_and_counted(written, pairs):
    one, other = pairs(np.ones(80)), pairs(np.zeros(84))
    failed = {"outcome": Outcome.ERROR, "scores": ()}
    one[0] = replace(one[0], **failed)
    one[1], other[1] = replace(one[1], **failed), replace(other[1], **failed)
    other[2], other[3] = replace(other[2], **failed), replace(other[3], **failed)
    other[4] = replace(other[4], ranks=(2, 1))
    one[5], other[5] = replace(one[5], ranks=(1, 1)), replace(other[5], ranks=(1, 1))
    refused = replace(other[6], outcome=Outcome.REFUSED, scores=())  # no error: it counts as wrong
    found = compare(written("a", one[:79]), written("b", [*other[:6], refused, *other[7:]]))
    assert found.left_out == {
        "only_in_first": 0,
        "only_in_second": 5,
        "gold_differs": 1,
        "without_gold": 1,
        "error_in_first": 1,
        "error_in_second": 2,
        "error_in_both": 1,
    }
    assert found.overall.n == 79 - 6
    assert (found.overall.first, found.overall.second) == (1.0, 0.0)


def test_differences_of_settings_are_listed(written, pairs):
    one = pairs(np.array([1.0, 0.0] * 40))
    moved = [replace(r, length=3657 if r.length == 1024 else r.length) for r in one]
    settings = {"judging.orders": "one", "judging.seed": 3, "remote.concurrency": 2, "model_args.cut": "left"}
    found = compare(written("a", one), written("b", moved, model="other", **settings))
    assert found.differs_in == (
        "judging.orders: 'auto' -> 'one'",
        "judging.seed: 0 -> 3",
        "model_args.cut: 'refuse' -> 'left'",
        "length: differs for 40 comparisons, such as 'item-0000' (1024 -> 3657); the first run's is used",
    )
    assert found.by_length.keys() == {"1024", "4096"}
    apart = [replace(r, group=r.id) for r in one]
    (line,) = compare(written("c", one), written("d", apart)).differs_in
    assert line.startswith("groups: ")


def refused(*runs, error=RunError, **options):
    with pytest.raises(error) as caught:
        compare(*runs, **options)
    return str(caught.value)


def test_runs_that_cannot_be_compared_are_refused(written, pairs, tmp_path):
    one = pairs(np.ones(8))
    fine = written("fine", one)
    elsewhere = written("elsewhere", one, bench="judgebench:x", digests=lambda r: f"other text of {r.id}")
    assert "share no comparison" in refused(fine, elsewhere)
    turned = written("turned", [replace(r, ranks=(2, 1)) for r in one])
    assert "gold differs 8" in refused(fine, turned)
    assert "half" in refused(fine, written("half", one, finished=False))
    assert "'item-0000'" in refused(fine, written("old", one, digests=lambda r: ""))
    with RunFolder(tmp_path / "training", "training", Evaluation(model="x", bench="probe")):
        pass
    assert "training" in refused(fine, tmp_path / "training")
    assert "nothing" in refused(fine, tmp_path / "nothing")
    refused(fine, error=ConfigError)
    assert "acuracy" in refused(fine, fine, metric="acuracy", error=ConfigError)
    assert "auc_margin" in refused(fine, fine, metric="auc_margin", error=ConfigError)


def test_rankings_are_compared_by_their_own_metric_or_another(written):
    rng = np.random.default_rng(0)
    runs = []
    for name, skill in (("a", 0.2), ("b", 2.0)):
        runs.append(written(name, [
            JudgmentRecord(id=f"{n}", group=f"{n // 2}", outcome=Outcome.ANSWERED, ranks=(1, 2, 3), order=(0, 1, 2),
                           scores=tuple((rng.normal(size=3) - skill * np.arange(3)).tolist()))
            for n in range(120)
        ]))  # fmt: skip
    top = compare(*runs)
    assert top.metric == "top1"
    gain = 100 * top.overall.difference.value
    assert f"{metric_of('top1').title} {gain:+.1f} [" in top.headline
    assert "] points on" in top.headline
    found = compare(*runs, metric="kendall_tau")
    assert found.by_length == found.by_depth == found.by_task == {}
    assert found.headline.startswith(f"b minus a: {metric_of('kendall_tau').title} +0.")


def test_further_runs_are_each_compared_with_the_first(two_runs, written, pairs):
    third = written("third", pairs(np.zeros(240)))
    found = compare(*two_runs, third)
    assert [one.as_dict() for one in found.each] == [
        compare(*two_runs).as_dict(),
        compare(two_runs[0], third).as_dict(),
    ]
    held = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert held["others"][0]["second"]["label"] == "third"
    assert held["others"][0]["others"] == []
    estimate = held["by_length"]["4096"]["difference"]
    assert estimate["low"] < estimate["value"] < estimate["high"]


def test_a_difference_has_the_interval_that_the_summary_of_the_run_has(written, pairs):
    """Also where the run's seed and number of resamples are not the default ones."""
    rng = np.random.default_rng(0)
    rule, model = (pairs((rng.random(120) < share).astype(float)) for share in (0.6, 0.7))
    judged = [
        replace(one, baselines={"longest": other.scores}) for one, other in zip(model, rule, strict=True)
    ]
    drawn = {"seed": 5, "resamples": 300}
    folders = [written(name, one, judging=drawn) for name, one in (("longest", rule), ("model", judged))]
    summed = summarize(judged, model="model", bench="probe", **drawn).to_dict()["baselines"]["longest"][
        "difference"
    ]
    found = compare(*folders).overall.difference
    assert (found.low, found.high) == pytest.approx((summed["low"], summed["high"]))
    other = compare(written("other", rule), folders[1]).overall.difference
    assert (other.low, other.high) != pytest.approx((summed["low"], summed["high"]))
