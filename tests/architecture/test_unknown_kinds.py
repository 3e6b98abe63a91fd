"""A kind that nobody knows is an error wherever kinds are told apart, and never taken for the last one known."""

import asyncio
import json
from importlib import import_module
from importlib.resources import files
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch

from longrm.cli.summary_text import FAILURES
from longrm.evaluation import metrics
from longrm.evaluation.asking import Asker, Judging
from longrm.evaluation.calibration import calibration
from longrm.evaluation.rules.rewardbench import rewardbench
from longrm.evaluation.summary import summarize
from longrm.evaluation.table import MetricName, ScoreTable
from longrm.report import material, tables, wording
from longrm.report.palette import Style
from longrm.reward_models import load
from longrm.runs.records import JudgmentRecord
from longrm.synthesis.labels.labeling import Labeling
from longrm.synthesis.long_context import padding
from longrm.synthesis.long_context.evidence_search import EvidenceFinder
from longrm.training import card, preference
from longrm.training.bradley_terry import BradleyTerry, RankingLoss
from longrm.training.planning import plan as planning
from longrm.training.preference import Preference, PreferenceLoss
from longrm.training.run import RECIPES, _objective
from longrm.training.start import _loaded, _new
from longrm.training.written import Writing
from longrm.types import Comparison, Outcome, Span
from longrm.worlds import words_tokenizer

OTHER = "no_such_kind"
failure_sections = import_module("longrm.report.sections.failures")
UNKNOWN = pytest.raises(AssertionError, match=OTHER)
EXAMPLES = [SimpleNamespace(id="a", ranks=(1, 2), margin=None, probability=None)]
PAIR = Comparison(
    "c",
    "g",
    ({"role": "user", "content": "Some context. Who?"},),
    (({"role": "assistant", "content": "a"},), ({"role": "assistant", "content": "b"},)),
    (1, 2),
    context=(Span(0, 0, 13),),
)


def records(**fields):
    return [
        JudgmentRecord(str(n), str(n), Outcome.ANSWERED, (1, 2), (0, 1), (1.0, 0.0), **fields)
        for n in range(4)
    ]


@pytest.mark.parametrize("kind", [*get_args(PreferenceLoss.model_fields["kind"].annotation), OTHER])
def test_losses_of_preferences(monkeypatch, kind):
    monkeypatch.setattr(
        preference, "response_logprobs", lambda model, micro: [torch.tensor([-1.0]), torch.tensor([-2.0])]
    )
    settings = PreferenceLoss.model_construct(kind=kind)

    def loss():
        own = Preference(settings, {"a": [-1.0, -1.0]})
        return own.loss(None, SimpleNamespace(examples=EXAMPLES))

    if kind != OTHER:
        loss()
        return
    with UNKNOWN:
        loss()


@pytest.mark.parametrize("kind", [*get_args(RankingLoss.model_fields["kind"].annotation), OTHER])
def test_losses_of_scores(kind):
    objective = BradleyTerry(RankingLoss())
    objective._settings = RankingLoss.model_construct(kind=kind)

    def loss():
        return objective._ranking(torch.tensor([1.0, 0.0]), [(1, 2)], EXAMPLES)

    if kind != OTHER:
        loss()
        return
    with UNKNOWN:
        loss()


def test_objectives():
    class Other:
        objective = OTHER
        loss = SimpleNamespace(kind="logo")

        def check_devices(self, devices):
            pass

    with pytest.raises(AssertionError, match="Other"):
        _objective(Other(), None, SimpleNamespace(counts={}), None, None, None)
    with pytest.raises(AttributeError, match="trains"):  # every recipe says what it trains
        planning.plan(Other(), "cpu")
    assert {*card.SCORES_RESPONSES} == {*RECIPES}
    with pytest.raises(KeyError, match=OTHER):
        card._opening(
            files("longrm"),
            {"model": {}, "objective": OTHER, "loss": {"kind": "sft"}},
            {"steps": 1, "tokens": 1},
            None,
            None,
        )


def test_kinds_of_models(tmp_path, monkeypatch):
    new = SimpleNamespace(shape=lambda: None, tokenizer="words", structured=False)
    with UNKNOWN:
        _new(new, OTHER, 0)
    parts = SimpleNamespace(adapter=None, base=tmp_path)
    monkeypatch.setattr("longrm.training.start.locate_parts", lambda path: parts)
    monkeypatch.setattr("longrm.training.start.read_config", lambda *args, **kwargs: SimpleNamespace())
    monkeypatch.setattr("longrm.training.start.kind_of", lambda path: "generative")
    with UNKNOWN:
        _loaded(SimpleNamespace(path="x", lora=None, precision="float32"), OTHER, 0)
    monkeypatch.setattr("longrm.modeling.folders.kind_of", lambda path: OTHER)
    with UNKNOWN:
        load(str(tmp_path))


def test_forms_that_generated_data_is_written_in():
    writing = Writing(words_tokenizer(verdicts=True), (OTHER,), judges=1, error=0.0)
    with pytest.raises((AssertionError, KeyError), match=OTHER):
        writing.demonstration(PAIR)


def test_scales():
    pairs = SimpleNamespace(margin=np.array([1.0, 2.0]))
    with UNKNOWN:
        calibration(records(), pairs, OTHER, seed=0)
    with UNKNOWN:
        rewardbench(records(task="Chat", subtype="mt-bench-easy"), OTHER)


@pytest.mark.parametrize("setting", ["context_check", "orders"])
def test_ways_of_asking(setting):
    asker = Asker(load("baseline:longest"), Judging(baselines=()).model_copy(update={setting: OTHER}))
    with UNKNOWN:
        asker.records([PAIR])


@pytest.mark.parametrize("name", [*get_args(MetricName), OTHER])
def test_metrics(name):
    table = ScoreTable.of(records())
    if name != OTHER:
        metrics.metric_of(table, name, seed=0, resamples=10)
        return
    with UNKNOWN:
        metrics.metric_of(table, name, seed=0, resamples=10)


def test_steps_of_synthesis():
    with UNKNOWN:
        padding.lay_out(OTHER, ["critical"], [], [], "", None)
    document = SimpleNamespace(text="Some text.", question="Who?", answer="x")
    settings = SimpleNamespace(
        evidence_from=OTHER, sufficiency=OTHER, distractor_check="none", judge_reads=OTHER
    )
    finder = EvidenceFinder.__new__(EvidenceFinder)
    finder._settings, finder._is_short = settings, False
    finder._pool = SimpleNamespace(chunks=[])
    with UNKNOWN:
        asyncio.run(finder._critical(document, []))
    with UNKNOWN:
        asyncio.run(finder._insufficient(SimpleNamespace(document=document, unfit=[], critical=[])))
    labeling = Labeling.__new__(Labeling)
    labeling._settings, labeling._domain = settings, SimpleNamespace(layout="segment")
    with UNKNOWN:
        labeling._request(document, None, SimpleNamespace(prompt=None), {})


def test_kinds_of_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(material.COMMANDS, OTHER, "longrm other")
    monkeypatch.setattr(material, "read_manifest", lambda folder: {"kind": OTHER})
    (tmp_path / "config.toml").write_text("")
    with UNKNOWN:
        material.read([tmp_path])


def test_every_metric_has_words_and_stands_in_the_schema():
    schema = json.loads((files("longrm.runs") / "summary.schema.json").read_text())
    assert {*wording.METRIC_NAMES} == {*get_args(MetricName)} == {*schema["$defs"]["MetricName"]["enum"]}
    summary = summarize(records(), model="m", bench="b", resamples=10)
    shown = {column.keys[1] for column in failure_sections._COLUMNS}
    assert {*summary["failures"]} == {*FAILURES} == shown


def test_a_metric_that_no_list_knows_is_shown_by_its_own_name():
    summary = summarize(records(length=64), model="m", bench="b", resamples=10)
    for part in (summary["metrics"]["overall"], summary["metrics"]["by_length"]["64"]):
        part["mean_regret"] = {"value": 1.25, "low": 1.0, "high": 1.5, "n": 4, "groups": 4}
    stage = material.Evaluated("m", Style(0), summary, None)
    shown = tables.overall_table("All", [stage])
    at = shown.columns.index("mean regret")
    assert shown.rows[0].cells[at - 1] == tables.Cell("1.25", "[1.00, 1.50]")
