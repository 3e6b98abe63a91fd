"""Texts that a chat template has rendered: no second BOS, and the ids that transformers' tokenizer gives."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from longrm.data.joining import TokenQuery
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.serving.rendered_texts import QueryMaker
from longrm.serving.wire import ScoreRequest

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|h|>{{ message.role }}<|e|>{{ message.content }}<|t|>{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|e|>{% endif %}"
)
TEXT = "<|h|>user<|e|>w1 w2<|t|><|h|>assistant<|e|>w3 w4<|t|>"


def make(template=TEMPLATE, adds=True):
    special = ["<s>", "<|h|>", "<|e|>", "<|t|>", "<unk>"]
    known = {
        token: number
        for number, token in enumerate([*special, "user", "assistant", *(f"w{n}" for n in range(9))])
    }
    backend = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(special)
    if adds:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    return Tokenizer.from_backend(backend, chat_template=template, bos="<s>")


def ids_of(query):
    assert isinstance(query, TokenQuery)
    return [[*query.encoded.prompt, *own] for own in query.encoded.responses]


@pytest.mark.parametrize("text", [TEXT, f"<s>{TEXT}"])
def test_bos_is_added_exactly_once(text):
    tokenizer = make()
    maker, expected = QueryMaker(tokenizer), tokenizer.encode(f"<s>{TEXT}")
    query = maker.query(ScoreRequest(rendered=text))
    assert ids_of(query) == [expected]
    assert expected.count(tokenizer.bos_id) == 1
    start, end = text.removesuffix("w3 w4<|t|>"), "w3 w4<|t|>"
    apart = maker.query(ScoreRequest(start, [end, "w5<|t|>"]))
    assert ids_of(apart)[0] == expected
    assert apart.encoded.prompt == query.encoded.prompt, "both find where the response begins"
    control = tokenizer.backend.encode(f"<s>{TEXT}", add_special_tokens=True).ids
    assert control.count(tokenizer.bos_id) == 2, "what a server gets that adds it to rendered texts"


def test_the_prompt_of_several_texts_is_encoded_once(monkeypatch):
    tokenizer, encode, read = make(), Tokenizer.encode, []
    maker = QueryMaker(tokenizer)
    prompt = f"<|h|>user<|e|>{' '.join(['w1 w2'] * 40)}<|t|><|h|>assistant<|e|>"
    # The last response looks like the beginning of another turn; the last text has no response.
    texts = [f"{prompt}{end}" for end in ("w3<|t|>", "w4 w5<|t|>", "w6<|t|><|h|>assistant<|e|>w7", "")]
    expected = [encode(tokenizer, f"<s>{text}") for text in texts]
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: read.append(text) or encode(self, text))
    assert [ids_of(maker.query(ScoreRequest(rendered=text))) for text in texts[:2]] == [
        [one] for one in expected[:2]
    ]
    assert [len(text) > len(prompt) // 2 for text in read] == [True, False, False]
    assert [ids_of(maker.query(ScoreRequest(rendered=text))) for text in texts[2:]] == [
        [one] for one in expected[2:]
    ]


def test_a_client_may_forbid_bos_and_a_template_without_it_gets_none():
    assert ids_of(QueryMaker(make()).query(ScoreRequest(rendered=TEXT, add_bos=False))) == [
        make().encode(TEXT)
    ]
    without = make(TEMPLATE.replace("{{ bos_token }}", ""))
    assert ids_of(QueryMaker(without).query(ScoreRequest(rendered=TEXT))) == [without.encode(TEXT)]


def test_token_ids_are_read_unchanged():
    tokenizer = make()
    query = QueryMaker(tokenizer).query(ScoreRequest(rendered=tokenizer.encode(TEXT)))
    assert ids_of(query) == [tokenizer.encode(TEXT)]
    assert query.split
    assert not QueryMaker(tokenizer).query(ScoreRequest(rendered=[5, 6, 7])).split
    with pytest.raises(DataError):
        QueryMaker(tokenizer).query(ScoreRequest(rendered=[5]))


def test_the_last_turn_of_a_conversation_is_the_response():
    tokenizer = make()
    whole = f"{TEXT}<|h|>user<|e|>w5<|t|><|h|>assistant<|e|>w6 w7<|t|>"
    query = QueryMaker(tokenizer).query(ScoreRequest(rendered=whole))
    assert [tokenizer.decode(own) for own in query.encoded.responses] == ["w6 w7 <|t|>"]


@pytest.mark.parametrize("template_end", ["<|t|>", " <|t|> ", "<|t|>\n<unk>", "\n", ""])
def test_responses_are_closed_as_the_template_closes_an_answer(template_end):
    maker = QueryMaker(make(TEMPLATE.replace("<|t|>", template_end)))
    ends = {"", template_end} | {template_end[:5] for _ in [0] if template_end.startswith("<|t|>")}
    assert {maker._closed(f"w3 w4{end}") for end in ends} == {f"w3 w4{template_end}"}
    assert maker._closed("w3 <|t|> w4") == f"w3 <|t|> w4{template_end}", "only what it ends with"


def test_a_text_with_a_special_token_inside_is_not_rendered():
    query = QueryMaker(make()).query(ScoreRequest("what is <|h|> for?", ["w1"]))
    assert not isinstance(query, TokenQuery)
    assert query.prompt == ({"role": "user", "content": "what is <|h|> for?"},)
    with pytest.raises(DataError):
        QueryMaker(make()).query(ScoreRequest(TEXT, [[{"role": "assistant", "content": "w1"}]]))
