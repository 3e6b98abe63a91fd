"""Tokenizers from GGUF files: the ids of the tokenizer that was written, and of the model that was trained with it."""

import random
from dataclasses import replace

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.modeling.gguf_conversion import convert
from longrm.modeling.gguf_header import read_header
from longrm.modeling.gguf_tokenizer import read_gguf_tokenizer

from .gguf_writing import COMMON_PIECES, SPECIALS, TEMPLATE, WORDS, train_backend, write_gguf
from .test_gguf import new_model

PIECES = [*COMMON_PIECES, "42", "1,000", "é", "▁", "<|im"]
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def ids_of(backend, text):
    return backend.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module", params=WORDS)
def pair(request, tmp_path_factory):
    """The tokenizer that was written, and what is read of the file."""
    backend = train_backend(request.param)
    folder = tmp_path_factory.mktemp("tokenizer")
    model = new_model(vocab_size=backend.get_vocab_size())
    file = write_gguf(folder / "m.gguf", model, backend, words=request.param)
    return backend, read_gguf_tokenizer(file, read_header(file)), file


@given(text=texts)
def test_texts_become_the_ids_of_the_tokenizer_that_was_written(text, pair):
    backend, found, _ = pair
    assert found.encode(text) == ids_of(backend, text)


def test_ids_and_special_tokens_keep_their_places(pair):
    backend, found, _ = pair
    assert found.backend.get_vocab() == backend.get_vocab()
    assert [found.encode(token) for token in SPECIALS] == [[0], [1], [2]]
    assert (found.bos_id, found.eos_id, found.pad_id) == (1, 2, 2)
    assert found.chat_template == TEMPLATE
    text = "Corimo keeps  42 北京\n"
    assert found.decode(found.encode(text)) == text


def test_the_folder_of_a_file_gives_transformers_and_us_the_same_ids(pair, tmp_path):
    backend, _, file = pair
    convert(file, tmp_path / "out")
    ours, theirs = Tokenizer.load(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices(PIECES, k=12))
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False) == ids_of(backend, text)
    messages = [{"role": "user", "content": "Who keeps  42?"}]
    assert (
        ours.generation_ids(messages)
        == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    )


def test_transformers_alone_would_not_set_digits_apart(tmp_path):
    """Why how words are split is set here; where this fails, transformers has learned it."""
    backend = train_backend("smollm")
    file = write_gguf(tmp_path / "m.gguf", new_model(vocab_size=backend.get_vocab_size()), backend)
    made = PreTrainedTokenizerFast.from_pretrained(tmp_path, gguf_file=file.name)
    assert made.encode("then  7   and", add_special_tokens=False) != ids_of(backend, "then  7   and")


def sentencepiece():
    """A vocabulary as Llama 2's: bytes, and merges by score."""
    words = ["▁the", "▁code", "▁of", "▁Corimo", "▁is", "▁bucket", "4", "2", ".", ",", "é"]
    pieces, merges = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))], []
    pieces += dict.fromkeys("".join(words) + "▁abcdefghijklmnopqrstuvwxyz")
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                merges.append((word[: end - 1], word[end - 1 : end]))
                pieces.append(word[:end])
    backend = tokenizers.Tokenizer(
        models.BPE(
            {piece: n for n, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend, pieces


def write_sentencepiece(file, pieces, *, kinds=None, scores=None):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores or [0.0] * 259 + [-float(n) for n in range(len(pieces) - 259)])
    writer.add_token_types(kinds or [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_tokenizer(file, read_header(file))


@given(
    text=st.one_of(
        st.text("the codfCrimsbuk42.,é日 \n"),
        st.lists(st.sampled_from(["<s>", "</s>", " the code", " of", "Corimo"])).map("".join),
    )
)
def test_a_sentencepiece_vocabulary_gives_its_ids(text, spm):
    backend, found = spm
    assert found.encode(text) == ids_of(backend, text)


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    backend, pieces = sentencepiece()
    return backend, write_sentencepiece(tmp_path_factory.mktemp("spm") / "m.gguf", pieces)


def test_a_sentencepiece_vocabulary_begins_with_bos_unless_the_file_says_otherwise(spm):
    _, found = spm
    assert found.begun(found.encode("the"))[0] == 1
    assert replace(found, config={"add_bos_token": False}).begun(found.encode("the"))[0] != 1


def test_a_special_token_that_would_be_cut_is_refused(tmp_path):
    backend = train_backend()
    backend.add_special_tokens(
        ["<｜wide｜>"]
    )  # which transformers takes for a token that llama.cpp has mislabeled
    file = write_gguf(tmp_path / "m.gguf", new_model(vocab_size=backend.get_vocab_size()), backend)
    with pytest.raises(ModelError, match="the special token '<｜wide｜>'"):
        read_gguf_tokenizer(file, read_header(file))
