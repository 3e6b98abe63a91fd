import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice

import pytest

from longrm.errors import ConfigError
from longrm.rng import Draws
from longrm.worlds import TEXTS, WORLDS, WorldPlan, generate, group
from longrm.worlds.prose.prose_world import ProseWorld

from .conftest import ONE_FACT_ASKED, PROSE
from .prose_tokenizer import prose_tokenizer

GOLDEN = "512583aac942df3cc2982a1b027cae0df0f7cfb569d4ea4e8814956f9a4d6b99"
SPARE = 9
"""Tokens that a context may have less than asked for: less than its kind's second shortest filling sentence."""


def test_every_world_in_prose_is_tested_here():
    assert {name for name, world in WORLDS.items() if isinstance(world, ProseWorld)} == {*PROSE}


@pytest.mark.parametrize("world", PROSE)
@pytest.mark.parametrize("text", TEXTS)
def test_the_best_response_is_borne_out_by_the_context_and_the_other_is_not(
    prose_bpe, prose_view, world, text
):
    for row in generate(WorldPlan(world, 700, per_group=4, seed=1, texts=(text,)), 12, prose_bpe):
        seen = prose_view(row)
        both = max(len(row.rubrics) - 1, 0)
        assert [seen.right(response) - both for response in seen.responses] == [
            2 - rank for rank in row.ranks
        ]
        assert seen.text == f"{seen.context}\n\n{seen.question}"
        assert row.metadata["text"] == text


@pytest.mark.parametrize("world", ONE_FACT_ASKED)
@pytest.mark.parametrize("responses", [3, 5])
def test_graded_responses_have_a_fault_more_each_and_share_no_claim(prose_bpe, prose_view, world, responses):
    for row in generate(WorldPlan(world, 4000, responses, per_group=2, seed=2), 6, prose_bpe):
        seen = prose_view(row)
        assert [seen.right(response) for response in seen.responses] == [
            responses - rank for rank in row.ranks
        ]
        assert sorted(row.ranks) == list(range(1, responses + 1))
        claims = [claim for response in seen.responses for claim in seen.claims(response)]
        assert len({*claims}) == len(claims) == responses * (responses - 1)


@pytest.mark.parametrize("world", PROSE)
def test_nobody_bears_out_the_claims_in_an_unrelated_context(prose_bpe, prose_view, world):
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
def test_contexts_have_the_tokens_asked_for_and_never_more(request, prose_view, kind, world):
    tokenizer = request.getfixturevalue(kind)
    for length in (600, 601, 1500, 6000):
        for text in TEXTS:
            plan = WorldPlan(world, length, per_group=2, seed=length, texts=(text,))
            totals = [tokenizer.count(prose_view(row).text) for row in group(plan, 0, tokenizer)]
            assert 0 <= length - max(totals) < SPARE, (text, length)


@pytest.mark.parametrize("world", PROSE)
def test_evidence_is_what_decides_and_stands_at_the_depth(prose_bpe, prose_view, world):
    for depth in (0, 0.25, 0.5, 1.0):
        (row,) = group(WorldPlan(world, 6000, depth=depth, seed=3), 0, prose_bpe)
        seen = prose_view(row)
        last = max(row.evidence, key=lambda span: span.start)
        assert last.start / (len(seen.context) - (last.end - last.start)) == pytest.approx(depth, abs=0.025)
        assert row.metadata["depth"] == depth
        without = seen.context
        for sentence in seen.evidence:
            assert seen.context.count(sentence) == 1
            without = without.replace(sentence, "")
        bare = prose_view(row)
        bare.context = without
        both = max(len(row.rubrics) - 1, 0)
        assert [bare.right(response) for response in bare.responses] == [both, both]


@pytest.mark.parametrize("world", ["single-fact", "two-hops", "latest-update", "counting", "citation"])
def test_facts_before_the_last_one_do_not_push_it_off_its_depth(prose_bpe, prose_view, world):
    for depth in (0.3, 0.7):
        found = []
        for row in generate(WorldPlan(world, 1500, depth=depth, seed=9), 20, prose_bpe):
            seen, last = prose_view(row), max(row.evidence, key=lambda span: span.start)
            found.append(last.start / (len(seen.context) - (last.end - last.start)))
        assert sum(found) / len(found) == pytest.approx(depth, abs=0.02)


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


TIME = re.compile(
    r"\b(again|ago|already|before|current\w*|earlier|eventually|final\w*|first|former\w*|last|late\w*|meanwhile"
    r"|month|new\w*|next|now|once|recent\w*|since|soon|still|then|this|today|tomorrow|until|week|year|yesterday)\b",
    re.IGNORECASE,
)


def tell_another_order(earlier, later):
    """Whether an earlier of two sentences about one thing has a time expression and the later has none."""
    return bool(TIME.search(earlier)) and not TIME.search(later)


@pytest.mark.parametrize(
    ("world", "length"), [("latest-update", 256), ("latest-update", 1024), ("counting", 1024)]
)
def test_no_earlier_fact_has_a_time_expression_that_a_later_one_lacks(prose_view, world, length):
    tokenizer, pairs = prose_tokenizer(size=4000), 0
    for row in generate(WorldPlan(world, length, seed=13), 200, tokenizer):
        facts = prose_view(row).evidence
        pairs += len(facts) - 1
        assert not any(map(tell_another_order, facts, facts[1:])), facts
    assert pairs > 200


@pytest.mark.parametrize("opening", ["This week", "According to the latest list,"])
def test_a_time_expression_that_a_later_fact_lacks_is_found(opening):
    moved = "the Sterling office was moved to"
    assert tell_another_order(f"{opening} {moved} Lisbon.", f"The{moved[3:]} Amsterdam.")
    assert not tell_another_order(f"The{moved[3:]} Lisbon.", f"{opening} {moved} Amsterdam.")


def test_the_latest_of_several_moves_is_asked_for_in_the_order_of_the_text(prose_bpe, prose_view):
    """For comments of code and documents have no order in time."""
    for responses in (2, 3):
        (row,) = group(WorldPlan("latest-update", 3000, responses), 0, prose_bpe)
        assert "order of the text" in prose_view(row).question


@pytest.mark.parametrize("text", sorted({*TEXTS} - {"code"}))
def test_dates_never_go_back(text):
    heads = [entry.head for entry in islice(TEXTS[text].passages(Draws("dates")), 600)]
    dates = [re.search(r"\d{1,2} [A-Z][a-z]+ \d{4}", head)[0] for head in heads]
    days = [datetime.strptime(date, "%d %B %Y") for date in dates]
    assert days == sorted(days)
    assert days[0].year < days[-1].year  # where days without a year would go back


def test_every_rule_is_for_whoever_writes_a_line(prose_view, prose_bpe):
    """For that is what the question asks for."""
    rows = list(generate(WorldPlan("instruction", 700, seed=14), 60, prose_bpe))
    rules = {sentence for row in rows for sentence in prose_view(row).evidence}
    assert len({re.sub(r"the \w+ \w+", "it", rule)[:30] for rule in rules}) >= 3
    assert all(re.match(r"Any line about|Whoever writes (a line )?about", rule) for rule in rules), rules


TAKES_BACK = re.compile(
    r"\b(above (was|were)|struck out|exchanged|ignore this|skip this|says otherwise|this is preliminary|not needed"
    r"|nothing was decided|this may change|i will revert(?! my)|(moved|canceled) it|never again)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("text", TEXTS)
def test_no_sentence_of_a_text_takes_back_what_stands_before_it(text):
    """A fact may stand there, and "two lines above were struck out" would be about it."""
    assert not [form for form in TEXTS[text].forms() if TAKES_BACK.search(form)]


def test_every_entry_has_a_number_of_its_own(prose_bpe, prose_view):
    (row,) = group(WorldPlan("citation", 30_000, texts=("minutes",), seed=4), 0, prose_bpe)
    numbers = re.findall(r"^\[(\w+)\]", prose_view(row).context, re.MULTILINE)
    assert len(numbers) == len(set(numbers)) > 200


def test_uniform_depths_are_spread_over_a_group(prose_bpe):
    for index in range(10):
        rows = group(WorldPlan("single-fact", 4000, per_group=8, seed=4), index, prose_bpe)
        depths = sorted(row.metadata["depth"] for row in rows)
        assert all(number / 8 <= depth < (number + 1) / 8 for number, depth in enumerate(depths))


@pytest.mark.parametrize("world", PROSE)
def test_responses_have_equally_many_tokens_where_values_allow(prose_bpe, prose_view, world):
    pairs = [prose_view(row) for row in generate(WorldPlan(world, 600, per_group=4, seed=5), 80, prose_bpe)]
    same = sum(len({prose_bpe.count(response) for response in seen.responses}) == 1 for seen in pairs)
    assert same >= {"contradiction": 15, "counting": 15, "citation": 30}.get(world, 60)
    assert all(len({len(response.split()) for response in seen.responses}) == 1 for seen in pairs)


@pytest.mark.parametrize("text", TEXTS)
def test_no_two_paragraphs_of_a_long_context_are_alike(prose_bpe, prose_view, text):
    (row,) = group(WorldPlan("single-fact", 32768, texts=(text,)), 0, prose_bpe)
    paragraphs = prose_view(row).context.split("\n\n")
    assert len(paragraphs) > 200
    assert max(Counter(paragraphs).values()) == 1 or text == "mail"  # whose heads end with an empty line
    heads = sum(paragraph.startswith("From: ") for paragraph in paragraphs)
    assert heads == (0 if text != "mail" else len(paragraphs) // 2)


def test_groups_share_a_context_and_can_be_made_in_any_order(prose_bpe, prose_view):
    plan = WorldPlan("two-hops", 900, per_group=3)
    rows = list(generate(plan, 9, prose_bpe))
    assert rows[6:] == group(plan, 2, prose_bpe)
    assert len({row.group for row in rows}) == len({prose_view(row).context for row in rows}) == 3
    assert len({row.id for row in rows}) == 9
    assert {row.metadata["text"] for row in generate(replace(plan, per_group=1), 60, prose_bpe)} == {*TEXTS}


def test_the_same_bytes_on_every_machine():
    digest, tokenizer = hashlib.sha256(), prose_tokenizer(size=256)
    for world in ONE_FACT_ASKED:
        for plan in (
            WorldPlan(world, 3000, per_group=3, seed=5),
            WorldPlan(world, 9000, 3, 0.3, seed=6),
            WorldPlan(world, 3000, texts=("code", "chat"), unrelated=True),
        ):
            for row in generate(plan, 4, tokenizer):
                held = asdict(row)
                assert held.pop("tools") == held.pop("rubrics") == (), "worlds offer none"
                digest.update(json.dumps(held, sort_keys=True).encode())
    # A new value here means other data under the same name: raise prose_world.PROSE_VERSION with it.
    assert digest.hexdigest() == GOLDEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": ("mial",)}, "no kind of text 'mial'; did you mean 'mail'"),
        ({"responses": 6}, "single-fact can rank 2 to 5 responses, got 6"),
        ({"texts": ("mail",), "haystack": "tests"}, "omit 'mail'"),
        ({"world": "records", "texts": ("mail",)}, "records writes sentences of seven words"),
    ],
)
def test_impossible_plans_are_refused_in_one_line(change, message, documents):
    if "haystack" in change:
        change = {**change, "haystack": str(documents), "haystack_column": "body"}
    with pytest.raises(ConfigError, match=message) as caught:
        WorldPlan(**{"world": "single-fact", "length": 500, **change})
    assert "\n" not in str(caught.value)


def test_a_length_too_short_for_the_facts_is_refused_with_the_tokens_needed(prose_bpe):
    with pytest.raises(
        ConfigError, match=r"length 60 is too short: the facts of one context need \d+ tokens"
    ):
        group(WorldPlan("two-hops", 60), 0, prose_bpe)


def test_the_words_tokenizer_is_refused_with_what_to_do(word_tokenizer):
    with pytest.raises(ConfigError, match="'two-hops' is plain prose, which this tokenizer does not know"):
        group(WorldPlan("two-hops", 600), 0, word_tokenizer)
