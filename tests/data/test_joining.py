"""A prompt's tokens and a response's are, one after the other, those of transformers for the whole conversation."""

from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from longrm.data.joining import encode, encode_texts
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError

SPECIAL = [
    *("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>", "<turn>"),
    *("<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>", "[INST]", "[/INST]"),
    *("<|User|>", "<|Assistant|>"),
    "[/INST]>",  # which a response may make of what ends the prompt
    "x<|eot|>y",
]
TEXT = [
    "The access code of Marlow is copper.\n\n\nWhat is it?\n\n",
    "user\n\n assistant\n\n\nsystem\n\tUSER: ASSISTANT: Überprüfe das: naïve café, 价格是多少? 🙂👍",
    "- one\n- two\n\n\n\n    indented = {'a': 1}\n\n",
]


def byte_level() -> tokenizers.Tokenizer:
    """Merges line breaks with their neighbors, as GPT-2, Llama 3 and Qwen do."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        backend,
        trainers.BpeTrainer(
            vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )


def metaspace(scheme: str) -> tokenizers.Tokenizer:
    """Puts a space before what comes first, or before whatever follows a special token, as SentencePiece does."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _trained(
        backend,
        trainers.UnigramTrainer(
            vocab_size=160, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
        ),
    )


def prepended() -> tokenizers.Tokenizer:
    """As older files of Llama 2: the space is put there by the normalizer, and nothing is split before merging."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _trained(
        backend, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    )


def word_pieces() -> tokenizers.Tokenizer:
    """Lower case, accents off, punctuation apart, as BERT."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(
        backend,
        trainers.WordPieceTrainer(vocab_size=180, special_tokens=["<unk>", *SPECIAL], show_progress=False),
    )


def stripping() -> tokenizers.Tokenizer:
    """Special tokens that swallow the white space behind them, as those of Phi-3."""
    backend = byte_level()
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(name, rstrip=True, special=True)
            for name in ("<|assistant|>", "<|user|>", "<|end|>")
        ]
    )
    return backend


def _trained(backend: tokenizers.Tokenizer, trainer: Any) -> tokenizers.Tokenizer:
    backend.train_from_iterator(TEXT * 4, trainer)
    return backend


BACKENDS = {
    "byte-level": byte_level(),
    "metaspace-always": metaspace("always"),
    "metaspace-first": metaspace("first"),
    "prepended": prepended(),
    "word-pieces": word_pieces(),
    "stripping": stripping(),
}
LOOP = "{{% for message in messages %}}{}{{% endfor %}}{{% if add_generation_prompt %}}{}{{% endif %}}"
TEMPLATES = {
    "chatml": LOOP.format(
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}",
        "{{ '<|im_start|>assistant\n' }}",
    ),
    "llama-3": "{{ bos_token }}"
    + LOOP.format(
        "{{ '<|head|>' + message.role + '<|/head|>\n\n' + message.content | trim + '<|eot|>' }}",
        "{{ '<|head|>assistant<|/head|>\n\n' }}",
    ),
    "mistral": "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% else %}{{ ' ' + message.content + eos_token }}{% endif %}"
    "{% endfor %}",
    "mistral-tight": "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '[INST]' + message.content + '[/INST]' }}{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}"
    + LOOP.format(
        "{{ '<turn>' + (message.role if message.role == 'user' else 'model') + '\n' + message.content | trim "
        "+ '<end_of_turn>\n' }}",
        "{{ '<turn>model\n' }}",
    ),
    "phi": LOOP.format(
        "{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}", "{{ '<|assistant|>\n' }}"
    ),
    "deepseek": "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|User|>' + message.content }}{% else %}{{ '<|Assistant|>' + message.content.split('</think>')[-1] "
    "+ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
    "zephyr": LOOP.format(
        "{{ '<~' + message.role + '~>\n' + message.content + eos_token + '\n' }}", "<~assistant~>\n"
    ),
    "vicuna": "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ 'USER: ' + message.content + ' ' }}{% else %}{{ 'ASSISTANT: ' + message.content + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "plain": "{% for message in messages %}{{ message.content }}{% endfor %}",
}
PROMPT = "The access code of Marlow is copper.\n\nWhat is it? 价格\n"
HOSTILE = [
    "It is copper.",
    "\n\nIt is copper.",
    "\n",
    "  two spaces",
    "\t\n tab",
    " ",
    "\u0301combining",  # an accent that joins the character before it
    "👍🏽 and \u200djoined",
    "<|im_end|>\n<|im_start|>user\nmore",
    ">more",  # makes a longer special token of one that ends the prompt
    "</s>",
    "<pad>",
    "\r\n\r\n",
    "s",  # a letter that continues a word
    "\ufeffmark",
    "</think>\n\nAnswer",
]


def twins(backend: str, template: str | None) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=BACKENDS[backend], chat_template=template, **names
    )
    ours = Tokenizer.from_backend(
        BACKENDS[backend], chat_template=template, bos="<s>", eos="</s>", pad="<pad>"
    )
    return ours, theirs


def say(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def check(
    ours: Tokenizer, theirs: transformers.PreTrainedTokenizerFast, prompt: str, responses: Sequence[str]
) -> None:
    encoded = encode(ours, [say("user", prompt)], [[say("assistant", text)] for text in responses])
    assert encoded.prompt
    for text, ids, own in zip(responses, encoded.responses, encoded.completion_tokens, strict=True):
        messages = [say("user", prompt), say("assistant", text)]
        assert [*encoded.prompt, *ids] == theirs.apply_chat_template(messages)["input_ids"], text
        assert 0 < len(own) <= len(ids)
        assert own[-1] == -1


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ids_are_those_of_the_whole_conversation(backend: str, template: str):
    ours, theirs = twins(backend, TEMPLATES[template])
    check(ours, theirs, PROMPT, HOSTILE)
    for text in HOSTILE:  # each response alone may share more
        check(ours, theirs, PROMPT, [text])
    # The last special token of a plain prompt is a piece of another one.
    check(ours, theirs, "Say <|eot|>", HOSTILE)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(BACKENDS)),
    st.sampled_from(sorted(TEMPLATES)),
    st.text("ae \n\t.<|>/s[]éü价🙂\u0301\u200d▁", min_size=1, max_size=12),
    st.lists(st.text("ae \n\t.<|>/s[]éü价🙂\u0301\u200d▁", max_size=8), min_size=1, max_size=3),
)
def test_ids_of_drawn_texts_are_those_of_the_whole(
    backend: str, template: str, prompt: str, responses: list[str]
):
    # A word before it: with a prompt of one word that a response continues, no token would be shared.
    check(*twins(backend, TEMPLATES[template]), "x, " + prompt, ["y", *(text + "z" for text in responses)])


def test_what_one_response_changes_of_the_prompt_is_shared_by_none_and_written_by_none():
    ours, _ = twins("byte-level", TEMPLATES["chatml"])
    prompt, ask = ours.prompt_ids([say("user", PROMPT)]), [say("user", PROMPT)]
    plain = encode(ours, ask, [[say("assistant", "It")]])
    assert plain.prompt == prompt
    assert plain.completion_tokens == [range(-len(plain.responses[0]), 0)]
    both = encode(ours, ask, [[say("assistant", "It")], [say("assistant", "\n\nIt")]])
    assert both.prompt == prompt[:-1]
    assert both.responses[0] == [prompt[-1], *plain.responses[0]]
    assert [*map(len, both.completion_tokens)] == [len(plain.responses[0]), len(both.responses[1])]
    assert ours.backend.id_to_token(both.responses[1][0]) == "ĊĊ", "one token over the seam"
    assert both.only([1]).completion_tokens == both.completion_tokens[1:]
    # What was computed before: the prompt's line break and the response's own, as two tokens.
    assert [*prompt, *ours.encode("\n\nIt<|im_end|>\n")] != [*both.prompt, *both.responses[1]]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_judge_reads_is_what_transformers_makes_of_its_messages(backend: str, template: str):
    ours, theirs = twins(backend, TEMPLATES[template])
    for text in (PROMPT, " \n" + PROMPT, "<|im_end|>"):
        ids = theirs.apply_chat_template([say("user", text)], add_generation_prompt=True)["input_ids"]
        assert ours.generation_ids([say("user", text)]) == ids


def test_a_long_prompt_is_tokenized_once_whatever_the_number_of_responses():
    ours, _ = twins("byte-level", TEMPLATES["chatml"])
    read = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(ours.backend, name)

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            read.extend(map(len, texts))
            return ours.backend.encode_batch_fast(texts, **options)

    counting = Tokenizer(Counting(), ours.chat_template, ours.special_tokens)  # type: ignore[arg-type]
    encode(counting, [say("user", PROMPT * 200)], [[say("assistant", text)] for text in HOSTILE])
    assert sum(size > len(PROMPT) * 200 for size in read) == 1


@pytest.mark.parametrize("added", ["\n\n", "aa", "<a><a>"])
def test_a_token_that_may_overlap_itself_is_no_place_to_begin_from(added: str):
    letters = pre_tokenizers.ByteLevel.alphabet()
    backend = tokenizers.Tokenizer(models.BPE({letter: at for at, letter in enumerate(sorted(letters))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens([tokenizers.AddedToken(added, normalized=False)])
    tokenizer = Tokenizer.from_backend(backend)
    opening = f"It is {added}{added[len(added) // 2 :]}"  # the last one written begins within the first
    encoded = encode_texts(tokenizer, opening, ["z"])
    assert [*encoded.prompt, *encoded.responses[0]] == tokenizer.encode(opening + "z")


def test_a_prompt_that_shares_no_token_is_refused():
    ours, _ = twins("byte-level", TEMPLATES["plain"])
    with pytest.raises(DataError):
        encode(ours, [say("user", "\n")], [[say("assistant", "\n\nIt")]])
