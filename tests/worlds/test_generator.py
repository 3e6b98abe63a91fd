import hashlib
import json
import re
from dataclasses import asdict, replace

import pytest

from longrm.benchmarks.answer_metrics import is_solved
from longrm.errors import ConfigError
from longrm.judging.judge_prompts import stated_answers
from longrm.worlds import WorldPlan, generate, group
from longrm.worlds.vocabulary import SENTENCE

GOLDEN = "78044b580cc576c8a271deb356e878f1fdfb9340c063205c054be405fb362f3a"
KINDS = [("records", 2), ("records", 3), ("records", 4), ("chain", 2), ("chain", 3), ("chain", 4)]


def tokens(tokenizer, view):
    return tokenizer.count(view.text)


@pytest.mark.parametrize(("world", "responses"), KINDS)
@pytest.mark.parametrize("length", [400, 1000, 6000])
def test_words_lengths_are_exact_to_a_sentence(word_tokenizer, view, world, responses, length):
    for comparison in group(WorldPlan(world, length, responses, per_group=3), 0, word_tokenizer):
        assert 0 <= length - tokens(word_tokenizer, view(comparison)) < SENTENCE


@pytest.mark.parametrize("kind", ["bpe", "merging"])
@pytest.mark.parametrize(("world", "responses"), [("records", 2), ("chain", 4)])
def test_other_tokenizers_get_the_longest_context_that_is_never_too_long(
    request, view, kind, world, responses
):
    tokenizer = request.getfixturevalue(kind)
    for length in (1500, 4001, 20000):
        for index in range(3):
            views = [
                view(c) for c in group(WorldPlan(world, length, responses, per_group=4), index, tokenizer)
            ]
            total = max(tokens(tokenizer, seen) for seen in views)
            longest = max(tokenizer.count(f" {sentence}") for sentence in views[0].sentences)
            assert 0 <= length - total <= longest


@pytest.mark.parametrize("length", [60, 500, 3000])
@pytest.mark.parametrize("depth", [0, 0.25, 0.5, 0.9, 1.0])
def test_the_evidence_of_a_pair_is_exactly_at_the_depth(word_tokenizer, bpe, view, length, depth):
    for tokenizer in (word_tokenizer, bpe):
        (comparison,) = group(WorldPlan("records", max(length, 90), depth=depth), 1, tokenizer)
        seen = view(comparison)
        assert seen.sentences.index(seen.evidence[0]) == round(depth * (len(seen.sentences) - 1))
        assert comparison.metadata["depth"] == depth


@pytest.mark.parametrize(("world", "responses"), KINDS)
def test_uniform_depths_are_stratified_and_in_the_metadata(word_tokenizer, view, world, responses):
    for comparison in generate(WorldPlan(world, 9000, responses, per_group=4), 8, word_tokenizer):
        seen = view(comparison)
        at = [seen.sentences.index(sentence) for sentence in seen.evidence]
        assert max(at) - min(at) < 36
        assert min(at) / len(seen.sentences) == pytest.approx(comparison.metadata["depth"], abs=0.04)
    depths = [
        [c.metadata["depth"] for c in group(WorldPlan("records", 4000, per_group=4), i, word_tokenizer)]
        for i in range(40)
    ]
    for row in depths:
        assert all(k - 0.02 < 4 * depth < k + 1.02 for k, depth in enumerate(sorted(row)))
    assert 0.4 < sum(row[0] for row in depths) / 40 < 0.6


@pytest.mark.parametrize(("world", "responses"), KINDS)
def test_spans_are_exact_and_claims_match_ranks(word_tokenizer, view, world, responses):
    for comparison in generate(WorldPlan(world, 700, responses, per_group=2), 20, word_tokenizer):
        seen = view(comparison)
        assert seen.text == f"{seen.context}\n\n{seen.question}"
        assert re.fullmatch(r"Question: (What|Name) .*[.?]", seen.question)
        assert set(seen.evidence) <= set(seen.sentences)
        assert len({word_tokenizer.count(response) for response in seen.responses}) == 1
        rights = [seen.right(response) for response in seen.responses]
        assert rights == [responses - rank for rank in comparison.ranks]
        assert sorted(comparison.ranks) == list(range(1, responses + 1))
        golds = stated_answers(comparison)
        assert bool(golds) == (responses == 2), "more responses make claims about facts of their own"
        solved = [is_solved(response, golds, "contains") for response in seen.responses]
        assert solved == [rank == 1 if golds else None for rank in comparison.ranks]


@pytest.mark.parametrize("world", ["records", "chain"])
def test_a_wrong_value_of_a_pair_is_right_for_a_real_alternative(word_tokenizer, view, world):
    for comparison in generate(WorldPlan(world, 300), 50, word_tokenizer):
        seen = view(comparison)
        right, wrong = (seen.claims(seen.responses[index])[0][1] for index in comparison.best_first())
        asked = re.search(r"(\w+)\?$", seen.question)[1]
        assert f"{asked} " in seen.evidence[0] + seen.evidence[-1]
        holders = [entity for entity, value in seen.values.items() if value == wrong]
        assert holders
        assert right != wrong
        if world == "chain":
            assert any(holder in seen.partners for holder in holders)
            assert seen.values[asked] not in (right, wrong)  # the nearer fact is a decoy


@pytest.mark.parametrize("world", ["records", "chain"])
def test_graded_responses_share_no_entity_and_no_value(word_tokenizer, view, world):
    for comparison in generate(WorldPlan(world, 500, 4), 20, word_tokenizer):
        seen = view(comparison)
        claims = [claim for response in seen.responses for claim in seen.claims(response)]
        assert len({entity for entity, _ in claims}) == len({value for _, value in claims}) == 12
        assert len(seen.evidence) == (12 if world == "records" else 24)


def test_the_unrelated_control_swaps_the_context_and_keeps_the_rest(word_tokenizer, view):
    plan = WorldPlan("records", 500, per_group=3)
    for index in range(3):
        plain = group(plan, index, word_tokenizer)
        control = group(replace(plan, unrelated=True), index, word_tokenizer)
        for one, other in zip(plain, control, strict=True):
            assert (one.responses, one.ranks) == (other.responses, other.ranks)
            assert view(one).question == view(other).question
            assert view(other).context == view(group(plan, index + 1, word_tokenizer)[0]).context
            assert view(one).context != view(other).context
            assert not other.evidence
            assert other.metadata["unrelated"] is True
            assert one.id != other.id


def test_groups_can_be_made_in_any_order_and_other_seeds_give_other_contexts(word_tokenizer, view):
    plan = WorldPlan("records", 128, per_group=2)
    rows = list(generate(plan, 16, word_tokenizer))
    assert rows[14:] == group(plan, 7, word_tokenizer)
    others = generate(replace(plan, seed=1), 16, word_tokenizer)
    assert len({view(row).context for row in (*rows, *others)}) == 16


def test_the_same_bytes_on_every_machine(word_tokenizer, bpe):
    digest = hashlib.sha256()
    plans = [
        WorldPlan(w, n, r, d, 3, seed=5) for w, r in KINDS for n in (450, 2000) for d in ("uniform", 0.3)
    ]
    plans.append(WorldPlan("records", 300, unrelated=True))
    for plan in plans:
        for comparison in generate(plan, 4, word_tokenizer):
            held = asdict(comparison)
            assert held.pop("tools") == held.pop("rubrics") == (), "there are none"
            held["metadata"].pop("answer", None)  # it is newer than the hash, and says what ranks say
            digest.update(json.dumps(held, sort_keys=True).encode())
    # A new value here means other data under the same name: raise vocabulary.VERSION with it.
    assert digest.hexdigest() == GOLDEN


def test_a_length_too_short_for_the_question_is_refused_and_the_next_is_not(word_tokenizer):
    least = 12 * SENTENCE + word_tokenizer.count("Question: Name three people and the access code of each.")
    assert len(group(WorldPlan("records", least, 4), 0, word_tokenizer)) == 1
    with pytest.raises(ConfigError, match=f"{least - 1}.* {least} "):
        group(WorldPlan("records", least - 1, 4), 0, word_tokenizer)


def test_impossible_plans_are_refused():
    for wrong in ({"world": "recrods"}, {"responses": 9}, {"world": "chain", "responses": 7}):
        with pytest.raises(ConfigError, match="records|responses"):
            WorldPlan(**{"world": "records", "length": 100, **wrong})
