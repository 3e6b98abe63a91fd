"""An unknown kind is an error wherever kinds are distinguished; it never falls through to the last one."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from longrm.errors import ConfigError
from longrm.evaluation.calibration_error import calibration
from longrm.evaluation.comparison_trials import JudgingSettings, TrialJudge
from longrm.evaluation.metrics import METRICS, metric_of
from longrm.evaluation.rules.rewardbench import rewardbench
from longrm.evaluation.table import ScoreTable
from longrm.reward_models import load
from longrm.runs.records import JudgmentRecord
from longrm.synthesis import long_context
from longrm.synthesis.chunks import DistractorPool
from longrm.synthesis.documents import Document
from longrm.synthesis.long_context import find_evidence
from longrm.training.initial_model import _loaded, _new
from longrm.training.model_card import CardFacts, write_card
from longrm.training.objectives import objective_named_in
from longrm.training.objectives.bradley_terry import RankingLossSettings
from longrm.training.objectives.preference import PreferenceLossSettings
from longrm.training.objectives.sft import SFTSettings
from longrm.training.plan.training_plan import plan_training
from longrm.training.sources import source_of
from longrm.training.train import train
from longrm.training.training_settings import MemorySettings, ParallelSettings
from longrm.training.world_judgments import JudgmentWriter
from longrm.types import Comparison, Outcome, Span
from longrm.worlds import words_tokenizer

OTHER = "no_such_kind"
UNKNOWN = pytest.raises(AssertionError, match=OTHER)
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
        JudgmentRecord(
            id=str(n),
            group=str(n),
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0),
            **fields,
        )
        for n in range(4)
    ]


@pytest.mark.parametrize("settings", [PreferenceLossSettings, RankingLossSettings])
def test_losses(settings):
    assert settings.kinds()
    for kind in settings.kinds():
        assert settings(kind=kind).spec.load()
    with pytest.raises(ValueError, match="no such loss; known"):
        settings(kind=OTHER)
    with pytest.raises(KeyError, match=OTHER):
        settings.model_construct(kind=OTHER).options()


def test_objectives(tmp_path):
    settings = SFTSettings.model_construct(objective=OTHER, data=None, seed=0)
    for use in (
        lambda: train(settings, tmp_path / "run"),
        lambda: plan_training(
            settings.model_copy(update={"parallel": ParallelSettings(), "memory": MemorySettings()}), "cpu"
        ),
        lambda: write_card(None, CardFacts(settings, {})),
        lambda: source_of(settings, None, limit=1),
    ):
        with pytest.raises(KeyError, match=OTHER):
            use()
    with pytest.raises(ConfigError, match='begin the file with objective = "sft"'):
        objective_named_in({"objective": OTHER}, "x.toml")


def test_kinds_of_models(tmp_path, monkeypatch):
    new = SimpleNamespace(shape=lambda: None, tokenizer="words", structured=False)
    with UNKNOWN:
        _new(new, OTHER, 0)
    parts = SimpleNamespace(adapter=None, base=tmp_path)
    monkeypatch.setattr("longrm.training.initial_model.find_model_folders", lambda path: parts)
    monkeypatch.setattr(
        "longrm.training.initial_model.read_config", lambda *args, **kwargs: SimpleNamespace()
    )
    monkeypatch.setattr("longrm.training.initial_model.kind_of", lambda path: "generative")
    with UNKNOWN:
        _loaded(SimpleNamespace(path="x", lora=None, precision="float32"), OTHER, 0)
    monkeypatch.setattr("longrm.modeling.folders.kind_of", lambda path: OTHER)
    with UNKNOWN:
        load(str(tmp_path))


def test_forms_that_generated_data_is_written_in():
    writing = JudgmentWriter(words_tokenizer(verdicts=True), (OTHER,), judges=1, error=0.0)
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
        long_context.lay_out(OTHER, ["critical"], [], [], "", None)
    document = Document("d", "Some text.", "Who?", "x", metadata={"evidence": [[0, 4]]})
    pool, known = DistractorPool([], []), {"distractor_check": "none", "domain": "summary", "chunk_size": 8}
    for settings in ({"evidence_from": OTHER}, {"evidence_from": "given", "sufficiency": OTHER}):
        with UNKNOWN:
            asyncio.run(find_evidence(document, SimpleNamespace(**known, **settings), pool, None, Counter()))
