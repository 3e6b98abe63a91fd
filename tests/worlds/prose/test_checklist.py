"""The world `checklist`: three things asked at once, a criterion each, of which the worse response has one wrong."""

import re
from collections import Counter

import pytest

from longrm.types import Criterion
from longrm.worlds import WorldPlan, generate

N = 300


@pytest.fixture(scope="module")
def rows(prose_bpe):
    return list(generate(WorldPlan("checklist", 400, per_group=6), N, prose_bpe))


def test_each_criterion_asks_what_the_prompt_asks_and_holds_no_value(rows, prose_view):
    for row in rows:
        view = prose_view(row)
        questions = re.findall(r"[^.?]+\?", view.question)
        assert [one.text for one in row.rubrics] == [
            f"It answers as the text does: {q.strip()}" for q in questions
        ]
        assert row.rubrics == tuple(Criterion(one.text) for one in row.rubrics)
        assert len({one.text for one in row.rubrics}) == 3
        claims = [view.claims(response) for response in view.responses]
        differ = [at for at in range(3) if claims[0][at] != claims[1][at]]
        assert len(differ) == 1
        values = {*re.findall(r"\w+", claims[0][differ[0]])} ^ {*re.findall(r"\w+", claims[1][differ[0]])}
        assert not any(value in criterion.text for value in values for criterion in row.rubrics)


def test_the_gold_by_criterion_is_what_the_context_says(rows, prose_view):
    broken = Counter()
    for row in rows:
        view = prose_view(row)
        for at, ranks in enumerate(row.metadata["criterion_ranks"]):
            borne_out = [view._checklist(view.claims(response)[at].strip()) for response in view.responses]
            assert ranks == [1 if one else 2 for one in borne_out]
            broken[at] += ranks != [1, 1]
        assert [view.right(response) for response in view.responses] == [4 - rank for rank in row.ranks]
    assert sum(broken.values()) == N
    assert all(70 < count < 130 for count in broken.values())
    # Whether the first response is right does not go with which criterion is broken.
    first = Counter((row.metadata["criterion_ranks"].index(list(row.ranks)), row.ranks[0]) for row in rows)
    assert all(25 < first[at, rank] < 75 for at in range(3) for rank in (1, 2))
