"""Evaluations of trajectories: published results, metrics against other libraries, and runs as a user makes them."""

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, f1_score, roc_auc_score

import longrm
from longrm.errors import DataError, LongRMError
from longrm.evaluation.step_metrics import StepTable, agent_accuracy, outcome_metrics, step_metrics
from longrm.runs.records import TrajectoryRecord
from longrm.types import Outcome

DRAWN = {"seed": 0, "resamples": 200}
DATA = Path(__file__).parents[3] / "shared" / "data"
BENCH = DATA / "agentprocessbench"
# StepAcc and FirstErrAcc of HotpotQA, GAIA, BFCL and tau2, arXiv 2603.14465.
PUBLISHED = {
    "GPT-5.2-Chat": (71.4, 70.0, 69.3, 58.0, 71.6, 58.0, 80.4, 58.4),
    "DeepSeek-V3.2": (74.4, 65.2, 61.8, 48.0, 74.1, 50.0, 73.3, 57.6),
    "Gemini-3-Flash-Preview": (76.7, 70.0, 73.8, 53.2, 77.6, 40.8, 81.2, 56.0),
    "GPT-5.2-Thinking_(medium)": (72.3, 73.2, 70.9, 58.8, 64.9, 44.4, 75.2, 53.6),
    "Gemini-3-Flash-Preview-Thinking": (75.8, 70.4, 79.7, 65.2, 81.8, 64.0, 83.4, 63.6),
    "Kimi-K2.5-Thinking": (70.6, 68.4, 66.6, 58.0, 79.8, 57.6, 78.3, 65.6),
    "Qwen3-4B": (58.6, 59.2, 35.8, 29.2, 65.0, 29.2, 57.9, 38.0),
    "Qwen3-4B-Instruct-2507": (66.6, 59.2, 44.0, 36.0, 65.8, 33.6, 59.2, 48.8),
    "Qwen3-30B-A3B-Instruct-2507": (65.8, 54.4, 48.3, 35.2, 72.4, 36.4, 67.2, 49.6),
    "Llama-3.2-3B-Instruct": (44.3, 58.4, 22.5, 27.6, 37.7, 23.6, 37.6, 40.4),
    "Llama-3.3-70B-Instruct": (46.3, 60.0, 36.6, 30.8, 64.6, 30.8, 56.9, 46.8),
    "Qwen3-8B-Thinking": (59.7, 58.0, 45.9, 41.2, 70.9, 38.8, 66.4, 46.0),
    "Qwen3-4B-Thinking-2507": (66.9, 60.4, 41.9, 36.8, 65.4, 33.6, 63.0, 46.8),
    "Qwen3-30B-A3B-Thinking-2507": (70.0, 64.8, 53.1, 46.4, 73.2, 35.2, 71.8, 61.6),
}
SETS = ("hotpotqa", "gaia_dev", "bfcl", "tau2")


@pytest.mark.skipif(not BENCH.is_dir(), reason="no ../shared/data/agentprocessbench")
@pytest.mark.parametrize("judge", PUBLISHED)
def test_recorded_judges_have_the_published_results(judge, tmp_path):
    settings = {"recorded": str(BENCH / "results" / judge), "judging.resamples": 100}
    run = evaluated(f"agentprocessbench:{BENCH}", tmp_path / "run", settings)
    by_task = run.summary.by_task
    for name, step, first in zip(SETS, PUBLISHED[judge][::2], PUBLISHED[judge][1::2], strict=True):
        found = by_task[name]
        assert 100 * found["step_accuracy"].value == pytest.approx(step, abs=0.1001)
        assert 100 * found["first_error_accuracy"].value == pytest.approx(first, abs=0.1001)


def evaluated(bench, out: Path, settings):
    from longrm.evaluation.evaluate import Evaluation, run_evaluation
    from longrm.evaluation.read_run import Run

    run_evaluation(Evaluation.resolve(overrides={"bench": bench, **settings}), out)
    return Run(out)


def record(number: int, labels, scores, *, group=None, success=None, **more) -> TrajectoryRecord:
    return TrajectoryRecord(
        id=f"t{number}",
        group=group or f"g{number}",
        outcome=Outcome.ANSWERED if scores else Outcome.UNPARSED,
        labels=tuple(labels),
        scores=tuple(scores),
        success=success,
        characters=(5,) * len(labels),
        **more,
    )


def random_records(count=60, seed=0):
    draw = np.random.default_rng(seed)
    made = []
    for number in range(count):
        labels = draw.choice([1.0, 0.0, -1.0], draw.integers(1, 9), p=[0.6, 0.1, 0.3])
        scores = np.round(labels + draw.normal(0, 1.5, labels.size), 1)
        made.append(
            record(
                number, labels.tolist(), scores.tolist(), group=f"g{number // 3}", success=bool(number % 2)
            )
        )
    return made


def test_metrics_of_steps_are_those_of_scikit_learn():
    records = random_records()
    table = StepTable.of(records, 0.0, probabilities=True)
    found = step_metrics(table, **DRAWN)
    labels = np.concatenate([one.labels for one in records])
    scores = np.concatenate([one.scores for one in records])
    ranked = labels != 0
    assert found["auc"].value == pytest.approx(roc_auc_score(labels[ranked] > 0, scores[ranked]), abs=1e-12)
    predicted = np.where(scores > 0, 1, -1)
    assert found["step_accuracy"].value == pytest.approx(np.mean(predicted == labels))
    assert found["macro_f1"].value == pytest.approx(
        f1_score(labels, predicted, average="macro", labels=[1, 0, -1])
    )
    chance = 1 / (1 + np.exp(-scores[ranked]))
    assert found["brier"].value == pytest.approx(brier_score_loss(labels[ranked] > 0, chance))
    edges = np.clip((chance * 10).astype(int), 0, 9)
    gaps = [abs((chance - (labels[ranked] > 0))[edges == b].sum()) for b in range(10)]
    assert found["ece"].value == pytest.approx(sum(gaps) / chance.size)
    for name in ("auc", "step_accuracy", "macro_f1", "pair_accuracy"):
        assert found[name].low < found[name].value < found[name].high
    # A table with other scores has other values, so equality above is no accident.
    other = step_metrics(StepTable.of(random_records(seed=1), 0.0), **DRAWN)
    assert abs(other["auc"].value - found["auc"].value) > 1e-3


def test_pairs_and_first_errors_by_hand():
    records = [
        record(
            0, [1, 1, -1, -1], [3, 1, 1, -2]
        ),  # pairs: 3>1, 3>-2, 1=1, 1>-2 -> 3.5 of 4; first error at 3, not 2
        record(1, [1, None, -1], [2, -5, -1]),  # pair right; the unlabeled step is taken for the first error
        record(2, [1, 1], [1, 2]),  # no error, none found
        record(3, [1, -1], []),  # not answered: wrong
    ]
    found = step_metrics(StepTable.of(records, 0.0), **DRAWN)
    assert found["pair_accuracy"].value == pytest.approx((3.5 / 4 + 1 + 0) / 3)
    assert found["first_error_accuracy"].value == pytest.approx(1 / 4)
    assert found["step_accuracy"].value == pytest.approx((3 + 2 + 2 + 0) / 10)
    # Of three trajectories with an error: step 3 is lowest, not 2; right; not answered.
    assert found["lowest_is_first_error"].value == pytest.approx(1 / 3)


def test_without_a_threshold_only_ranks_are_measured():
    found = step_metrics(StepTable.of(random_records()), **DRAWN)
    assert {"auc", "pair_accuracy", "lowest_is_first_error"} == found.keys()


@pytest.mark.parametrize(("reduce", "function"), [("last", lambda s: s[-1]), ("min", min), ("mean", fmean)])
def test_outcomes_of_trajectories_against_scikit_learn(reduce, function):
    records = random_records()
    found = outcome_metrics(StepTable.of(records, 0.0, probabilities=True, trajectory_score=reduce), **DRAWN)
    scores, success = (
        np.array([function(one.scores) for one in records]),
        np.array([one.success for one in records]),
    )
    assert found["auc"].value == pytest.approx(roc_auc_score(success, scores))
    predicted = scores > 0
    assert found["precision"].value == pytest.approx((predicted & success).sum() / predicted.sum())
    assert found["recall"].value == pytest.approx((predicted & success).sum() / success.sum())
    assert found["brier"].value == pytest.approx(brier_score_loss(success, 1 / (1 + np.exp(-scores))))
    tasks = [slice(at, at + 3) for at in range(0, 60, 3)]
    best = [success[task][scores[task] == scores[task].max()].mean() for task in tasks]
    assert found["best_of_n"].value == pytest.approx(np.mean(best))
    assert found["best_of_n_random"].value == pytest.approx(success.mean())
    assert found["best_of_n_oracle"].value == pytest.approx(np.mean([success[task].any() for task in tasks]))


def test_the_agent_of_the_first_wrong_step():
    agents = ("Web", "Coder", "Web")
    right = record(0, [1, -1, None], [1, -1, -1], agents=agents, wrong_agent="Coder")
    other = record(1, [1, -1, None], [-1, -1, -1], agents=agents, wrong_agent="Coder")
    none = record(2, [1, -1, None], [1, 1, 1], agents=agents, wrong_agent="Coder")
    assert agent_accuracy(StepTable.of([right, other, none]), **DRAWN).value == pytest.approx(1 / 3)


LAYOUTS = [
    {
        "id": "agent",
        "messages": [
            {"role": "user", "content": "Find the code."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "The code is blue."},
            {"role": "assistant", "content": "It is red."},
        ],
        "step_labels": {"1": 1, "3": -1},
        "success": False,
    },
    {"prompt": "1 + 1?", "completions": ["One and one.", "Two."], "labels": [True, False]},
    {
        "problem": "2 + 2?",
        "steps": ["Two and two.", "Five.", "So five."],
        "label": 1,
        "final_answer_correct": False,
    },
    {
        "question": {"problem": "3 + 3?"},
        "label": {
            "steps": [
                {"completions": [{"text": "Three and three.", "rating": 1}], "chosen_completion": 0},
                {"completions": [{"text": "Seven.", "rating": -1}], "chosen_completion": None},
            ]
        },
    },
]


def test_every_layout_is_recognized_and_judged(tmp_path):
    from tests.reward_models.tiny_models import bytes_tokenizer, make_scorer

    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LAYOUTS))
    model = make_scorer(tmp_path / "model", positions=600, tokenizer=bytes_tokenizer())
    run = longrm.evaluate(str(model), str(file), tmp_path / "run", {"judging.resamples": 100})
    summary = run.summary
    assert (summary.trajectories, summary.steps, summary.complete) == (4, 8, True)
    records = {one.id: one for one in run.trajectories}
    assert [one.labels for one in records.values()] == [(1, -1), (1, -1), (1, -1, None), (1, -1)]
    assert records["agent"].success is False
    scored = longrm.load(str(model)).score(
        LAYOUTS[0]["messages"][:1], [LAYOUTS[0]["messages"][1:2], LAYOUTS[0]["messages"][1:4]]
    )
    assert records["agent"].scores == pytest.approx(scored, abs=5e-5)
    # The same rows in memory; other labels in the same folder are refused.
    again = longrm.evaluate(str(model), LAYOUTS, settings={"judging.resamples": 100})
    assert [one.scores for one in again.trajectories] == [one.scores for one in run.trajectories]
    file.write_text(file.read_text().replace('"3": -1', '"3": 1'))
    with pytest.raises(LongRMError, match="agent"):
        longrm.evaluate(str(model), str(file), tmp_path / "run", {"judging.resamples": 100})


def test_stepwise_labels_may_be_1_and_0():
    rows = [LAYOUTS[1] | {"labels": labels} for labels in ([True, False], [1, 0])]
    run = longrm.evaluate("baseline:longest", rows, settings={"judging.resamples": 100})
    assert [one.labels for one in run.trajectories] == [(1, -1), (1, -1)]
    assert "baseline:longest on" in repr(run)
    assert "auc 0.0%" in repr(run)
    assert "<table" in run._repr_html_()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"step_labels": {"2": 1}}, "step_labels.2"),
        ({"step_labels": {"1": 7}}, "step_labels"),
        ({"step_labels": [1]}, "step_labels"),
        ({"success": "yes"}, "success"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"),
    ],
)
def test_a_bad_row_names_its_place(change, field, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(LAYOUTS[0]) + "\n" + json.dumps({**LAYOUTS[0], "id": "b", **change}) + "\n")
    with pytest.raises(DataError) as error:
        longrm.evaluate("baseline:longest", str(file))
    assert f"{file}:2" in str(error.value) or "row 2" in str(error.value) or "line 2" in str(error.value)
    assert field in str(error.value)


def test_a_probe_of_trajectories(tmp_path):
    from tests.reward_models.tiny_models import make_scorer

    model = make_scorer(tmp_path / "model", positions=2048)
    settings = {"judging.resamples": 100, "probe.tokenizer": "words"}
    run = longrm.probe(
        str(model), tmp_path / "run", lengths=[256, 512], tasks="trajectory", n=8, settings=settings
    )
    summary = run.summary
    assert (summary.kind, summary.trajectories, set(summary.by_length)) == (
        "step evaluation",
        16,
        {"256", "512"},
    )
    assert {"earlier steps", "shorter steps", "most common label"} == summary.baselines.keys()
    with pytest.raises(LongRMError, match="trajectory"):
        longrm.probe(
            str(model), tmp_path / "other", lengths=[256], tasks=["records", "trajectory"], settings=settings
        )


def test_rows_of_the_world_are_read_back(tmp_path):
    from longrm.data.trajectories import read_trajectories, to_row
    from longrm.worlds.trajectories import TrajectoryPlan, trajectories
    from longrm.worlds.words_tokenizer import load_tokenizer

    made = list(trajectories(TrajectoryPlan(512), 5, load_tokenizer("words")))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(to_row(one)) + "\n" for one in made))
    assert [row.trajectory for row in read_trajectories(str(file))] == made


def test_the_report_shows_steps(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in LAYOUTS))
    longrm.evaluate("baseline:longest", str(file), tmp_path / "run", {"judging.resamples": 100})
    longrm.report(tmp_path / "run", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for text in ("All labeled steps", "right above wrong", "rule without a model"):
        assert text in page


def test_an_audit_of_trajectories(tmp_path):
    file = tmp_path / "mine.jsonl"
    stray = {"id": "stray", "messages": [*LAYOUTS[0]["messages"][:2], {"role": "tool", "content": "a"}] * 2}
    stray["messages"][3:4] = [{"role": "tool", "content": "again"}, {"role": "tool", "content": "and again"}]
    stray |= {"messages": [*stray["messages"], {"role": "assistant", "content": "Done."}], "success": True}
    file.write_text("".join(json.dumps(row) + "\n" for row in [*LAYOUTS, stray]))
    found = longrm.audit(str(file))
    assert found.kinds == {"trajectory": 5}
    assert found.labels == {
        "a wrong step, failure": 2,
        "a wrong step, outcome unknown": 2,
        "no labels, success": 1,
    }
    assert found.findings["results_without_call"].count == 1


def test_messages_alone_are_scored_and_columns_can_have_other_names(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"messages": LAYOUTS[0]["messages"]}) + "\n")
    run = longrm.evaluate("baseline:longest", str(file), settings={"judging.resamples": 100})
    assert [len(one.scores) for one in run.trajectories] == [2]
    assert run.summary.metrics == {}
    renamed = {"chat": LAYOUTS[0]["messages"], "verdicts": [1, -1], "ok": False}
    file.write_text(json.dumps(renamed) + "\n")
    columns = {"messages": "chat", "step_labels": "verdicts", "success": "ok"}
    run = longrm.evaluate("baseline:longest", str(file), settings={"judging.resamples": 100}, columns=columns)
    assert [(one.labels, one.success) for one in run.trajectories] == [((1, -1), False)]


LOG = {
    "question": "Where?",
    "question_ID": "q",
    "mistake_agent": "Web",
    "mistake_step": "2",
    "history": [
        {"role": "human", "content": "Where?"},
        {"role": "Planner (thought)", "content": "Ask Web."},
        {"role": "WebX", "content": "In Rome."},
        {"role": "Planner", "content": "Done."},
    ],
}


def test_who_and_when_reads_one_log_a_file(tmp_path):
    folder = tmp_path / "logs" / "Hand-Crafted"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps(LOG, indent=4))
    run = longrm.evaluate(
        "baseline:longest", f"who-and-when:{tmp_path}/logs", settings={"judging.resamples": 100}
    )
    (one,) = run.trajectories
    assert (one.id, one.labels, one.agents) == (
        "Hand-Crafted/1",
        (1, -1, None),
        ("Planner", "WebX", "Planner"),
    )
    assert run.summary.findings == {
        "logs in which another agent than the named one wrote the decisive step": 1
    }
    (folder / "1.json").write_text(json.dumps({**LOG, "mistake_step": "9"}, indent=4))
    with pytest.raises(DataError, match="mistake_step"):
        longrm.evaluate("baseline:longest", f"who-and-when:{tmp_path}/logs")


@pytest.mark.skipif(not (DATA / "who-and-when").is_dir(), reason="no ../shared/data/who-and-when")
def test_the_published_logs_of_who_and_when():
    from longrm import benchmarks

    bench = benchmarks.load(f"who-and-when:{DATA / 'who-and-when'}")
    found = list(bench.trajectories)
    assert (len(found), len({one.metadata["task"] for one in found})) == (143, 2)
    assert all(one.labels.count(-1.0) == 1 for one in found)
    assert bench.trajectories.findings["other_agent"].count == 5


@pytest.mark.skipif(not (DATA / "tau-bench").is_dir(), reason="no ../shared/data/tau-bench")
def test_single_trials_of_tau_bench():
    run = longrm.evaluate(
        "baseline:longest",
        f"tau-bench-trajectories:{DATA / 'tau-bench'}",
        settings={"judging.resamples": 100},
    )
    rows = json.loads((DATA / "tau-bench" / "gpt-4o-airline.json").read_text())
    truth = {
        f"gpt-4o-airline/{row['task_id']}/{row['trial']}": row["reward"] == 1 for row in rows if row["traj"]
    }
    assert {one.id: one.success for one in run.trajectories} == truth
    assert {"auc", "best_of_n", "best_of_n_oracle"} <= run.summary.success.keys()


def test_errors_do_not_count_in_the_boundary():
    from longrm.evaluation.steps import _pairs

    answered = record(0, [1, -1, 0], [2, 1, 5], length=512)
    failed = record(1, [1, -1], [], length=512)
    error = TrajectoryRecord(id="e", group="e", outcome=Outcome.ERROR, labels=(1.0, -1.0), length=512)
    table = _pairs([answered, failed, error])
    assert len(table) == 2
    assert table.answered.tolist() == [True, False]


@pytest.mark.parametrize("setting", [{"judging.votes": 3}, {"judging.context_check": "removed"}])
def test_settings_of_comparisons_are_refused(setting):
    with pytest.raises(LongRMError, match=next(iter(setting))):
        longrm.evaluate("baseline:longest", LAYOUTS, settings=setting)


def test_labels_of_0_and_1_are_warned_about(caplog):
    rows = [{"messages": LAYOUTS[0]["messages"], "labels": labels} for labels in ([1, 0], [1, 1])]
    longrm.evaluate("baseline:longest", rows, settings={"judging.resamples": 100})
    assert "label 0" in caplog.text
    caplog.clear()
    longrm.evaluate(
        "baseline:longest", [*rows, {**rows[0], "labels": [1, -1]}], settings={"judging.resamples": 100}
    )
    assert "label 0" not in caplog.text


def test_a_killed_run_continues(tmp_path, monkeypatch):
    from longrm.evaluation import steps
    from longrm.reward_models.baselines import Baseline

    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({**LAYOUTS[0], "id": f"t{number}"}) + "\n" for number in range(5)))
    monkeypatch.setattr(steps, "_BATCH", 2)
    whole = longrm.evaluate("baseline:longest", str(file), tmp_path / "whole", {"judging.resamples": 100})
    judge, asked = Baseline.judge, []

    def killed(self, queries):
        asked.extend(query.id for query in queries)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return judge(self, queries)

    monkeypatch.setattr(Baseline, "judge", killed)
    with pytest.raises(KeyboardInterrupt):
        longrm.evaluate("baseline:longest", str(file), tmp_path / "run", {"judging.resamples": 100})
    run = longrm.evaluate("baseline:longest", str(file), tmp_path / "run", {"judging.resamples": 100})
    assert asked == ["t0", "t1", "t2", "t3", "t2", "t3", "t4"]
    logs = [(one.path / "trajectories.jsonl").read_bytes() for one in (run, whole)]
    assert logs[0] == logs[1]
    assert run.summary == whole.summary


def test_a_limit_takes_a_sample_that_is_counted():
    rows = [{**LAYOUTS[0], "id": f"t{number}"} for number in range(9)]
    run = longrm.evaluate("baseline:longest", rows, settings={"source.limit": 3, "judging.resamples": 100})
    assert (run.summary.trajectories, run.summary.sampled_from) == (3, 9)


def test_a_trajectory_without_scores_finds_no_first_error():
    records = [record(0, [1, 1], []), record(1, [1, 1], [1, 1])]
    assert step_metrics(StepTable.of(records), **DRAWN)["first_error_accuracy"].value == 0.5
