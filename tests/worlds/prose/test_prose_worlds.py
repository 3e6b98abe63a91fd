import hashlib
import json
import re
from dataclasses import asdict, replace

import pytest

from longrm.benchmarks.answer_metrics import is_solved
from longrm.errors import ConfigError
from longrm.judging.judge_prompts import stated_answers
from longrm.worlds import TEXTS, WORLDS, WorldPlan, generate, group
from longrm.worlds.prose.prose_world import ProseWorld
from longrm.worlds.words_tokenizer import load_tokenizer

from .conftest import BALANCED, ONE_FACT_ASKED, PROSE
from .prose_tokenizer import prose_tokenizer

GOLDEN = "512583aac942df3cc2982a1b027cae0df0f7cfb569d4ea4e8814956f9a4d6b99"
GOLDEN_BALANCED = "6ba2519ae98391853abccce398742d331346653f8a153eac7aed9e6ed3415faf"
SPARE = 9
"""Tokens that a context may have less than asked for: less than its kind's second shortest filling sentence."""


def test_every_world_in_prose_is_tested_here():
    assert {name for name, world in WORLDS.items() if isinstance(world, ProseWorld)} == {*PROSE}


@pytest.mark.parametrize("world", PROSE)
@pytest.mark.parametrize("text", TEXTS)
def test_the_context_supports_the_best_response_only(prose_bpe, prose_view, world, text):
    for row in generate(WorldPlan(world, 700, per_group=4, seed=1, texts=(text,)), 12, prose_bpe):
        seen = prose_view(row)
        both = max(len(row.rubrics) - 1, 0)
        assert [seen.right(response) - both for response in seen.responses] == [
            2 - rank for rank in row.ranks
        ]
        assert seen.text == f"{seen.context}\n\n{seen.question}"
        assert row.metadata["text"] == text
        golds = stated_answers(row)
        assert bool(golds) == (world in ONE_FACT_ASKED + BALANCED), "others have no single text that answers"
        solved = [is_solved(response, golds, "contains") for response in seen.responses]
        assert solved == [rank == 1 if golds else None for rank in row.ranks]


@pytest.mark.parametrize("world", ONE_FACT_ASKED + BALANCED)
@pytest.mark.parametrize("responses", [3, 5])
def test_graded_responses_have_one_more_wrong_claim_each_and_share_none(
    prose_bpe, prose_view, world, responses
):
    for row in generate(WorldPlan(world, 4000, responses, per_group=2, seed=2), 6, prose_bpe):
        seen = prose_view(row)
        assert [seen.right(response) for response in seen.responses] == [
            responses - rank for rank in row.ranks
        ]
        assert sorted(row.ranks) == list(range(1, responses + 1))
        claims = [claim for response in seen.responses for claim in seen.claims(response)]
        assert len({*claims}) == len(claims) == responses * (responses - 1)


@pytest.mark.parametrize("world", PROSE)
def test_an_unrelated_context_supports_no_claim(prose_bpe, prose_view, world):
    plan = WorldPlan(world, 700, per_group=4, seed=1)
    for index in range(4):
        related, control = (
            group(plan, index, prose_bpe),
            group(replace(plan, unrelated=True), index, prose_bpe),
        )
        for one, other in zip(related, control, strict=True):
            assert (one.responses, one.ranks) == (other.responses, other.ranks)
            assert prose_view(one).question == prose_view(other).question
            assert prose_view(one).context != prose_view(other).context
            assert not other.evidence
            seen = prose_view(other)
            assert not any(seen.right(response) for response in seen.responses)


@pytest.mark.parametrize("kind", ["prose_bpe", "prose_merging"])
@pytest.mark.parametrize("world", PROSE)
def test_contexts_have_the_requested_length_and_never_more(request, prose_view, kind, world):
    tokenizer = request.getfixturevalue(kind)
    for length in (600, 601, 1500, 6000):
        for text in TEXTS:
            plan = WorldPlan(world, length, per_group=2, seed=length, texts=(text,))
            totals = [tokenizer.count(prose_view(row).text) for row in group(plan, 0, tokenizer)]
            assert 0 <= length - max(totals) < SPARE, (text, length)


@pytest.mark.parametrize("world", PROSE)
def test_evidence_decides_and_is_at_the_depth(prose_bpe, prose_view, world):
    for depth in (0, 0.25, 0.5, 1.0):
        (row,) = group(WorldPlan(world, 6000, depth=depth, seed=3), 0, prose_bpe)
        seen = prose_view(row)
        starts = [span.start / (len(seen.context) - (span.end - span.start)) for span in row.evidence]
        if world in BALANCED:  # in a stretch of up to half of the text
            assert all(depth / 2 - 0.025 <= start <= 0.525 + depth / 2 for start in starts)
        else:
            assert max(starts) == pytest.approx(depth, abs=0.025)
        assert row.metadata["depth"] == depth
        without = seen.context
        for sentence in seen.evidence:
            assert seen.context.count(sentence) == 1
            without = without.replace(sentence, "")
        bare = prose_view(row)
        bare.context = without
        both = max(len(row.rubrics) - 1, 0)
        assert [bare.right(response) for response in bare.responses] == [both, both]


@pytest.mark.parametrize("world", ["joined-facts", "dated-update"])
def test_the_distance_of_mixed_facts_does_not_depend_on_the_depth(world):
    def distances(name):
        found = []
        for depth in (0.0, 0.5, 1.0):
            rows = generate(WorldPlan(name, 1500, depth=depth, seed=4), 60, load_tokenizer("approximate"))
            spans = [sorted(span.start for span in row.evidence) for row in rows]
            found.append(sum(last - first for first, last in spans) / len(spans))
        return found

    balanced = distances(world)
    assert max(balanced) < 1.4 * min(balanced)
    if world == "joined-facts":  # Control: in order, with the last fact at the depth
        first, *_, last = distances("two-hops")
        assert last > 5 * first


@pytest.mark.parametrize("world", BALANCED)
def test_twins_ask_about_the_same_facts_and_swap_right_and_wrong(prose_bpe, prose_view, world):
    points = WORLDS[world].near
    rows = group(WorldPlan(world, 400, per_group=2 * points, depth=0.5, seed=9), 0, prose_bpe)
    for one, twin in zip(rows[:points], rows[points:], strict=True):
        assert prose_view(one).question != prose_view(twin).question
        right, wrong = (
            {*prose_view(row).responses[place].split()}
            for row, place in ((one, one.best_first()[0]), (twin, twin.best_first()[1]))
        )
        assert one.metadata["answer"] in {word.rstrip(".") for word in wrong}
        assert one.metadata["answer"] in {word.rstrip(".") for word in right}
        assert one.metadata["answer"] != twin.metadata["answer"]


def test_distractors_of_many_facts_grow_with_the_length(prose_bpe, prose_view):
    def facts_of_the_form(world, length):
        (row,) = group(WorldPlan(world, length, texts=("report",), seed=8), 0, prose_bpe)
        seen = prose_view(row)
        (noun,) = re.search(r"he \w+ (\w+ \w+)", seen.evidence[0]).groups()
        return len(re.findall(rf"he \w+ {noun}", seen.context))

    counts = [facts_of_the_form("many-facts", length) for length in (300, 600, 1200)]
    assert counts[0] >= 4
    assert counts[1] == pytest.approx(2 * counts[0], abs=2)
    assert counts[2] == pytest.approx(2 * counts[1], abs=4)
    assert facts_of_the_form("single-fact", 1200) == 1  # says something else of every name


@pytest.mark.parametrize("world", PROSE)
def test_responses_have_equally_many_tokens_where_values_allow(prose_bpe, prose_view, world):
    pairs = [prose_view(row) for row in generate(WorldPlan(world, 600, per_group=4, seed=5), 80, prose_bpe)]
    same = sum(len({prose_bpe.count(response) for response in seen.responses}) == 1 for seen in pairs)
    assert same >= {"contradiction": 15, "counting": 15, "citation": 30, "tool-call": 0}.get(world, 60)
    equal = (len({len(response.split()) for response in seen.responses}) == 1 for seen in pairs)
    assert all(equal) == (world != "tool-call"), "whose errors change the length, either way"


def test_groups_share_a_context_and_can_be_made_in_any_order(prose_bpe, prose_view):
    plan = WorldPlan("two-hops", 900, per_group=3)
    rows = list(generate(plan, 9, prose_bpe))
    assert rows[6:] == group(plan, 2, prose_bpe)
    assert len({row.group for row in rows}) == len({prose_view(row).context for row in rows}) == 3
    assert len({row.id for row in rows}) == 9
    assert {row.metadata["text"] for row in generate(replace(plan, per_group=1), 60, prose_bpe)} == {*TEXTS}


@pytest.mark.parametrize(("worlds", "golden"), [(ONE_FACT_ASKED, GOLDEN), (BALANCED, GOLDEN_BALANCED)])
def test_the_same_bytes_on_every_machine(worlds, golden):
    digest, tokenizer = hashlib.sha256(), prose_tokenizer(size=256)
    for world in worlds:
        for plan in (
            WorldPlan(world, 3000, per_group=3, seed=5),
            WorldPlan(world, 9000, 3, 0.3, seed=6),
            WorldPlan(world, 3000, texts=("code", "chat"), unrelated=True),
        ):
            for row in generate(plan, 4, tokenizer):
                held = asdict(row)
                assert held.pop("tools") == held.pop("rubrics") == (), "worlds offer none"
                held["metadata"].pop("answer", None)  # it is newer than the hash, and says what ranks say
                digest.update(json.dumps(held, sort_keys=True).encode())
    # A new value here means other data under the same name: raise prose_world.PROSE_VERSION with it.
    assert digest.hexdigest() == golden


def test_impossible_plans_are_refused():
    for wrong in (
        {"texts": ("mial",)},
        {"responses": 6},
        {"world": "checklist", "responses": 4},
        {"world": "tool-call", "responses": 3},
    ):
        with pytest.raises(ConfigError, match="mail|responses"):
            WorldPlan(**{"world": "single-fact", "length": 500, **wrong})
