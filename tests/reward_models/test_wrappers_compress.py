import itertools
import logging
import random
from dataclasses import replace

import pytest

from longrm.data.chunking import approximate_tokens, chunk_spans
from longrm.reward_models.lexical import index
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.wrappers import CHUNK, LEFT_OUT, CompressRewardModel
from longrm.reward_models.wrappers import compress as compress_with_cut
from longrm.types import Cut, Judgment, Outcome, Query, Span, message_text, query_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds import words_tokenizer as word_tokenizer

SMALL = (24, 8)
SENTENCES = [f"Sentence {number} names the thing{number} here. " for number in range(20)]
CONTEXT = "".join(SENTENCES)
WHOLE = (0, len(CONTEXT))


class Listener(RewardModel):
    """Keeps the queries it is given, and answers with their numbers."""

    name = "listener"
    sees_order, samples, scale = True, True, "logit"

    def __init__(self):
        self.heard = []

    def judge(self, queries):
        self.heard += queries
        return [Judgment(Outcome.ANSWERED, (float(n), 0.0), prompt_tokens=n) for n, _ in enumerate(queries)]


def query(content=CONTEXT + "\n\nWhich one is thing7?", context=(WHOLE,), question=True, **parts):
    start = content.rfind("Which")
    return Query(
        "q",
        ({"role": "system", "content": "Be brief."}, {"role": "user", "content": content}),
        parts.get("responses")
        or tuple(({"role": "assistant", "content": text},) for text in ("It is thing3.", "It is thing15.")),
        tuple(Span(1, *bounds) for bounds in context),
        Span(1, start, start + 20) if question else None,
        trial=3,
    )


def compress(asked, *sizes):
    """The compressed query without its cut."""
    return compress_with_cut(asked, *sizes)[0]


def text_at(asked, span):
    return message_text(asked.prompt[span.message])[span.start : span.end]


def test_the_chunks_of_question_and_responses_stay_in_their_order_with_marks_between():
    short = compress(query(), *SMALL)
    kept = LEFT_OUT + LEFT_OUT.join(SENTENCES[number] for number in (3, 7, 15)) + LEFT_OUT
    assert short.prompt[1]["content"] == kept + "\n\nWhich one is thing7?"
    assert [text_at(short, span) for span in short.context] == [kept]
    assert text_at(short, short.question) == "Which one is thing7?"
    assert short.prompt[0] == query().prompt[0]
    assert (short.id, short.trial, short.responses) == ("q", 3, query().responses)


def test_all_orders_see_the_same_bytes():
    # Three chunks hold 3, 2 and 1 of the words of the responses, each in turn: which of them has the largest sum
    # is decided by how floating point rounds it, and so by the order in which the responses are added up.
    words = [[f"w{response}x{number}" for number in range(3)] for response in range(3)]
    turns = [[word for k in range(3) for word in words[k][: 3 - (k - turn) % 3]] for turn in range(3)]
    content = "".join(" ".join(turn) + ". " for turn in turns) + "Nothing of this is here at all. "
    responses = tuple(({"role": "assistant", "content": " ".join(named)},) for named in words)
    prompts = [
        compress(query(content, ((0, len(content)),), False, responses=order), 7, 7).prompt
        for order in itertools.permutations(responses)
    ]
    assert len(message_text(prompts[0][1])) < len(content)
    assert prompts == prompts[:1] * 6


def test_several_spans_are_one_context_and_each_follows_its_own_text():
    half = len("".join(SENTENCES[:10]))
    bounds = (0, half), (half, len(CONTEXT))
    short = compress(query(context=bounds), *SMALL)
    first, second = (text_at(short, span) for span in short.context)
    assert SENTENCES[3] in first
    assert SENTENCES[7] in first
    assert SENTENCES[15] in second
    assert text_at(short, short.question) == "Which one is thing7?"
    assert compress(query(context=bounds[::-1]), *SMALL).prompt == short.prompt


def test_a_question_within_the_context_stays_whole():
    content = "".join(SENTENCES[:12]) + "Which one is thing7? " + "".join(SENTENCES[12:])
    short = compress(query(content, context=((0, len(content)), (40, 90))), *SMALL)
    assert text_at(short, short.question) == "Which one is thing7?"
    before, after = (text_at(short, span) for span in short.context)
    assert short.prompt[1]["content"] == before + "Which one is thing7?" + after
    assert SENTENCES[3] in before
    assert SENTENCES[15] in after
    assert approximate_tokens(short.prompt[1]["content"].replace("[...]", "")) <= 24 + 6


def test_what_is_short_unknown_or_no_plain_text_stays_as_it_is():
    for asked, sizes in [(query(), (1024,)), (query(context=()), SMALL)]:
        assert compress_with_cut(asked, *sizes) == (asked, None)
    listed = Query(
        "q", ({"role": "user", "content": [{"type": "text", "text": CONTEXT}]},), (), (Span(0, 0, 99),)
    )
    assert compress_with_cut(listed, *SMALL) == (listed, None)


def test_the_inner_model_is_asked_once_about_the_short_queries_and_its_judgments_pass():
    inner = Listener()
    model = CompressRewardModel(inner, *SMALL)
    assert (model.name, model.sees_order, model.samples, model.scale) == (
        "compress:listener",
        True,
        True,
        "logit",
    )
    index.cache_clear()
    judged = model.judge([query(), query(question=False)])
    assert [judgment.prompt_tokens for judgment in judged] == [0, 1]
    assert all(len(message_text(heard.prompt[1])) < 200 for heard in inner.heard)
    assert index.cache_info().misses == 1


def test_what_is_left_out_is_reported_and_adds_to_what_the_model_cuts():
    class Cutter(Listener):
        def judge(self, queries):
            return [replace(judgment, cut=Cut("middle", 5)) for judgment in super().judge(queries)]

    kept = len((3, 7, 15)) * approximate_tokens(SENTENCES[0])
    left_out = Cut("compress", approximate_tokens(CONTEXT) - kept)
    short = query("Sentence 1. Which one is thing7?", context=((0, 11),))
    for inner, cuts in [
        (Listener(), [left_out, None]),
        (Cutter(), [replace(left_out, tokens=left_out.tokens + 5), Cut("middle", 5)]),
    ]:
        judged = CompressRewardModel(inner, *SMALL).judge([query(), short])
        assert [judgment.cut for judgment in judged] == cuts
        assert [judgment.scores for judgment in judged] == [(0.0, 0.0), (1.0, 0.0)]


def test_a_prompt_whose_context_is_not_known_is_logged_once(caplog):
    model = CompressRewardModel(Listener(), *SMALL)
    model.judge([query()])
    assert caplog.records == []
    for _ in range(2):
        model.judge([query(), query(context=())])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "compress:listener" in record.getMessage()


def recall(comparisons, shorten):
    found = [
        text_at(asked, span) in shorten(asked)
        for comparison in comparisons
        for asked in [query_of(comparison, range(len(comparison.responses)))]
        for span in comparison.evidence
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("world", "responses", "least"), [("records", 2, 1.0), ("chain", 2, 0.97), ("records", 4, 0.97)]
)
def test_evidence_in_long_contexts_is_kept_and_random_chunks_lose_it(world, responses, least):
    tokens = 1024
    plan = WorldPlan(world, 16_384, responses, per_group=4, seed=5)
    rows = list(generate(plan, 24 if responses == 2 else 6, word_tokenizer()))

    def compressed(asked):
        short = compress(asked, tokens)
        kept = text_at(short, short.context[0])
        assert approximate_tokens(kept.replace("[...]", "")) <= tokens
        assert text_at(short, short.question) == text_at(asked, asked.question)
        return kept

    def random_chunks(asked):
        context = text_at(asked, asked.context[0])
        drawn = random.Random(asked.id).sample(chunk_spans(context, CHUNK), 8)
        return " ".join(context[start:end] for start, end in drawn)

    assert recall(rows, compressed) >= least
    assert recall(rows, random_chunks) < 0.3
