"""Attributions of scores that are known functions of the sentences: weights, trust, redundancy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.attribution.ablation import AblatedScores
from longrm.attribution.attribute import MASKS, attribute, prompts_at_most, target_of
from longrm.attribution.records import Target
from longrm.data.chunking import approximate_tokens
from longrm.errors import DataError
from longrm.rng import hash_fraction
from longrm.types import Judgment, Outcome, Query, Span, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

from .conftest import NAMES
from .judges import Known

LEAD = Target(0, 1)


def weights(record):
    return np.array([sentence.weight for sentence in record.sentences])


@pytest.mark.parametrize("removal", ["filler", "deletion"])
@pytest.mark.parametrize("count", [20, 300])
def test_a_linear_score_gets_its_own_weights(asked, count, removal):
    query, sentences = asked(count)
    true = np.zeros(count)
    true[[3, count // 2, count - 2]] = 4.0, 2.0, -3.0
    judge = Known(sentences, lambda held: 1.0 + sum(true[at] for at in held))
    record = attribute(judge, query, LEAD, removal)
    assert weights(record) == pytest.approx(true, abs=0.15), "the LASSO shrinks a little"
    assert record.trust.lds > 0.95
    assert record.trust.shown, record.trust.reason
    first = record.trust.tops[0]
    assert first.drop == pytest.approx(4.0)
    assert first.only == pytest.approx(1.0 + 4.0)
    assert record.prompts == len({*judge.asked})


def test_eight_equally_important_sentences_are_found(asked):
    query, sentences = asked(300)
    facts = {5, 48, 90, 131, 170, 208, 251, 294}
    record = attribute(Known(sentences, lambda held: float(len(held & facts))), query, LEAD)
    assert {*np.flatnonzero(weights(record) > 0.3).tolist()} == facts


def test_two_sentences_that_say_the_same_are_found(asked):
    query, sentences = asked(100)
    either = attribute(Known(sentences, lambda held: 5.0 * bool({20, 70} & held)), query, LEAD)
    assert either.trust.redundant == ((20, 70),) or either.trust.redundant == ((70, 20),)
    both = attribute(Known(sentences, lambda held: 2.5 * (20 in held) + 2.5 * (70 in held)), query, LEAD)
    assert both.trust.redundant == (), "the control: each is worth something alone"


@pytest.mark.parametrize(
    ("score", "scale", "why"),
    [
        (lambda held: 3.0, "points", "correlation"),
        (lambda held: hash_fraction("noise", sorted(held)), "points", "correlation"),
        (lambda held: 50.0 + 2.0 * sum(2.0**-at for at in held if at < 3), "points", "less than a quarter"),
        (lambda held: 0.1 * (5 in held), "logit", "falls by only 0.10"),
        (lambda held: 0.1 * (5 in held), "points", ""),  # the control: in points any size counts
    ],
)
def test_untrustworthy_weights_are_not_shown(asked, score, scale, why):
    query, sentences = asked(24)
    judge = Known(sentences, score)
    judge.scale = scale
    record = attribute(judge, query, LEAD)
    assert record.trust.shown == (not why), record.trust.reason
    assert why in record.trust.reason


def test_one_prompt_can_be_explained_in_python():
    facts = [f"Person {number} has a w{number}." for number in range(12)]
    prompt, responses = " ".join([*facts, "Who has a w7?"]), ["Person 7.", "Person 5."]
    model = Known(facts, lambda held: 3.0 * (7 in held) - 1.0 * (2 in held))
    whole = longrm.attribute(model, prompt, responses, removal="deletion")
    named = longrm.attribute(model, prompt, responses, removal="deletion", context=" ".join(facts))
    texts = [prompt[one.start : one.end].strip() for one in named.sentences]
    assert texts == facts
    assert len(whole.sentences) == 13
    assert texts[max(range(12), key=lambda at: named.sentences[at].weight)] == facts[7]
    with pytest.raises(DataError, match="the context"):
        longrm.attribute(model, prompt, responses, context="other")
    for wrong in (([prompt], [responses]), (prompt, "text"), (prompt, ["alone"])):
        with pytest.raises(DataError, match="responses|one prompt"):
            longrm.attribute(model, *wrong)


def test_filler_keeps_the_length(asked):
    query, sentences = asked(50)
    judge = Known(sentences, lambda held: float(len(held)))
    attribute(judge, query, LEAD)
    assert {approximate_tokens(text) for text in judge.asked} == {approximate_tokens(judge.asked[0])}
    gone = Known(sentences, lambda held: float(len(held)))
    attribute(gone, query, LEAD, "deletion")
    assert len({approximate_tokens(text) for text in gone.asked}) > 5, "the control"


def test_filler_has_no_words_of_the_sentence_or_the_question():
    """In a short context too, where few sentences are left to take words from."""
    names = ("Halora", "Varora", "Talwen", "Mardun", "Aldun", "Keloban")
    sentences = [f"Secret {name} stays at {place} place. " for name, place in zip(names, NAMES, strict=False)]
    context, question = "".join(sentences), "Where does Talwen stay?"
    query = Query(
        "short",
        ({"role": "user", "content": context + question},),
        (({"role": "assistant", "content": "Talwen stays at cedar place."},),),
        (Span(0, 0, len(context)),),
        Span(0, len(context), len(context) + len(question)),
    )
    model = Known(sentences, lambda held: 0.0)
    ablation = AblatedScores(model, query, Target(0), "filler", approximate_tokens)
    for number, name in enumerate(names):
        text = ablation.without([number]).prompt[0]["content"][: -len(question)]
        assert name not in text
        assert NAMES[number] not in text
        assert text.count("Talwen") == (number != 2)
        assert approximate_tokens(text) == approximate_tokens(context)


def test_the_target_is_the_lead_of_the_preferred_response():
    assert target_of((0.9, 0.1, 0.5), (1, 2, 2)) == Target(0, 2)
    assert target_of((0.1, 0.9, 0.5), (1, 2, 2)) == Target(1, 0), "it erred"
    assert target_of((0.1, 0.9, 0.5), (2, 2, 1)) == Target(1, 2)
    assert target_of((0.1, 0.9, 0.5), None) == Target(1, 2)
    assert target_of((0.3, 0.3), (2, 1)) == Target(1, 0)
    assert target_of((0.3, 0.3), (1, 1)) == Target(0, 1)


def test_a_context_of_one_sentence_has_no_attribution(asked):
    query, sentences = asked(1)
    record = attribute(Known(sentences, lambda held: 1.0), query, LEAD)
    assert record.trust is None
    assert "at least 2" in record.detail


class Compares(Known):
    """Prefers what is shown first, or the response that is worth more, in scores of either scale."""

    sees_order = True

    def __init__(self, sentences, worth, scale):
        super().__init__(sentences, worth)
        self.scale = scale

    def judge(self, queries):
        judged = []
        for one, query in zip(super().judge(queries), queries, strict=True):
            sign = 1 if query.responses[0][0]["content"] == "Yes." else -1
            odds = sign * one.scores[0] + 0.7
            chance = 1 / (1 + math.exp(-odds))
            logits, votes = (math.log(chance), math.log(1 - chance)), (float(odds > 0), float(odds <= 0))
            scores = logits if self.scale == "logit" else votes
            judged.append(Judgment(Outcome.ANSWERED, scores, prompt_tokens=1))
        return judged


def test_a_judge_that_compares_is_explained_in_log_odds(asked):
    query, sentences = asked(24)
    found = attribute(Compares(sentences, lambda held: 2.0 * (5 in held), "logit"), query, LEAD)
    assert found.trust.score == pytest.approx(2.0), "a preference for the place cancels"
    assert weights(found)[5] == pytest.approx(2.0, abs=0.05)
    voted = attribute(Compares(sentences, lambda held: 2.0 * (5 in held), "verdict"), query, LEAD)
    assert voted.trust.score == pytest.approx(math.log(2.5 / 0.5)), "two votes of two, and half a vote each"
    assert voted.trust.score - voted.trust.drop == pytest.approx(0.0), "without it one of two"
    assert voted.trust.shown, voted.trust.reason


@pytest.mark.parametrize("count", [2, 9, 33, 300])
def test_the_upper_bound_of_prompts_holds(asked, count):
    query, sentences = asked(count)
    record = attribute(Known(sentences, lambda held: float(sum(math.sin(at) for at in held))), query, LEAD)
    most = prompts_at_most(count, MASKS)
    assert most / 3 <= record.prompts <= most


def test_short_contexts_have_fewer_tests(asked):
    for count, sizes, known in ((3, [1], False), (8, [1, 3], True), (12, [1, 3, 5], True)):
        query, sentences = asked(count)
        record = attribute(Known(sentences, lambda held: 3.0 * (1 in held)), query, LEAD)
        assert [one.k for one in record.trust.tops] == sizes
        assert (record.trust.lds is not None) == known == record.trust.shown
        assert known or "too few sentences" in record.trust.reason


def test_a_nan_score_ends_its_comparison_with_its_cost(asked):
    query, sentences = asked(24)
    record = attribute(Known(sentences, lambda held: 1.0 if 5 in held else math.nan), query, LEAD)
    assert record.trust is None
    assert "score of response 1 of 2 is nan" in record.detail
    assert record.prompts > 0 < record.tokens_computed


# --- How far a scalar head is from random ones, against plain transformers and against random heads themselves ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("model") / "tiny", positions=256)


@pytest.fixture(scope="module")
def query():
    (row,) = generate(WorldPlan("records", 64), 1, words_tokenizer())
    return query_of(row, row.best_first())


def states(folder, query):
    """The last hidden states of both responses, each as a sequence of its own."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for response in query.responses:
        ids = tokenizer.apply_chat_template(
            [*query.prompt, *response], return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.no_grad():
            found.append(model.model(ids).last_hidden_state[0, -1])
    return found, model.score.weight[0].detach()


def test_head_deviation_is_the_lead_over_the_spread_of_random_heads(folder, query):
    (first, second), weight = states(folder, query)
    drawn = torch.randn(4000, len(weight), generator=torch.Generator().manual_seed(0))
    leads = drawn / drawn.norm(dim=1, keepdim=True) * weight.norm() @ (first - second)
    model = longrm.load(str(folder))
    better, worse = model.score(query.prompt, query.responses)
    assert float(leads.mean()) == pytest.approx(0, abs=0.06 * float(leads.std()))
    assert model.head_deviation(query) == pytest.approx((better - worse) / float(leads.std()), rel=0.05)
    swapped = replace(query, responses=query.responses[::-1])
    assert model.head_deviation(swapped) == pytest.approx(-model.head_deviation(query), rel=1e-4)


def test_a_head_along_the_difference_of_two_states_deviates_most(folder, query):
    (first, second), weight = states(folder, query)
    model = longrm.load(str(folder))
    head = model._model.score.weight
    with torch.no_grad():
        head.copy_((first - second)[None])
    assert model.head_deviation(query) == pytest.approx(math.sqrt(len(weight)), rel=1e-3)
    record = attribute(model, query, Target(0, 1))
    assert "random head" not in record.trust.reason


def test_a_random_head_is_named_as_the_reason(folder, query):
    model = longrm.load(str(folder))
    assert abs(model.head_deviation(query)) < 3
    record = attribute(model, query, Target(0, 1))
    assert not record.trust.shown
    assert "a random head would score similarly" in record.trust.reason
