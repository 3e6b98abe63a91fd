"""Cutting, on contexts of numbered words, so that it is known which were cut."""

import re
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from longrm.data.tokenizing import Tokenizer
from longrm.judging import load_format, truncate_context
from longrm.judging.cutting import MARK
from longrm.types import Cut, Query, Span, message_text

POLICIES = ["middle", "left", "right"]
PAIRWISE = load_format("pairwise")


@pytest.fixture(scope="module", params=["bytes", "words"])
def tokenizer(request):
    if request.param == "words":
        backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        return Tokenizer.from_backend(backend)
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([numbered(500)], trainer)
    return Tokenizer.from_backend(backend)


def numbered(count, first=0):
    return " ".join(f"w{number}" for number in range(first, first + count))


def numbers(text):
    return [int(number) for number in re.findall(r"w(\d+)", text)]


def in_span(query, span):
    return message_text(query.prompt[span.message])[span.start : span.end]


@pytest.fixture
def measure(tokenizer):
    def count(query):
        count.calls += 1
        return max(tokenizer.count(message["content"]) for (message,) in PAIRWISE.render(query))

    count.calls = 0
    return count


@pytest.fixture
def long(query):
    """A context of 2,000 words between a preface and a question."""
    asked = query("Marlow.", "Tamsin.", context=numbered(2000))
    return replace(
        asked,
        prompt=({"role": "system", "content": "Preface."}, {**asked.prompt[0], "name": "kept"}),
        context=(Span(1, 0, asked.context[0].end),),
        question=replace(asked.question, message=1),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_context_is_cut_until_it_nearly_fills_the_limit(tokenizer, measure, long, policy):
    total = measure(long)
    limit, measure.calls = total * 2 // 3, 0
    short, cut = truncate_context(long, measure, limit, tokenizer, policy)
    assert measure.calls <= 8
    assert limit - 8 <= measure(short) <= limit
    assert cut == Cut(policy, total - measure(short))
    assert short.responses == long.responses
    assert in_span(short, short.question) == "Who has the key?"
    assert short.prompt[0] == long.prompt[0]
    assert short.prompt[1]["name"] == "kept"
    whole, kept = in_span(long, long.context[0]), in_span(short, short.context[0])
    assert message_text(short.prompt[1]) == f"{kept}\n\nWho has the key?"
    head, tail = kept.split(MARK)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    if policy == "middle":
        assert abs(tokenizer.count(head) - tokenizer.count(tail)) <= 3
    else:
        assert (head, tail)[policy == "right"] == ""
        assert (head, tail)[policy == "left"]


def test_a_query_that_fits_is_not_changed(tokenizer, measure, long):
    assert truncate_context(long, measure, measure(long), tokenizer, "middle") == (long, None)
    assert truncate_context(long, measure, measure(long), tokenizer, "refuse") == (long, None)
    short, cut = truncate_context(long, measure, measure(long) - 1, tokenizer, "middle")
    assert short != long
    assert cut.tokens >= 1


@pytest.mark.parametrize(
    "change",
    [
        {"context": ()},
        {"context": (Span(1, 0, 20),)},
        {
            "prompt": (
                {"role": "system", "content": "x"},
                {"role": "user", "content": [{"text": numbered(2000)}]},
            )
        },
    ],
    ids=["unknown", "too short", "no plain text"],
)
def test_a_query_that_cannot_fit_is_refused(tokenizer, measure, long, change):
    limit = measure(long) // 2
    assert truncate_context(long, measure, limit, tokenizer, "middle")
    assert truncate_context(long, measure, limit, tokenizer, "refuse") is None
    assert truncate_context(replace(long, **change), measure, limit, tokenizer, "middle") is None
    assert (
        truncate_context(long, measure, 20, tokenizer, "middle") is None
    )  # less than the question and the responses


@pytest.mark.parametrize("policy", POLICIES)
def test_several_spans_are_cut_as_if_joined(tokenizer, measure, policy):
    documents = [numbered(200, 200 * number) for number in range(5)]
    messages = [{"role": "user", "content": f"Document {n}:\n{text}"} for n, text in enumerate(documents)]
    start = len("Document 0:\n")
    context = [Span(number, start, start + len(text)) for number, text in enumerate(documents)]
    responses = tuple(({"role": "assistant", "content": text},) for text in ("Marlow.", "Tamsin."))
    asked = Query("c", tuple(messages), responses, tuple(reversed(context)))
    total = measure(asked)
    short, cut = truncate_context(
        asked, measure, total - tokenizer.count(" ".join(documents)) // 2, tokenizer, policy
    )
    assert cut == Cut(policy, total - measure(short))
    text = "".join(map(message_text, short.prompt))
    assert text.count(MARK) == 1
    assert all(f"Document {number}:\n" in text for number in range(5))
    kept = numbers("".join(in_span(short, span) for span in reversed(short.context)))
    assert kept == numbers(text)
    gone = sorted(set(range(1000)) - set(kept))
    assert len(gone) > 400
    assert gone[-1] - gone[0] <= len(gone) + 1  # one run of words; a word may be cut through
    assert (gone[0] == 0) is (policy == "left")
    assert (gone[-1] == 999) is (policy == "right")


def test_a_question_inside_the_context_stays(tokenizer, measure, long):
    text = message_text(long.prompt[1])
    start = text.index("w1000 ")
    asked = replace(long, question=Span(1, start, start + len("w1000 w1001")))
    short, _ = truncate_context(asked, measure, measure(asked) * 2 // 3, tokenizer, "middle")
    assert in_span(short, short.question) == "w1000 w1001"
    assert len(numbers(in_span(short, short.context[0]))) < 1500


def test_a_prompt_may_show_the_context_twice_but_not_never(tokenizer, long):
    def twice(query):
        return 2 * tokenizer.count(in_span(query, query.context[0]))

    limit = twice(long) // 2
    short, cut = truncate_context(long, twice, limit, tokenizer, "right")
    assert limit - 16 <= twice(short) <= limit
    assert cut.tokens == twice(long) - twice(short)
    assert truncate_context(long, lambda query: 1000, 900, tokenizer, "middle") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    context=st.text(min_size=1, max_size=300),
    share=st.floats(0.05, 0.95),
    policy=st.sampled_from(POLICIES),
)
def test_any_text_is_cut_between_characters(tokenizer, measure, query, context, share, policy):
    asked = query("Marlow.", "Tamsin.", context=context)
    total = measure(asked)
    limit = total - int(share * tokenizer.count(context))
    fitted = truncate_context(asked, measure, limit, tokenizer, policy)
    if fitted is None:
        return
    short, cut = fitted
    assert measure(short) <= limit
    assert in_span(short, short.question) == "Who has the key?"
    if cut is not None:
        head, _, tail = in_span(short, short.context[0]).partition(MARK)
        assert context.startswith(head)
        assert context.endswith(tail)
