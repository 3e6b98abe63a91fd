import re

import pytest

from longrm.data.chunking import approximate_tokens
from longrm.data.joining import encode
from longrm.errors import DataError
from longrm.types import message_text, text_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.vocabulary import FILLERS, LINK, RECORDS, SENTENCE
from longrm.worlds.words_tokenizer import load_tokenizer, words_tokenizer


def test_every_sentence_is_seven_words_and_a_full_stop():
    for form in (*RECORDS, LINK, *FILLERS):
        sentence = re.sub(r"\{\w+\}", "x", form)
        assert len(re.findall(r"\w+|[^\w\s]", sentence)) == SENTENCE, form


@pytest.mark.parametrize("world", ["records", "chain"])
@pytest.mark.parametrize("responses", [2, 3, 5])
def test_the_words_tokenizer_knows_and_restores_all_texts(word_tokenizer, world, responses):
    unknown = word_tokenizer.backend.token_to_id("<unk>")
    for comparison in generate(WorldPlan(world, 3000, responses), 3, word_tokenizer):
        for message in (*comparison.prompt, *(message for r in comparison.responses for message in r)):
            text = message_text(message)
            ids = word_tokenizer.encode(text)
            assert unknown not in ids
            assert word_tokenizer.decode(ids) == text.replace("\n\n", " ")
            assert word_tokenizer.encode(word_tokenizer.decode(ids)) == ids
    assert unknown in word_tokenizer.encode("The zeppelin walked.")


def test_a_prompt_and_its_response_are_marked_by_special_tokens(word_tokenizer):
    prompt = ({"role": "user", "content": "Rain fell."},)
    response = ({"role": "assistant", "content": "The."},)
    tokens = encode(word_tokenizer, prompt, [response])
    names = [word_tokenizer.backend.id_to_token(index) for index in [*tokens.prompt, *tokens.responses[0]]]
    assert names == ["<user>", "Rain", "fell", ".", "<end>", "<assistant>", "The", ".", "<end>"]
    with pytest.raises(DataError):
        word_tokenizer.prompt_ids(({"role": "system", "content": "Rain fell."}, *prompt))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Two words.",
        "it's 3.5%",
        "模型好 ok",
        "naïve\n\n Größe",
        "a_b  c--d",
        "x" * 70,
        " w ",
        "<unk> w",
        "हिन्दी में",
        "L̂K ²½",
    ],
)
def test_the_approximate_tokenizer_counts_as_without_a_tokenizer(text):
    assert load_tokenizer("approximate").count(text) == approximate_tokens(text)


def test_the_approximate_tokenizer_knows_every_text():
    tokenizer = load_tokenizer("approximate")
    assert tokenizer.unk_id not in tokenizer.encode("Plain prose, such as this. <unk> 模型")
    texts = [text_of(row.prompt) for row in generate(WorldPlan("many-facts", 700), 3, tokenizer)]
    assert [tokenizer.count(text) for text in texts] == [approximate_tokens(text) for text in texts]
    assert words_tokenizer().unk_id in words_tokenizer().encode(texts[0])  # control: not every tokenizer does
