import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import transformers
from jinja2.exceptions import SecurityError

from longrm.data.joining import encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError, ModelError

NAMES = ["chatml", "llama3", "qwen3", "mistral", "reasoner"]
SYSTEM = {"role": "system", "content": "You are a helpful judge."}
ASK = {"role": "user", "content": " The access code of Marlow is copper.\n\nWhat is it? 价格 <&> "}
ANSWER = {"role": "assistant", "content": "The access code is copper."}
THOUGHT = {"role": "assistant", "content": "<think>\nIt was agreed.\n</think>\n\nIt is copper."}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Überprüfe <b>", "parameters": {}}}]


def ours(backend: tokenizers.Tokenizer, template: str | None) -> Tokenizer:
    return Tokenizer.from_backend(backend, chat_template=template, bos="<s>", eos="</s>", pad="<pad>")


def split(tokenizer: Tokenizer, prompt: list[dict], response: list[dict]) -> tuple[list[int], list[int]]:
    encoded = encode(tokenizer, prompt, [response])
    return list(encoded.prompt), list(encoded.responses[0])


def theirs(backend: tokenizers.Tokenizer, template: str | None) -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=template
    )


def conversations(name: str) -> list[list[dict[str, object]]]:
    found: list[list[dict[str, object]]] = [
        [ASK],
        [ASK, ANSWER],
        [ASK, THOUGHT],
        [ASK, THOUGHT, ASK],
        [ASK, THOUGHT, ASK, {**ANSWER, "reasoning": "Ledger.", "tool_calls": None}],
    ]
    if name != "reasoner":
        found.append([SYSTEM, ASK, ANSWER, ASK])
    if name == "llama3":
        call = {"function": {"name": "look", "arguments": {"at": "é & <x>"}}}
        found.append([ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, ASK])
    return found


@pytest.mark.parametrize("generation", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_templates_render_as_transformers_renders_them(name, generation, byte_level, templates):
    mine, peer = ours(byte_level, templates[name]), theirs(byte_level, templates[name])
    for messages in conversations(name):
        for tools in [None, TOOLS] if name == "llama3" else [None]:
            expected = peer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation, tools=tools
            )
            rendered = mine.render(messages, add_generation_prompt=generation, tools=tools or ())
            assert rendered == expected
            assert mine.encode(rendered) == peer(expected, add_special_tokens=False)["input_ids"]


def test_the_equality_would_show_another_environment(byte_level, templates):
    import jinja2

    peer = theirs(byte_level, templates["llama3"])
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    plain.globals["strftime_now"] = lambda pattern: "2001"
    naive = plain.from_string(templates["llama3"]).render(messages=[ASK], bos_token="<s>", tools=TOOLS)
    assert naive != peer.apply_chat_template([ASK], tokenize=False, tools=TOOLS)


@pytest.mark.parametrize("family", ["byte_level", "spaced"])
@pytest.mark.parametrize("response", [ANSWER, THOUGHT], ids=["answer", "thought"])
@pytest.mark.parametrize("name", NAMES)
def test_prompt_and_response_decode_to_the_whole_rendering(name, response, family, templates, request):
    backend = request.getfixturevalue(family)
    mine, peer = ours(backend, templates[name]), theirs(backend, templates[name])
    prompt = [ASK, THOUGHT, {**ASK, "content": "And now?"}]
    whole = peer.apply_chat_template([*prompt, response], tokenize=False)
    first, rest = split(mine, prompt, [response])
    assert mine.decode(first + rest) == peer.decode(peer(whole, add_special_tokens=False)["input_ids"])
    assert rest
    assert first == mine.prompt_ids(prompt)
    assert first.count(mine.bos_id) == ("<s>" in whole)
    if family == "byte_level":  # whose decoding is lossless
        assert mine.decode(first + rest) == whole


def test_a_generation_prompt_that_opens_a_thought_is_left_to_the_response(byte_level, templates):
    mine = ours(byte_level, templates["reasoner"])
    prompt, response = split(mine, [ASK], [ANSWER])
    assert not mine.decode(prompt).endswith("<think>\n")
    assert mine.decode(response) == "[/INST]The access code is copper.</s>"


def test_a_thought_is_opened_for_generation_only(byte_level, templates):
    mine = ours(byte_level, templates["reasoner"])
    assert mine.decode(mine.generation_ids([ASK])).endswith("[/INST]<think>\n")
    assert mine.generation_ids([ASK]) != mine.prompt_ids([ASK])


def test_without_a_template_generation_continues_the_plain_text(byte_level, spaced):
    for backend, begins in [(byte_level, True), (spaced, False)]:
        mine = ours(backend, None)
        ids = mine.generation_ids([SYSTEM, ASK])
        assert ids == mine.prompt_ids([SYSTEM, ASK])
        assert ids == backend.encode(f"{SYSTEM['content']}\n\n{ASK['content']}").ids
        assert (ids[0] == mine.bos_id) == begins
    with pytest.raises(DataError):
        ours(spaced, None).generation_ids([{"role": "user", "content": ""}])


def test_special_tokens_are_left_out_of_a_text_on_request(byte_level):
    mine = ours(byte_level, None)
    ids = mine.encode("<s>copper</s>")
    assert (mine.decode(ids), mine.decode(ids, special=False)) == ("<s>copper</s>", "copper")


@pytest.mark.parametrize("family", ["byte_level", "spaced"])
def test_without_a_template_texts_are_joined_plainly(family, request):
    mine = ours(request.getfixturevalue(family), None)
    prompt, response = split(
        mine,
        [{"role": "user", "content": "The access code is"}],
        [{"role": "assistant", "content": " copper."}],
    )
    ids = [*prompt, *response]
    expected = ["<s>"] * (family == "byte_level") + ["The access code is copper.", "</s>"]
    assert mine.decode(ids).replace(" ", "") == "".join(expected).replace(" ", "")
    assert "code is copper" in mine.decode(ids)


def test_bos_is_added_once_even_if_the_text_has_it(byte_level):
    mine = ours(byte_level, None)
    once = mine.prompt_ids([{"role": "user", "content": "copper"}])
    assert mine.prompt_ids([{"role": "user", "content": "<s>copper"}]) == once
    assert once == byte_level.encode("copper").ids


def test_a_prompt_that_changes_with_its_response_is_refused(byte_level):
    template = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(DataError, match="character 0"):
        split(ours(byte_level, template), [ASK], [ANSWER])


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        ([ANSWER], "user and assistant take turns"),
        ([{"role": "user"}], "undefined|attribute|concatenate"),
    ],
)
def test_an_error_of_a_template_is_one_line(messages, line, byte_level, templates):
    with pytest.raises(DataError, match=line) as caught:
        ours(byte_level, templates["mistral"]).render(messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
    ],
)
def test_templates_are_confined(attack, byte_level):
    with pytest.raises(DataError) as caught:
        ours(byte_level, attack).render([ASK])
    assert isinstance(caught.value.__cause__, SecurityError)


def test_lists_of_texts_are_joined(byte_level, templates):
    given = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("An", "n")]}]
    mine = ours(byte_level, templates["chatml"])
    assert mine.render(given) == mine.render([{"role": "user", "content": "Ann"}])
    assert isinstance(given[0]["content"], list), "the messages that were passed stay as they are"


def test_a_template_that_is_not_jinja_is_an_error_of_the_model(byte_level):
    with pytest.raises(ModelError, match="line 2"):
        ours(byte_level, "fine\n{% nonsense %}").render([ASK])


def test_empty_response_without_eos_is_refused(byte_level):
    with pytest.raises(DataError):
        split(Tokenizer.from_backend(byte_level), [ASK], [{"role": "assistant", "content": ""}])


def test_saved_folder_loads_in_transformers_and_here(byte_level, templates, tmp_path):
    mine = ours(byte_level, templates["qwen3"])
    mine.save(tmp_path / "model")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    again = Tokenizer.load(tmp_path / "model")
    text = mine.render([ASK, THOUGHT])
    assert mine.encode(text) == again.encode(text) == peer(text, add_special_tokens=False)["input_ids"]
    assert again.chat_template == peer.chat_template == templates["qwen3"]
    assert dict(again.special_tokens) == peer.special_tokens_map == dict(mine.special_tokens)
    assert (again.bos_id, again.eos_id, again.pad_id) == (
        peer.bos_token_id,
        peer.eos_token_id,
        peer.pad_token_id,
    )
    assert again.vocab_size == mine.vocab_size == len(peer)


def test_local_paths_of_older_folders_are_not_saved(byte_level, tmp_path):
    theirs(byte_level, None).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    paths = dict.fromkeys(("name_or_path", "special_tokens_map_file", "tokenizer_file"), "/home/me/base")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | paths))
    Tokenizer.load(tmp_path).save(tmp_path / "model")
    assert "/home/me" not in (tmp_path / "model/tokenizer_config.json").read_text()


@pytest.mark.parametrize("listed", [False, True])
def test_folders_that_transformers_saved(listed, byte_level, templates, tmp_path):
    template = templates["mistral"]
    peer = theirs(byte_level, template)
    peer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    peer.save_pretrained(tmp_path)
    if listed:  # older folders keep named templates in the configuration
        (tmp_path / "chat_template.jinja").unlink()
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": "default", "template": template}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    mine = Tokenizer.load(tmp_path / "tokenizer.json")
    text = "<s>copper<extra></s><pad>"
    assert mine.chat_template == template
    assert mine.encode(text) == peer(text, add_special_tokens=False)["input_ids"]
    assert dict(mine.special_tokens) == peer.special_tokens_map


def test_tokens_that_only_the_configuration_knows(byte_level, tmp_path):
    byte_level.save(str(tmp_path / "tokenizer.json"))
    size = byte_level.get_vocab_size()
    added = {"content": "<late>", "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(size): added},
        "eos_token": {"content": "<late>", "__type": "AddedToken"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    mine = Tokenizer.load(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert mine.eos_id == peer.eos_token_id == size
    assert mine.encode("a<late>") == peer("a<late>", add_special_tokens=False)["input_ids"]


def test_nothing_is_cut_or_padded(byte_level, tmp_path):
    limited = tokenizers.Tokenizer.from_str(byte_level.to_str())
    limited.enable_truncation(4)
    limited.enable_padding(length=8, pad_id=2, pad_token="<pad>")
    limited.save(str(tmp_path / "tokenizer.json"))
    text = "The access code of Marlow is copper."
    expected = byte_level.encode(text, add_special_tokens=False).ids
    assert len(expected) > 4 != len(limited.encode(text))
    assert Tokenizer.load(tmp_path).encode(text) == expected
    assert Tokenizer.from_backend(limited).encode(text) == expected
    assert limited.truncation is not None  # the caller's own stays as it was


def test_a_source_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    for name in ("empty", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken/tokenizer.json").write_text("{")
    for source in ("empty", "broken", "absent/x.json", "absent"):
        with pytest.raises(ModelError, match=str(tmp_path / source)):
            Tokenizer.load(tmp_path / source)


def test_hub_ids(byte_level, templates, tmp_path, monkeypatch):
    import huggingface_hub

    ours(byte_level, templates["chatml"]).save(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda identity, **options: str(tmp_path))
    assert Tokenizer.load("acme/judge-8b").chat_template == templates["chatml"]

    def absent(identity: str, **options: object) -> str:
        raise OSError("not found\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    with pytest.raises(ModelError, match="acme/judge-8b.*HF_ENDPOINT"):
        Tokenizer.load("acme/judge-8b")


PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PanicException("index out of bounds"), DataError),
        (Exception("no unk token"), DataError),
        (KeyboardInterrupt("stop"), KeyboardInterrupt),
    ],
)
def test_a_failure_of_the_library_is_an_error_of_the_text(error, expected, byte_level):
    class Failing:
        def encode_batch_fast(self, texts, **options):
            raise error

    with pytest.raises(expected, match=str(error)):
        Tokenizer(Failing(), None, {}).encode("x")


def test_importing_data_leaves_torch_and_transformers_out():
    modules = sorted((Path(__file__).parents[2] / "src/longrm/data").glob("*.py"))
    imports = ", ".join(f"longrm.data.{file.stem}" for file in modules if file.stem != "__init__")
    code = (
        f"import sys, {imports}; print(*[name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    path = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert done.stdout.strip() == ""
