import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from longrm.clients.remote_settings import Remote
from longrm.data.tokenizing import Tokenizer
from longrm.reward_models import JudgeSettings, load
from longrm.types import Outcome, Query, Span

from ..clients import conftest as peer

server = peer.server

CHATML = (
    "{% for message in messages %}{{ '<turn> ' + message.content + ' </turn> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    backend = tokenizers.Tokenizer(
        models.WordLevel({"<unk>": 0, "<turn>": 1, "</turn>": 2}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.from_backend(backend, chat_template=CHATML).save(path)
    return str(path)


def load_remote(address, judge, remote, **model_args):
    return load(f"openai:{address}", judge=judge, remote=remote, model_args=model_args)


def query(words):
    context = " ".join(f"word{index}" for index in range(words))
    prompt = ({"role": "user", "content": f"{context}\n\nWhich?"},)
    responses = tuple(({"role": "assistant", "content": text},) for text in ("first", "second"))
    return Query(f"q{words}", prompt, responses, (Span(0, 0, len(context)),))


def test_a_server_judges_and_what_does_not_fit_is_cut_for_it(server, folder):
    server.script = lambda seen, number: peer.said("It is the second.\n[[B]]", usage=None)
    model = load_remote(
        f"{server.url}#tiny",
        JudgeSettings(max_tokens=50),
        Remote(tokenizer=folder, concurrency=1),
        max_length=800,
        cut="middle",
    )
    assert model.name == f"openai:{server.url}#tiny"
    short, long = model.judge([query(20), query(2000)])
    assert [judgment.scores for judgment in (short, long)] == [(0.0, 1.0)] * 2
    assert (short.cut, long.cut.policy) == (None, "middle")
    words = [len(seen.text.split()) for seen in server.seen]
    assert [short.prompt_tokens, long.prompt_tokens] == [
        count + 3 for count in words
    ]  # <turn> </turn> <turn>
    assert 740 < long.prompt_tokens <= 750


def test_without_a_tokenizer_the_server_says_what_is_too_long(server):
    def script(seen, number):
        if len(seen.text) > 5000:
            return peer.Reply(
                {"error": {"message": "This model's maximum context length is 800 tokens."}}, 400
            )
        return peer.said("[[A]]", usage=(77, 3))

    server.script = script
    short, long = load_remote(f"{server.url}/v1#tiny", JudgeSettings(), Remote()).judge(
        [query(20), query(2000)]
    )
    assert (short.outcome, short.prompt_tokens) == (Outcome.ANSWERED, 77)
    assert (long.outcome, long.scores) == (Outcome.TOO_LONG, ())
    assert "maximum context length" in long.detail
