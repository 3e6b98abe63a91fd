"""A world that is added in one file and one entry is generated, tokenized and judged like the others."""

import pytest

from longrm.worlds import WORLDS

NICKNAMES = """
from longrm.worlds.sentence_world import Claim, SentenceWorld, Unit

FORM = "Sailors nickname {entity} after some {value}."
SUBJECT = "the nephew of {}"


def unit(holders, rng):
    return Unit((FORM.format(entity=holders[0].entity, value=holders[0].value),), holders)


def claim(unit, rng):
    return Claim(SUBJECT.format(unit.holders[0].entity), unit.holders[0].value, (0,))


RULES = SentenceWorld(unit, claim, (FORM,), anywhere=True, subject=SUBJECT)
"""


@pytest.fixture
def nicknames(plugin, monkeypatch):
    """The world, registered as a user would."""
    rules = plugin(NICKNAMES).RULES
    monkeypatch.setitem(WORLDS, "nicknames", rules)
    return rules


def test_an_evaluation_of_an_added_world_runs_to_its_summary(nicknames, evaluated):
    summary, _ = evaluated(
        cells=[{"worlds": ["nicknames"], "lengths": [128, 256], "groups": 8, "per_group": 2}]
    )
    assert summary["complete"]
    assert [*summary["metrics"]["by_length"]] == ["128", "256"]
    assert summary["metrics"]["overall"]["pair_accuracy"]["n"] == 32
