"""Tokens of regions: what they decode to is the regions' text."""

import pytest

from longrm.data.joining import span_tokens
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Span
from longrm.worlds import words_tokenizer
from tests.data.trajectories import HERMES, TOOLS, pair_of_tokenizers
from tests.data.trajectories import PROMPT as ASKED

TEXT = " \nThe access code of Marlow is 铜. The access code of Marlow is tin.\n\nWhat is it? "
PROMPT = [
    {"role": "user", "content": "The access code of Marlow is 铜."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": TEXT},
]


def region(message: int, text: str, nth: int = 0) -> Span:
    start = -1
    for _ in range(nth + 1):
        start = PROMPT[message]["content"].index(text, start + 1)
    return Span(message, start, start + len(text))


@pytest.mark.parametrize("kind", ["byte_level", "spaced"])
@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen3", "mistral", None])
def test_tokens_decode_to_the_text_of_their_region(name, kind, request, templates):
    template, backend = None if name is None else templates[name], request.getfixturevalue(kind)
    tokenizer = Tokenizer.from_backend(backend, chat_template=template, bos="<s>", eos="</s>", pad="<pad>")
    texts = {
        "first": (0, "is 铜"),
        "metal": (2, "铜"),
        "last": (2, "Marlow is tin."),
        "question": (2, "What is it?"),
    }
    regions = {label: [region(*where)] for label, where in texts.items()}
    ids = tokenizer.prompt_ids(PROMPT)
    found = span_tokens(tokenizer, PROMPT, regions)
    places = []
    for label, (_, text) in texts.items():
        decoded = tokenizer.decode([ids[token] for token in found[label]])
        assert text in decoded, (label, decoded)
        for fewer in (found[label][1:], found[label][:-1]):
            assert text not in tokenizer.decode([ids[token] for token in fewer]), "each is needed"
        places += [found[label][0], found[label][-1]]
    first, metal, last, question = (found[label] for label in texts)
    assert first[-1] < metal[0] <= metal[-1] < last[0] <= last[-1] < question[0]


def test_a_token_is_named_once_and_white_space_alone_is_none_of_a_words_tokens():
    tokenizer = words_tokenizer()
    prompt = [{"role": "user", "content": "The access code of Alora is copper. Who?"}]
    whole, part = Span(0, 0, 35), Span(0, 4, 10)
    found = span_tokens(
        tokenizer,
        prompt,
        {"both": [whole, part], "part": [part], "space": [Span(0, 3, 4)], "none": [Span(0, 6, 6)]},
    )
    ids = tokenizer.prompt_ids(prompt)
    assert tokenizer.decode([ids[token] for token in found["both"]]) == "The access code of Alora is copper."
    assert tokenizer.decode([ids[token] for token in found["part"]]) == "access"
    assert found["space"] == found["none"] == []


def test_spans_are_found_behind_tools():
    ours, _ = pair_of_tokenizers(HERMES)
    found = span_tokens(ours, ASKED, {"city": [Span(1, 14, 18)]}, TOOLS)["city"]
    assert "Oslo" in ours.decode([ours.prompt_ids(ASKED, TOOLS)[token] for token in found])
    assert found[0] > 300 + span_tokens(ours, ASKED, {"city": [Span(1, 14, 18)]})["city"][0]


def test_white_space_that_the_template_cuts_off_is_in_no_region(byte_level, templates):
    tokenizer = Tokenizer.from_backend(byte_level, chat_template=templates["llama3"], eos="</s>")
    found = span_tokens(tokenizer, PROMPT, {"edge": [Span(2, 0, 2)], "whole": [Span(2, 0, len(TEXT))]})
    ids = tokenizer.prompt_ids(PROMPT)
    assert found["edge"] == []
    assert tokenizer.decode([ids[token] for token in found["whole"]]) == TEXT.strip()


def test_what_cannot_be_found_is_refused(byte_level):
    tokenizer = Tokenizer.from_backend(
        byte_level, chat_template="{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", eos="</s>"
    )
    with pytest.raises(DataError, match="message 0"):
        span_tokens(tokenizer, PROMPT, {"x": [Span(0, 0, 3)]})
    parts = [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
    with pytest.raises(DataError, match="message 0"):
        span_tokens(tokenizer, parts, {"x": [Span(0, 0, 3)]})
