import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.data.spans import rewrite
from longrm.types import Span


def text_at(prompt, span):
    return prompt[span.message]["content"][span.start : span.end]


def test_spans_behind_an_edit_move_and_spans_around_it_change():
    prompt = (
        {"role": "system", "content": "Be fair."},
        {"role": "user", "content": "old facts Q? more facts"},
    )
    context = (Span(1, 0, 9), Span(1, 13, 23))
    question = Span(1, 10, 12)
    edits = [(context[0], "new"), (context[1], "")]
    changed, spans = rewrite(prompt, edits, [*context, question, Span(1, 0, 23), Span(0, 3, 7)])
    assert changed[1]["content"] == "new Q? "
    assert [text_at(changed, span) for span in spans] == ["new", "", "Q?", "new Q? ", "fair"]
    assert prompt[1]["content"].startswith("old"), "the prompt that was passed stays as it is"


@given(st.lists(st.text("ab", max_size=4), min_size=3, max_size=9), st.text("xyz", max_size=5), st.randoms())
def test_parts_that_were_not_edited_keep_their_text(parts, text, random):
    whole, spans, at = "".join(parts), [], 0
    for part in parts:
        spans.append(Span(0, at, at + len(part)))
        at += len(part)
    edited = {index for index in range(len(parts)) if parts[index] and random.random() < 0.5}
    prompt = ({"role": "user", "content": whole},)
    changed, moved = rewrite(prompt, [(spans[index], text) for index in edited], spans)
    for index, span in enumerate(moved):
        if parts[index]:
            assert text_at(changed, span) == (text if index in edited else parts[index])


def test_lists_of_parts_are_not_edited():
    with pytest.raises(ValueError, match="text"):
        rewrite(({"role": "user", "content": [{"type": "text", "text": "a"}]},), [(Span(0, 0, 1), "")], [])
