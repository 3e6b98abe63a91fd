"""Labels of criteria: synthetic rows in SummHay's layout, and the published file where it is at hand."""

import json
import re

import numpy as np
import pytest
from scipy.stats import pearsonr

import longrm
from longrm.benchmarks import load
from longrm.errors import ConfigError, DataError
from longrm.evaluation.criteria import correlation
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.summary_schema import load_summary
from longrm.reporting.load import load_report
from longrm.reporting.sections.criteria import criteria
from tests.benchmarks.conftest import REAL

PEOPLE = ("not_covered", "partially_covered", "fully_covered")
JUDGE = ("NO_COVERAGE", "PARTIAL_COVERAGE", "FULL_COVERAGE")
DRAWN = {"seed": 0, "resamples": 200}


def row(number, labels, judged, **more):
    """A summary with people's (coverage, place of the bullet from 0) and a judge's (coverage, bullet from 1)."""
    return {
        "subtopic_id": f"s{number // 3}",
        "summkey": f"summary_{number % 3}",
        "summary": ["A bullet."],
        "annotation": [
            {"insight_id": f"i{at}", "coverage": PEOPLE[level], "candidate_id": place}
            for at, (level, place) in enumerate(labels)
        ],
        "predictions_prompted_one": [
            {
                "insight_id": f"i{at}",
                "coverage": level if isinstance(level, str) else JUDGE[level],
                "bullet_id": b,
            }
            for at, (level, b) in enumerate(judged)
        ],
        **more,
    }


ROW = row(
    0,
    [(2, "0"), (0, "no_selection"), (1, "1"), (2, "2")],
    [(2, 1), (1, 3), (1, 3), ("?", 3)],  # same bullet; no bullet by people; another bullet; not a label
)


def evaluated(file, out, **settings):
    given = {"bench": f"summhay:{file}", "recorded": str(file), "judging.resamples": 100, **settings}
    return run_evaluation(Evaluation.resolve(overrides=given), out)


def test_labels_and_links_by_hand(put, tmp_path):
    other = row(1, [(0, "no_selection"), (2, "1")], [(0, "NA"), (1, [1, 2])], predictions_nine_two=None)
    summary = evaluated(put("r.jsonl", ROW, other), tmp_path / "run")
    assert (summary.summaries, summary.groups, summary.criteria) == (2, 1, 6)
    assert load_summary(tmp_path / "run") == summary
    section = criteria(load_report([tmp_path / "run"]))
    assert [row.header for table in section.tables for row in table.rows] == ["prompted_one"]
    (one,) = summary.judges.values()
    assert [*summary.judges] == ["prompted_one"]
    assert one.unlabeled == 1
    assert (one.linking.value, one.linking.n) == (0.5, 2)  # several bullets, or none, are no link
    expected = pearsonr([1, 0, 0.5, 0, 1], [1, 0.5, 0.5, 0, 0.5]).statistic
    assert one.correlation.value == pytest.approx(expected, abs=1e-12)


def test_a_report_names_the_judge_that_agrees_most_and_no_folder_of_figures(put, tmp_path):
    opposite = dict(zip(JUDGE, reversed(JUDGE), strict=True))
    labels = [
        one | {"coverage": opposite.get(one["coverage"], "?")} for one in ROW["predictions_prompted_one"]
    ]
    evaluated(put("r.jsonl", {"predictions_another": labels, **ROW}), tmp_path / "run")
    longrm.report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert re.search(r'class="finding">run[^<]*of 2 judges, prompted_one agrees most with people', page)
    assert "SVG and PNG" not in page


def test_a_record_of_another_file_is_matched_by_summary_and_criterion(put, tmp_path):
    people, judge = dict(ROW), dict(ROW)
    del people["predictions_prompted_one"], judge["annotation"]
    bench, record = put("people.jsonl", people), put("judge.jsonl", judge)
    (one,) = evaluated(bench, tmp_path / "run", recorded=str(record)).judges.values()
    assert one.correlation.n == 3
    other = put("other.jsonl", {**judge, "summkey": "summary_9"})
    with pytest.raises(DataError, match=str(other)):
        evaluated(bench, tmp_path / "none", recorded=str(other))
    with pytest.raises(DataError, match="people.jsonl"):
        evaluated(bench, tmp_path / "none")


@pytest.mark.parametrize(
    "wrong",
    [
        {"recorded": None, "model": "baseline:longest"},
        {"shard": "1/2"},
        {"source.limit": 1},
    ],
)
def test_settings_that_it_does_not_support_are_refused(wrong, put, tmp_path):
    with pytest.raises(ConfigError, match="summhay"):
        evaluated(put("r.jsonl", ROW), tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"coverage": "covered"}, "coverage"),
        ({"candidate_id": "none"}, r"annotation\[0\].candidate_id"),
        ({"insight_id": "i1"}, "annotation"),
    ],
)
def test_an_invalid_label_of_people_is_named(change, field, put):
    first, *others = ROW["annotation"]
    wrong = {**ROW, "annotation": [{**first, **change}, *others]}
    with pytest.raises(DataError, match=f"line 1, field '{field}"):
        load(f"summhay:{put('r.jsonl', wrong)}")


def test_the_correlation_is_that_of_scipy_and_its_interval_covers_groups():
    draw = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 10)
    shared = draw.normal(size=40)[group]
    one, other = shared + draw.normal(size=400), shared + draw.normal(size=400)
    found = correlation(one, other, group, **DRAWN)
    assert found.value == pytest.approx(pearsonr(one, other).statistic, abs=1e-12)
    assert found.low < found.value < found.high
    alone = correlation(one, other, np.arange(400), **DRAWN)
    # Negative control: values of a group depend on each other, so that single rows would give too narrow an interval.
    assert found.high - found.low > 1.3 * (alone.high - alone.low)
    assert correlation(one, np.zeros(400), group, **DRAWN).value is None


def test_the_published_judges_by_the_authors_formulas(tmp_path):
    file = REAL / "summhay" / "eval_benchmark_data.json"
    if not file.is_file():
        pytest.skip("SummHay is not in ../shared/data")
    summary = evaluated(file, tmp_path / "run")
    rows = json.loads(file.read_text(encoding="utf-8"))
    scores = {**dict(zip(PEOPLE, (0, 0.5, 1), strict=True)), **dict(zip(JUDGE, (0, 0.5, 1), strict=True))}
    assert len(summary.judges) == 6
    assert summary.criteria == sum(len(one["annotation"]) for one in rows)
    for name, found in summary.judges.items():
        gold, judged, links = [], [], []
        for one in rows:
            by_id = {label["insight_id"]: label for label in one[f"predictions_{name}"]}
            for label in one["annotation"]:
                answer = by_id[label["insight_id"]]
                gold.append(scores[label["coverage"]])
                judged.append(scores[answer["coverage"]])
                if isinstance(answer["bullet_id"], int) and label["candidate_id"] != "no_selection":
                    links.append(answer["bullet_id"] - 1 == int(label["candidate_id"]))
        assert found.correlation.value == pytest.approx(pearsonr(gold, judged).statistic, abs=1e-9)
        assert found.linking.value == pytest.approx(np.mean(links))
        assert (found.linking.n, found.unlabeled) == (len(links), 0)
    # With all 200 summaries .751, .716 and .498 are published.
    for name, published in (("gemini-1.5-pro", 0.751), ("gpt-4o", 0.716), ("claude3-haiku", 0.498)):
        estimate = summary.judges[f"prompted_{name}"].correlation
        assert estimate.low < published < estimate.high
