import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from longrm.data.chunking import approximate_tokens, chunk_spans, words_of

PIECES = st.sampled_from(
    [
        "word",
        "Éa",
        "x_1",
        "漢",
        "かな",
        "3.14",
        ".",
        "! ",
        "。",
        ". ",
        '." ',
        " ",
        "\n",
        "\n\n",
        "\t",
        "'",
        "a" * 70,
    ]
)
TEXTS = st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80)


@given(TEXTS, st.integers(1, 12))
def test_chunks_cover_the_text_without_loss_or_overlap_and_none_is_too_long(text, size):
    found = chunk_spans(text, size)
    assert "".join(text[start:end] for start, end in found) == text
    assert all(start < end for start, end in found)
    assert all(approximate_tokens(text[start:end]) <= size for start, end in found)
    assert sum(approximate_tokens(text[start:end]) for start, end in found) == approximate_tokens(text)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(10, 30))
def test_chunks_end_with_sentences_that_fit_and_are_as_full_as_they_can_be(lengths, size):
    sentences = [" ".join(["word"] * (length - 1) + ["end"]) + ". " for length in lengths]
    text = "".join(sentences)
    found = [text[start:end] for start, end in chunk_spans(text, size)]
    assert all(chunk.endswith(". ") for chunk in found)
    for chunk, following in itertools.pairwise(found):
        assert approximate_tokens(chunk) + approximate_tokens(following.split(". ")[0] + ".") > size


def test_a_paragraph_in_the_second_half_ends_a_chunk_and_one_in_the_first_half_does_not():
    early, late = "One two.\n\n", "One two three four.\n\n"
    rest = "Five six. Seven eight."
    assert [end for _, end in chunk_spans(early + rest, 9)] == [len(early + rest)]
    assert [end for _, end in chunk_spans(late + rest, 9)] == [len(late), len(late + rest)]


def test_a_long_sentence_is_cut_between_words():
    text = " ".join(f"w{number}" for number in range(25))
    found = [text[start:end] for start, end in chunk_spans(text, 10)]
    assert [approximate_tokens(chunk) for chunk in found] == [10, 10, 5]
    assert [chunk.split()[0] for chunk in found] == ["w0", "w10", "w20"]


def test_a_decimal_point_ends_no_sentence():
    text = "It is 3.14 and so on. Next."
    assert [text[start:end] for start, end in chunk_spans(text, 10)] == ["It is 3.14 and so on. ", "Next."]


def test_words_are_lowercased_in_one_form_and_ideographs_stand_alone():
    assert words_of("Don't STOP, ÉTÉ: naïve_x 3.5") == ["don", "t", "stop", "été", "naïve_x", "3", "5"]
    assert words_of("e\u0301te\u0301 ﬁnd") == ["été", "find"]
    assert words_of("漢字とword") == ["漢", "字", "と", "word"]
    assert approximate_tokens("Don't stop.") == 5


def test_sentences_are_found_where_a_plain_rule_finds_them():
    text = "First one. Second one! Third one? “Fourth one.” (Fifth one.) Sixth one"
    expected = re.split(r"(?<=[.!?]) |(?<=[.!?][”)]) ", text)
    assert [text[start:end].strip() for start, end in chunk_spans(text, 5)] == expected
