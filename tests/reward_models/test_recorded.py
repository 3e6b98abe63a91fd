import json
from dataclasses import replace
from pathlib import Path

import pytest

from longrm.benchmarks import load
from longrm.errors import DataError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.trials import JudgingSettings
from longrm.reward_models.recorded import RecordedRewardModel
from longrm.runs.logs import Log
from longrm.runs.records import JudgmentRecord
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.types import Comparison, Cut, Outcome, Trial, query_of

REAL = Path(__file__).parents[3] / "shared" / "data" / "judgebench"
PANDALM_FILE = REAL.parent / "judgelrm" / "results_judgelrm3b.json"
PUBLISHED = [("Ray2333_GRM-Gemma-2B-rewardmodel-ft", 59.43), ("Skywork_Skywork-Reward-Llama-3.1-8B", 62.29)]


def comparison(name: str, responses: int = 2) -> Comparison:
    texts = [f"response number {index}" for index in range(responses)]
    return Comparison(
        name,
        name,
        ({"role": "user", "content": "?"},),
        tuple(({"role": "assistant", "content": text},) for text in texts),
    )


def judged(model: RecordedRewardModel, about: Comparison):
    """The judgments of all recorded trials."""
    orders = model.orders(about.id)
    return model.judge([query_of(about, order, trial) for trial, order in enumerate(orders)])


def pair(name: str, *judgments) -> dict:
    return {"pair_id": name, "judgments": list(judgments)}


def wrote(text: str, decision: str | None = None) -> dict:
    decided = {} if decision is None else {"decision": decision}
    return {"judgment": {"judge_model": "j", "prompt": "", "response": text}} | decided


def scored(*scores: float) -> dict:
    return {
        "judgment": {"judge_model": "j", "prompt": "", "response": "", "scores": scores},
        "decision": "A>B",
    }


def log(path: Path, *records: JudgmentRecord) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Log(path, JudgmentRecord) as open_log:
        open_log.append(*records)
    return path


TRIALS = (
    Trial(
        order=(1, 0),
        outcome=Outcome.ANSWERED,
        scores=(0.2, 0.9),
        explanation="so",
        attempts=2,
        contradicted=True,
    ),
    Trial(order=(0, 1), outcome=Outcome.TRUNCATED, detail="too long an answer"),
)
OURS = JudgmentRecord(
    id="a",
    group="g",
    outcome=Outcome.TRUNCATED,
    order=(1, 0),
    prompt_tokens=7,
    cut=Cut("left", 3),
    trials=TRIALS,
)
RANKED = JudgmentRecord(id="b", group="g", outcome=Outcome.ANSWERED, order=(2, 0, 1), ranking=(1, 2, 0))


def test_our_own_run_is_answered_as_it_was(tmp_path):
    log(tmp_path / "run/judgments.jsonl", OURS, RANKED)
    (tmp_path / "run/summary.json").write_text('{"scale": "points"}')
    model = RecordedRewardModel(tmp_path / "run")
    assert (model.scale, model.sees_order, model.samples) == ("points", True, False)
    assert model.orders("a") == ((1, 0), (0, 1))
    first, second = judged(model, comparison("a"))
    assert first.scores == (0.9, 0.2)  # as they were presented
    assert (first.explanation, first.attempts, first.contradicted) == ("so", 2, True)
    assert (first.prompt_tokens, first.cut) == (7, Cut("left", 3))
    assert (second.outcome, second.detail) == (Outcome.TRUNCATED, "too long an answer")
    (ranked,) = judged(model, comparison("b", 3))
    assert ranked.ranking == (2, 0, 1)  # shown at 2 is response 1, the best; then 2, then 0


def test_our_log_alone_has_no_scale_and_its_last_record_counts(tmp_path):
    failed = replace(RANKED, outcome=Outcome.ERROR, ranking=())
    model = RecordedRewardModel(log(tmp_path / "judgments.jsonl", failed, RANKED))
    assert model.scale == "none"
    assert judged(model, comparison("b", 3))[0].outcome is Outcome.ANSWERED


def test_what_was_not_recorded_is_an_error(put):
    model = RecordedRewardModel(put("j.jsonl", pair("p", scored(1, 2), scored(2, 1))))
    known, unknown = comparison("p"), comparison("q")
    queries = [query_of(known, (0, 1), 2), query_of(unknown, (0, 1)), query_of(comparison("p", 3), (0, 1, 2))]
    judgments = model.judge(queries)
    assert {judgment.outcome for judgment in judgments} == {Outcome.ERROR}
    assert [judgment.detail for judgment in judgments] == [
        "trial 3 of 'p' is not in the record",
        "'q' is not in the record",
        "'p' has 3 responses, and 2 in the record",
    ]
    assert model.orders("q") == ()


def test_scores_of_judgebench_are_in_presented_order(put):
    model = RecordedRewardModel(put("j.jsonl", pair("p", scored(1.5, 2), scored(2, 1.5))))
    assert model.scale == "logit"
    assert model.orders("p") == ((0, 1), (1, 0))
    assert [judgment.scores for judgment in judged(model, comparison("p"))] == [(1.5, 2.0), (2.0, 1.5)]


def test_texts_of_judgebench_are_parsed(put):
    rows = [
        pair("p", wrote("A is fine.\n\n[[A>>B]]"), wrote("[[A]] at first; no.\n\n[[B>A]]")),
        pair("q", wrote("No idea."), None),
    ]
    model = RecordedRewardModel(put("j.jsonl", *rows))
    assert model.scale == "verdict"
    first, second = judged(model, comparison("p"))
    assert (first.scores, second.scores) == ((1, 0), (0, 1))
    assert first.explanation == "A is fine.\n\n[[A>>B]]"
    silent, missing = judged(model, comparison("q"))
    assert (silent.outcome, silent.explanation) == (Outcome.UNPARSED, "No idea.")
    assert (missing.outcome, missing.detail) == (Outcome.UNPARSED, "the record has no judgment")


def test_a_judgebench_record_has_all_orders_and_known_decisions(put):
    with pytest.raises(DataError, match=r"line 2, field 'judgments': 1, but the rows before have 2"):
        RecordedRewardModel(put("one.jsonl", pair("p", scored(1, 2), scored(2, 1)), pair("q", scored(1, 2))))
    for decision, fails in (("A=B", False), ("", False), ("A>>B", True)):
        row = pair("p", {**scored(1, 2), "decision": decision})
        if fails:
            with pytest.raises(DataError, match=r"line 1, field 'judgments\[?.?0"):
                RecordedRewardModel(put("j.jsonl", row))
        else:
            RecordedRewardModel(put("j.jsonl", row))


def test_several_judges_are_not_mixed(put, tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        put(f"both/{name}", pair("p", scored(1, 2)))
    with pytest.raises(DataError, match=r"both: .*one.jsonl, two.jsonl"):
        RecordedRewardModel(tmp_path / "both")


def result(output, order, **fields) -> dict:
    return {
        "output": output,
        "shuffled_order": order,
        "subset": "Cite",
        "tasktype": "PairWise",
        "subtype": "same",
        "ctx_length": "4k",
        **fields,
    }


def test_results_of_the_release_belong_to_the_lines_of_their_task(put, tmp_path):
    put("results/Cite.jsonl", result("[[A]]", [1, 0]), result("[[B]]", [0, 1]))
    best = {"tasktype": "BestOfN", "subtype": "3", "subset": "Math"}
    put(
        "results/Math.jsonl",
        result("[Ranking]\n[[B>C>A]]", [2, 0, 1], index=4, **best),
        result("[[A>B]]", [0, 1], index=0, **{**best, "subtype": "2"}),
    )
    model = RecordedRewardModel(tmp_path / "results")
    assert model.scale == "verdict"
    assert model.orders("Cite/1") == ((1, 0),)
    assert judged(model, comparison("Cite/1"))[0].scores == (1, 0)
    assert judged(model, comparison("Cite/2"))[0].scores == (0, 1)
    (ranked,) = judged(model, comparison("Math/5", 3))
    assert (ranked.ranking, ranked.explanation) == ((1, 2, 0), "[Ranking]\n[[B>C>A]]")
    assert judged(model, comparison("Math/1"))[0].ranking == (0, 1)


def test_scores_of_the_release_are_logits_in_presented_order(put):
    model = RecordedRewardModel(put("Cite.jsonl", result([0.5, -1], [1, 0])))
    assert model.scale == "logit"
    assert judged(model, comparison("Cite/1"))[0].scores == (0.5, -1.0)


def agreement(comparison: Comparison, model: RecordedRewardModel, flipped: bool = True) -> int:
    """JudgeBench's own sum: +1 for a trial that agrees with the label, -1 for one that contradicts it."""
    total = 0
    for order, judgment in zip(model.orders(comparison.id), judged(model, comparison), strict=True):
        scores = dict(zip(order if flipped else (0, 1), judgment.scores, strict=False))
        margin = (scores[0] - scores[1]) * (comparison.ranks[1] - comparison.ranks[0]) if scores else 0
        total += (margin > 0) - (margin < 0)
    return total


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
@pytest.mark.parametrize(("name", "percent"), PUBLISHED)
def test_published_accuracies_follow_from_the_record(name, percent):
    path = REAL / f"gpt-4o-2024-05-13__reward_model__{name}.jsonl"
    model = RecordedRewardModel(path)
    pairs = list(load(f"judgebench:{path}").comparisons)
    sums = [agreement(each, model) for each in pairs]
    assert round(100 * sum(total > 0 for total in sums) / len(sums), 2) == percent
    unflipped = [agreement(each, model, flipped=False) for each in pairs]
    assert sum(total > 0 for total in unflipped) == 0  # both trials would cancel each other


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
@pytest.mark.parametrize(("name", "percent"), PUBLISHED)
def test_an_evaluation_of_the_record_reports_them(name, percent, tmp_path):
    path = REAL / f"gpt-4o-2024-05-13__reward_model__{name}.jsonl"
    settings = Evaluation(
        recorded=str(path), bench=f"judgebench:{path}", judging=JudgingSettings(baselines=(), resamples=100)
    )
    summary = run_evaluation(settings, tmp_path / "run").to_dict()
    assert round(summary["judgebench_rule"]["overall_percent"], 2) == percent
    assert summary["complete"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
def test_an_evaluation_counts_the_decisions_of_a_recorded_judge(tmp_path):
    path = REAL / "claude-3-5-sonnet-20240620__arena_hard__claude-3-haiku-20240307.jsonl"
    correct, rows = 0, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        first, second = (judgment["decision"] for judgment in row["judgments"])
        flipped = {"A>B": "B>A", "B>A": "A>B"}.get(second, second)
        decided = [found for found in (first, flipped) if found in ("A>B", "B>A")]
        correct += sum(1 if found == row["label"] else -1 for found in decided) > 0
    settings = Evaluation(
        recorded=str(path), bench=f"judgebench:{path}", judging=JudgingSettings(baselines=(), resamples=100)
    )
    summary = run_evaluation(settings, tmp_path / "run").to_dict()
    assert (summary["judgebench_rule"]["correct"], summary["judgebench_rule"]["pairs"]) == (correct, 270)
    percents = summary["judgebench_rule"]["by_category_percent"]
    # Reading the texts again gives 6.45 and 38.31: 13 of them have a verdict, and no decision in the record.
    assert (round(percents["Coding"], 2), round(percents["Knowledge"], 2)) == (9.68, 37.66)
    assert summary["counts"]["trials"]["outcomes"]["unparsed"] == 13


def score_rows(folder: Path, model: str, form: str = "jsonl", **columns: object) -> tuple[Path, Path]:
    """Pairs, and the file that scoring them writes."""
    data, out = folder / "pairs.jsonl", folder / f"scored.{form}"
    rows = [
        {"prompt": f"Question {n}?", "chosen": "so it is" * (n % 3 + 1), "rejected": "no" * n, **columns}
        for n in range(1, 20)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score_file(ScoreSettings(model=model, data=str(data)), out)
    return data, out


def test_a_record_of_other_comparisons_leaves_no_run(tmp_path, put):
    data, _ = score_rows(tmp_path, "baseline:longest")
    record = put("j.jsonl", pair("p", scored(1, 2), scored(2, 1)))
    with pytest.raises(DataError, match=str(record)):
        run_evaluation(Evaluation(recorded=str(record), bench=f"file:{data}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("columns", [{}, {"scores": "of others"}])
def test_scored_rows_are_evaluated_as_the_model_that_scored_them(tmp_path, form, columns):
    data, out = score_rows(tmp_path, "baseline:longest", form, **columns)
    settings = {"bench": f"file:{data}", "judging": JudgingSettings(resamples=100, orders="one")}
    again = run_evaluation(Evaluation(recorded=str(out), **settings), tmp_path / "again").to_dict()
    model = run_evaluation(Evaluation(model="baseline:longest", **settings), tmp_path / "model").to_dict()
    assert again["model"] == "recorded:baseline:longest"
    assert again["metrics"]["overall"] == model["metrics"]["overall"]
    assert again["complete"]
    assert 0 < again["metrics"]["overall"]["pair_accuracy"]["value"] < 1
    # Negative control: the scores of another model are others.
    out.unlink()
    _, other = score_rows(tmp_path, "baseline:shortest", form, **columns)
    control = run_evaluation(Evaluation(recorded=str(other), **settings), tmp_path / "other").to_dict()
    assert control["metrics"]["overall"] != model["metrics"]["overall"]


def test_scored_rows_without_a_score_keep_their_outcome_and_changed_ones_are_errors(tmp_path):
    data, out = score_rows(tmp_path, "baseline:longest")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    rows[0] |= {"scores": None, "scores_outcome": "too_long"}
    rows[1] |= {"scores": None, "scores_outcome": "error"}
    rows[2]["prompt"] += " Or not?"
    rows[3]["scores_by"] = "another"
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = Evaluation(recorded=str(out), bench=f"file:{data}", judging=JudgingSettings(resamples=100))
    summary = run_evaluation(settings, tmp_path / "run").to_dict()
    assert summary["model"] == "recorded:scored.jsonl"  # two models gave them
    found = [
        (record.outcome, record.detail) for record in Log(tmp_path / "run/judgments.jsonl", JudgmentRecord)
    ]
    assert found[0] == (Outcome.TOO_LONG, "recorded outcome: too_long")
    assert found[1] == (Outcome.ERROR, "recorded outcome: error")
    assert found[2][0] == Outcome.ERROR
    assert "recorded with another text" in found[2][1]
    assert {outcome for outcome, _ in found[3:]} == {Outcome.ANSWERED}


PANDALM = {
    "idx": 0,
    "instruction": "?",
    "input": "",
    "response1": "response number 0",
    "response2": "response number 1",
    "annotator1": 1,
    "annotator2": 1,
    "annotator3": 0,
}


@pytest.mark.parametrize(
    ("output", "result", "scores", "contradicted"),
    [
        ("<answer>9</answer><answer>8</answer>", 1, (9, 8), None),
        ("<answer>0</answer><answer>0</answer><|im_end|>", 0, (0, 0), None),
        ("<answer> 7.5 </answer><answer> 8 </answer><|im_end|>", 2, (7.5, 8), None),
        (
            "<think><answer>1</answer><answer>9</answer> no</think><answer>9</answer><answer>9</answer>",
            0,
            (9, 9),
            None,
        ),
        ("<answer>3</answer><answer>5</answer>", 1, (1, 0), True),  # the authors count the result
        ("<answer>3</answer>", 2, (0, 1), None),
        (None, "0", (0.5, 0.5), None),
    ],
)
def test_two_scores_of_judgelrm_are_read_from_its_output(output, result, scores, contradicted, put):
    model = RecordedRewardModel(put("j.jsonl", {**PANDALM, "output": output, "result": result}))
    assert model.orders("0") == ((0, 1),)
    (judgment,) = judged(model, comparison("0"))
    assert (judgment.scores, judgment.contradicted) == (scores, contradicted)
    assert judgment.explanation == (output or "")
    assert model.scale == ("verdict" if sum(scores) == 1 else "points")


@pytest.mark.parametrize(
    "output",
    [
        "<answer>0</answer><answer>0</answer>",
        "They are alike.",
        "<think>So <answer>2</answer><answer>3</answer>",
    ],
)
def test_a_text_of_judgelrm_without_two_scores_is_no_tie(output, put):
    model = RecordedRewardModel(put("j.jsonl", {**PANDALM, "output": output, "result": 0}))
    assert judged(model, comparison("0"))[0].outcome is Outcome.UNPARSED


def test_a_wrong_result_of_judgelrm_is_named(put):
    with pytest.raises(DataError, match=r"line 1, field 'result'"):
        RecordedRewardModel(put("j.jsonl", {**PANDALM, "result": 3}))
    row = {**PANDALM, "result": 1}
    with pytest.raises(DataError, match=r"line 2, field 'idx'"):
        RecordedRewardModel(put("j.jsonl", row, row))


@pytest.mark.skipif(not PANDALM_FILE.is_file(), reason="JudgeLRM's results are not in ../shared/data")
@pytest.mark.parametrize("source", ["output", "result"])
def test_the_published_agreement_of_judgelrm_follows_from_both_columns(source, tmp_path):
    rows = json.loads(PANDALM_FILE.read_text(encoding="utf-8"))
    kept = [row if source == "output" else {**row, "output": None} for row in rows]
    (tmp_path / "j.json").write_text(json.dumps(kept))
    settings = Evaluation(
        recorded=str(tmp_path / "j.json"),
        bench=f"judgelrm:{PANDALM_FILE}",
        judging=JudgingSettings(baselines=(), resamples=100),
    )
    summary = run_evaluation(settings, tmp_path / "run").to_dict()
    rule, outcomes = summary["judgelrm_rule"], summary["counts"]["outcomes"]
    agree = 0
    for row in rows:
        votes = [row["annotator1"], row["annotator2"], row["annotator3"]]
        agree += row["result"] == next((vote for vote in votes if votes.count(vote) > 1), 0)
    assert (agree, len(rows)) == (776, 999)
    assert (round(rule["overall_percent"], 2), rule["pairs"]) == (77.68, 999)
    assert rule["overall_percent"] == pytest.approx(100 * agree / len(rows))
    # Nine texts have no end of their thought; the authors' result is a tie, and none of them is one in gold.
    assert outcomes["unparsed"] == (9 if source == "output" else 0)
    swapped = [{**row, "result": {1: 2, 2: 1}.get(row["result"], 0), "output": None} for row in rows]
    (tmp_path / "j.json").write_text(json.dumps(swapped))
    turned = run_evaluation(settings, tmp_path / "swapped").to_dict()["judgelrm_rule"]
    assert turned["overall_percent"] < 25  # negative control: the other response of each pair
