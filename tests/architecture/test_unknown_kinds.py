"""A kind that nobody knows is an error wherever kinds are told apart, and never taken for the last one known."""

import asyncio
from importlib import import_module
from importlib.resources import files
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch

from longrm.cli.summary_text import FAILURES
from longrm.evaluation.calibration_error import calibration
from longrm.evaluation.comparison_trials import JudgingSettings, TrialJudge
from longrm.evaluation.metrics import METRICS, metric_of
from longrm.evaluation.rules.rewardbench import rewardbench
from longrm.evaluation.summarize import summarize
from longrm.evaluation.table import ScoreTable
from longrm.report import load as report_load
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
    asker = TrialJudge(
        load("baseline:longest"), JudgingSettings(baselines=()).model_copy(update={setting: OTHER})
    )
    with UNKNOWN:
        asker.records([PAIR])


@pytest.mark.parametrize("name", [*METRICS, OTHER])
def test_metrics(name):
    if name != OTHER:
        assert metric_of(name).name == name
        return
    with pytest.raises(ValueError, match=f"no metric '{OTHER}'; one of pair_accuracy"):
        metric_of(name)


def test_needs_of_metrics():
    with UNKNOWN:
        ScoreTable.of(records()).rows_for(OTHER)


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
    monkeypatch.setitem(report_load.COMMANDS, OTHER, "longrm other")
    monkeypatch.setattr(report_load, "read_manifest", lambda folder: {"kind": OTHER})
    monkeypatch.setattr(report_load, "load_summary", lambda folder: SimpleNamespace(kind=OTHER))
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "summary.json").write_text("")
    with UNKNOWN:
        report_load.load_report([tmp_path])


def test_every_failure_pattern_has_words():
    summary = summarize(records(), model="m", bench="b", resamples=10)
    assert {*summary["failures"]} == {*FAILURES}
    assert len(failure_sections._COLUMNS) == len(FAILURES)
