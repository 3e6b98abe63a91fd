"""Attributions of a file into a run folder: its contents, resuming, and known evidence."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from longrm.attribution import run
from longrm.attribution.records import ATTRIBUTIONS
from longrm.attribution.run import AttributionSettings, evidence_found, run_attribution
from longrm.cli.commands import cli
from longrm.data import write
from longrm.errors import ConfigError, DataError
from longrm.reward_models import RewardModel
from longrm.types import Judgment, Outcome, Span, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer


class Reader(RewardModel):
    """Scores a response 1 where the context has its last two words together, else 0."""

    name = "reader"

    def __init__(self, fails_after=None):
        self.calls, self._fails_after = 0, fails_after

    def judge(self, queries):
        self.calls += len(queries)
        if self._fails_after is not None and self.calls > self._fails_after:
            raise KeyboardInterrupt
        return [
            Judgment(
                Outcome.ANSWERED,
                tuple(self._score(text_of(query.prompt), text_of(answer)) for answer in query.responses),
                prompt_tokens=len(text_of(query.prompt).split()),
            )
            for query in queries
        ]

    def _score(self, prompt, response):
        *_, name, _, value = response.rstrip(".").split()
        return float(any(name in line and value in line for line in prompt.split(". ")))


@pytest.fixture
def data(tmp_path):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 128), 3, words_tokenizer()))
    return tmp_path / "pairs.jsonl"


def settings(data, **more):
    return AttributionSettings(model="baseline:longest", bench=f"file:{data}", **more)


def test_the_evidence_gets_the_weight(data, tmp_path):
    records, summary, _ = run_attribution(settings(data), tmp_path / "why", model=Reader())
    for record in records:
        assert record.trust.shown, record.trust.reason
        assert record.evidence.auc == 1.0
        assert record.evidence.recall == 1.0
        assert record.right
    assert summary.overall.evidence_auc.value == 1.0
    assert summary.by_length.keys() == {"128"}
    assert summary.by_verdict.keys() == {"right"}
    lines = [json.loads(line) for line in (tmp_path / "why" / ATTRIBUTIONS).read_text().splitlines()]
    assert [line["id"] for line in lines] == [record.id for record in records]
    assert lines[0].keys() >= {"id", "target", "sentences", "trust", "tokens_computed"}
    assert lines[0]["sentences"][0].keys() == {"message", "start", "end", "weight"}
    assert lines[0]["trust"].keys() >= {"lds", "drop", "drop_random", "shown"}


class Misreader(Reader):
    """Prefers the response that the context contradicts."""

    def _score(self, prompt, response):
        return -super()._score(prompt, response)


def test_evidence_has_negative_weight_where_the_model_errs(data, tmp_path):
    records, summary, _ = run_attribution(settings(data), tmp_path / "why", model=Misreader())
    for record in records:
        assert record.right is False
        assert record.trust.score > 0, "what the model prefers is explained"
        assert max(record.sentences, key=lambda one: one.weight).weight > 0.5
        assert record.evidence.auc == 0.0
        assert record.evidence.share > 0.5
    assert summary.by_verdict.keys() == {"wrong"}


def test_a_killed_run_continues_to_equal_bytes(data, tmp_path):
    whole = Reader()
    run_attribution(settings(data), tmp_path / "whole", model=whole)
    stopped = Reader(fails_after=whole.calls * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        run_attribution(settings(data), tmp_path / "killed", model=stopped)
    again = Reader()
    run_attribution(settings(data), tmp_path / "killed", model=again)
    for name in (ATTRIBUTIONS, "summary.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert again.calls < whole.calls


class Busy(Reader):
    """Ends in this outcome every time."""

    def __init__(self, outcome):
        super().__init__()
        self._outcome = outcome

    def judge(self, queries):
        self.calls += len(queries)
        return [Judgment(self._outcome, detail="no answer") for _ in queries]


@pytest.mark.parametrize(("outcome", "again"), [(Outcome.ERROR, True), (Outcome.TOO_LONG, False)])
def test_errors_are_retried(data, tmp_path, outcome, again):
    first, *_ = run_attribution(settings(data), tmp_path / "why", model=Busy(outcome))
    assert all(record.trust is None for record in first)
    reader = Reader()
    second, summary, _ = run_attribution(settings(data), tmp_path / "why", model=reader)
    assert [record.trust is not None for record in second] == [again] * 3
    assert summary.explained == 3 * again
    assert bool(reader.calls) is again
    third = Reader()
    run_attribution(settings(data), tmp_path / "why", model=third)
    assert third.calls == 0, "the later record counts"


def test_a_changed_text_is_refused(data, tmp_path):
    run_attribution(settings(data), tmp_path / "why", model=Reader())
    before = (tmp_path / "why" / ATTRIBUTIONS).read_bytes()
    again = Reader()
    run_attribution(settings(data), tmp_path / "why", model=again)  # the control: the same texts
    data.write_text(data.read_text().replace(" keeps ", " holds "))
    with pytest.raises(DataError, match=r"the text of 'records.*' has changed"):
        run_attribution(settings(data), tmp_path / "why", model=again)
    assert again.calls == 0
    assert (tmp_path / "why" / ATTRIBUTIONS).read_bytes() == before


def test_the_lead_and_the_strongest_sentences_are_printed(tmp_path):
    facts = [f"Person {number} has a w{number}." for number in range(12)]
    facts[7] += f" A long sentence names a w7 of person 7, {'and goes on ' * 8}to its end."
    row = {
        "id": "one",
        "prompt": " ".join(facts),
        "chosen": "Nobody has.",
        "rejected": "Person 7 has a w7, names the long sentence.",
    }
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row))
    where = ["--data", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "why")]
    done = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["attribute", "--model", "baseline:overlap", *where])
    record = json.loads((tmp_path / "why" / ATTRIBUTIONS).read_text())
    assert record["trust"]["shown"], record["trust"]["reason"]
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"one: lead of response 2 over response 1 {record['trust']['score']:.2f}")
    first, second, *_ = sorted(record["sentences"], key=lambda one: -abs(one["weight"]))
    long, short = (row["prompt"][one["start"] : one["end"]].strip() for one in (first, second))
    assert lines[1:3] == [
        f"  +{first['weight']:.2f}  {long[:63]}...",
        f"  +{second['weight']:.2f}  {short}",
    ]


def test_a_run_is_explained_with_its_model_and_data(data, tmp_path):
    def ran(*words):
        done = CliRunner().invoke(cli, [*words])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    ran("evaluate", "--model", "baseline:overlap", "--bench", f"file:{data}", "--out", str(tmp_path / "run"))
    item = next(iter(generate(WorldPlan("records", 128), 1, words_tokenizer()))).id
    said = ran("attribute", "--run", str(tmp_path / "run"), "--items", item, "--out", str(tmp_path / "why"))
    assert item in said
    assert "why  finished" in ran("runs", str(tmp_path))


def test_the_evidence_auc_equals_scikit_learns():
    drawn = np.random.default_rng(0)
    sentences = [Span(0, 10 * at, 10 * at + 10) for at in range(30)]
    evidence = (Span(0, 35, 52), Span(0, 200, 201), Span(1, 0, 99))
    held = np.array([at in (3, 4, 5, 20) for at in range(30)])
    for _ in range(20):
        weights = np.round(drawn.normal(size=30), 1)
        found = evidence_found(sentences, weights, evidence)
        assert found.auc == pytest.approx(roc_auc_score(held, weights))
        assert found.share == pytest.approx(np.abs(weights)[held].sum() / np.abs(weights).sum())
    assert evidence_found(sentences, weights, ()) is None
    assert evidence_found(sentences, np.zeros(30), evidence).auc == 0.5


def test_attention_of_changed_texts_is_refused(data, tmp_path, monkeypatch):
    def unread(model, comparison):
        raise DataError("cannot be read")

    monkeypatch.setattr(run, "attended_by", unread)
    with_attention = settings(data, attention=True)
    for _ in range(2):  # the second time is the control: the same texts
        with pytest.raises(DataError, match="no attention could be measured"):
            run_attribution(with_attention, tmp_path / "why", model=Reader())
    assert not (tmp_path / "why" / ATTRIBUTIONS).exists()
    data.write_text(data.read_text().replace(" keeps ", " holds "))
    with pytest.raises(DataError, match=r"attention.jsonl"):
        run_attribution(with_attention, tmp_path / "why", model=Reader())


def test_a_tie_is_neither_right_nor_wrong_and_unknown_items_are_refused(data, tmp_path):
    class Even(Reader):
        def _score(self, prompt, response):
            return 1.0

    records, summary, _ = run_attribution(settings(data), tmp_path / "why", model=Even())
    assert {(record.right, record.trust.shown) for record in records} == {(None, False)}
    assert summary.by_verdict == {}
    with pytest.raises(ConfigError, match="no comparison 'nowhere'"):
        run_attribution(settings(data, items=("nowhere",)), tmp_path / "none", model=Reader())
