from pathlib import Path

import pytest

from longrm.benchmarks.benchmark import bucket, measure_with
from longrm.data.chunking import approximate_tokens
from longrm.data.files import find_files, raw_rows
from longrm.worlds.words_tokenizer import words_tokenizer

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "longrm-sample" / "simpo"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("Two words.", 3), ("it's 3.5%", 7), ("模型好 ok", 4), ("naïve\n\n Größe", 2)],
)
def test_words_and_marks_are_counted_and_ideographs_one_by_one(text, tokens):
    assert approximate_tokens(text) == tokens


def test_a_tokenizer_measures_in_its_own_tokens():
    text = "The access code of Noreth is copper."
    assert measure_with("words")(text) == words_tokenizer().count(text) == 8
    assert measure_with(None) is approximate_tokens


def test_buckets_are_powers_of_two():
    assert [bucket(tokens) for tokens in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the real sample does not lie beside the checkout")
def test_the_estimate_is_near_what_a_large_model_counts():
    estimates, by_words = [], []
    for raw in raw_rows([*find_files(SAMPLE / "train"), *find_files(SAMPLE / "eval")]):
        text = "\n".join(message["content"] for message in raw.value["chat_template"])
        estimates.append(approximate_tokens(text) / raw.value["prompt_ctx_length"])
        by_words.append(len(text.split()) * 4 / 3 / raw.value["prompt_ctx_length"])
    assert len(estimates) == 18
    assert min(estimates) > 0.85
    assert max(estimates) < 1.1
    assert min(by_words) < 0.5  # the usual estimate would call labels wrong that are right
