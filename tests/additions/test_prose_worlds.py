"""A world in prose and a kind of text that are added, each in one file and one entry, are generated like the others."""

import pytest

from longrm.types import message_text
from longrm.worlds import TEXTS, WORLDS, WorldPlan, generate

from ..worlds.prose.prose_tokenizer import prose_tokenizer

ADDED = """
from longrm.worlds.prose.tasks import Case, Point, ProseFact
from longrm.worlds.prose.generated_text import GeneratedText
from longrm.worlds.prose.prose_world import ProseWorld

COLORS = ("red", "blue", "green", "gray", "brown", "black", "white", "pink", "yellow", "orange", "purple", "silver")


def hats(names, size):
    points = []
    for color in names.values(COLORS, size):
        person = names.person()
        answer = f"{person} wears a {{}} hat."
        points.append(Point((ProseFact(answer.format(color)),), f"Which hat does {person} wear?", answer, color))
    return Case(tuple(points), "Name {number} people and their hats.")


HATS = ProseWorld(hats, "the color of a hat", "NIAH", most_responses=4)
DIARY = GeneratedText(
    title="diary",
    about="days at sea",
    head="{date}: ",
    themes={
        title: tuple(f"{title} [rose|fell] {time} near the {{coast}}." for time in "early late slowly".split())
        for title in ("Wind", "Fog", "Waves")
    },
    slots={"coast": tuple(f"{number}th cape" for number in range(4, 900))},
    closings=("Calm.", "Nothing more."),
)
"""


@pytest.fixture
def hats(plugin, monkeypatch):
    """Both, registered as a user would."""
    module = plugin(ADDED)
    monkeypatch.setitem(WORLDS, "hats", module.HATS)
    monkeypatch.setitem(TEXTS, "diary", module.DIARY)


def test_an_added_world_is_asked_in_an_added_kind_of_text(hats):
    for row in generate(WorldPlan("hats", 900, 4, texts=("diary",)), 4, prose_tokenizer()):
        text = message_text(row.prompt[0])
        best = message_text(row.responses[row.best_first()[0]][0])
        assert all(f"{claim}." in text for claim in best.rstrip(".").split(". "))
        assert "near the" in text


def test_an_evaluation_mixes_an_added_world_with_another(hats, evaluated, tmp_path):
    prose_tokenizer().save(tmp_path / "tokenizer")
    cells = [{"lengths": [256, 512], "groups": 8, "per_group": 2, "worlds": ["hats", "single-fact"]}]
    summary, _ = evaluated(tokenizer=str(tmp_path / "tokenizer"), texts=["diary", "mail"], cells=cells)
    assert summary["metrics"]["overall"]["pair_accuracy"]["n"] == 64
    assert {*summary["metrics"]["by_task"]} == {"hats", "single-fact"}
