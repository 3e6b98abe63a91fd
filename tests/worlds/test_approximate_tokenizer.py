import pytest

from longrm.data.chunking import approximate_tokens
from longrm.types import text_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer, words_tokenizer


@pytest.mark.parametrize(
    "text",
    ["", "Two words.", "it's 3.5%", "模型好 ok", "naïve\n\n Größe", "a_b  c--d", "x" * 70, " w ", "<unk> w"],
)
def test_it_counts_what_is_counted_without_a_tokenizer(text):
    assert load_tokenizer("approximate").count(text) == approximate_tokens(text)


def test_it_knows_every_text():
    tokenizer = load_tokenizer("approximate")
    assert tokenizer.unk_id not in tokenizer.encode("Plain prose, such as this. <unk> 模型")
    texts = [text_of(row.prompt) for row in generate(WorldPlan("many-facts", 700), 3, tokenizer)]
    assert [tokenizer.count(text) for text in texts] == [approximate_tokens(text) for text in texts]
    assert words_tokenizer().unk_id in words_tokenizer().encode(texts[0])  # control: not every tokenizer does
