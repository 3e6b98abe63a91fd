"""An unknown kind is an error wherever kinds are distinguished; it never falls through to the last one."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from longrm.errors import ConfigError
from longrm.evaluation.judge_behavior import calibration
from longrm.evaluation.metrics import metric_of
from longrm.evaluation.trials import JudgingSettings, TrialJudge
from longrm.reward_models import load
from longrm.synthesis import long_context
from longrm.synthesis.chunks import DistractorPool
from longrm.synthesis.documents import Document
from longrm.synthesis.long_context import find_evidence
from longrm.training.model_card import CardContext, write_card
from longrm.training.plan.plan import plan_training
from longrm.training.settings import LossSettings, MemorySettings, ParallelSettings, TrainingSettings
from longrm.training.train import train
from longrm.types import Comparison, Span

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


def test_losses_and_metrics():
    for use in (lambda: LossSettings(loss_type=OTHER), lambda: metric_of(OTHER)):
        with pytest.raises(ValueError, match=OTHER):
            use()


def test_objectives(tmp_path):
    settings = TrainingSettings.model_construct(objective=OTHER, data=None, seed=0)
    fitting = settings.model_copy(update={"parallel": ParallelSettings(), "memory": MemorySettings()})
    for use in (
        lambda: train(settings, tmp_path / "run"),
        lambda: plan_training(fitting, "cpu"),
        lambda: write_card(tmp_path, CardContext(settings, {})),
    ):
        with pytest.raises(KeyError, match=OTHER):
            use()
    with pytest.raises(ConfigError, match=OTHER):
        TrainingSettings.resolve(None, {"objective": OTHER, "model.new": {}, "data.path": "x"})


def test_kinds_of_models(tmp_path, monkeypatch):
    monkeypatch.setattr("longrm.reward_models.kinds.kind_of", lambda path: OTHER)
    with UNKNOWN:
        load(str(tmp_path))


def test_scales():
    table = SimpleNamespace(pairs=SimpleNamespace(margin=np.array([1.0, 2.0])))
    with UNKNOWN:
        calibration(table, OTHER, seed=0)


@pytest.mark.parametrize("setting", ["context_check", "orders"])
def test_judging_settings(setting):
    judge = TrialJudge(
        load("baseline:longest"), JudgingSettings(baselines=()).model_copy(update={setting: OTHER})
    )
    with pytest.raises((AssertionError, KeyError), match=OTHER):
        judge.records([PAIR])


def test_steps_of_synthesis():
    with UNKNOWN:
        long_context.lay_out(OTHER, ["critical"], [], [], "", None)
    document = Document("d", "Some text.", "Who?", "x", metadata={"evidence": [[0, 4]]})
    pool, known = DistractorPool([], []), {"distractor_check": "none", "domain": "summary", "chunk_size": 8}
    for settings in ({"evidence_from": OTHER}, {"evidence_from": "given", "sufficiency": OTHER}):
        with UNKNOWN:
            asyncio.run(find_evidence(document, SimpleNamespace(**known, **settings), pool, None, Counter()))
