import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote, endpoint_url, split_address
from longrm.config import Config
from longrm.errors import ConfigError
from longrm.evaluation.evaluate import Evaluation
from longrm.scoring.scored_file import ScoreSettings
from longrm.synthesis.models import ModelSettings

URL = r"https?://[a-z\[\]:.@%]{0,9}(:[0-9]{0,6})?(/[a-z%.]{0,4})*(\?[a-z=&%]{0,9})?"


class Judged(Config):
    judge: ModelSettings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1?api-version=1", "https://h/v1/chat/completions?api-version=1"),
    ],
)
def test_endpoint_url(url, expected):
    assert endpoint_url(url) == expected


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h", "http://", "http://h:0", "http://a..b/v1", "http://h\n/"]
)
def test_a_url_that_is_not_a_server_s_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        endpoint_url(url)
    assert str(caught.value).isprintable()


@settings(max_examples=100)
@given(st.one_of(st.text(), st.text(max_size=20).map("http://{}".format), st.from_regex(URL, fullmatch=True)))
def test_any_text_is_a_usable_url_or_an_error(url):
    try:
        found = httpx2.URL(endpoint_url(url))
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017  # most are refused, some are not
        return
    assert found.port is None or 0 < found.port < 65536


SECRET = "hunter2-of-all"
HOLDING = [
    f"http://user:{SECRET}@h:8000/v1",
    f"http://{SECRET}@h:8000/v1",
    f"ttp://user:{SECRET}@h:8000/v1",
    f"http://user:{SECRET}@h:port/v1",
    f"user:{SECRET}@h",
    f"https://h/v1?api-version=1&api_key={SECRET}",
    f"https://h/v1?subscription-key={SECRET}",
    f"ftp://h/v1?sig={SECRET}",
]


@pytest.mark.parametrize("url", HOLDING)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url):
    for call in (endpoint_url, split_address):
        with pytest.raises(ConfigError) as caught:
            call(url)
        assert SECRET not in str(caught.value)
    for cls, tree in [
        (Evaluation, {"bench": "probe", "model": f"openai:{url}#m"}),
        (ScoreSettings, {"data": "d", "model": f"compress:openai:{url}#m"}),
        (Judged, {"judge": {"model": f"openai:{url}#m"}}),
    ]:
        with pytest.raises(ConfigError, match=r"(judge\.)?model") as caught:
            cls.resolve(None, tree)
        assert SECRET not in str(caught.value)


def test_the_key_of_the_environment_in_the_url_is_refused(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk/very-secret")
    for form in ("sk/very-secret", "sk%2Fvery-secret"):
        with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
            OpenAIClient(f"http://h/{form}/v1", "m", Remote())
        assert form not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "v1")
    OpenAIClient("http://h/v1", "m", Remote())


def test_an_address_is_a_url_and_a_name():
    assert split_address("http://h:8000/v1#owner/name") == ("http://h:8000/v1", "owner/name")
    for wrong in ("http://h:8000/v1", "http://h:8000/v1#", "#name"):
        with pytest.raises(ConfigError):
            split_address(wrong)


@pytest.mark.parametrize("key", ["sk-ключ", "a\nb"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(monkeypatch, key):
    monkeypatch.setenv("OTHER_KEY", key)
    with pytest.raises(ConfigError, match="OTHER_KEY") as caught:
        OpenAIClient("http://h", "tiny", Remote(api_key_env="OTHER_KEY"))
    assert key not in str(caught.value)


@pytest.mark.parametrize("name", ["sk-very-secret", "a b", "1A"])
def test_a_key_in_place_of_its_variable_is_refused_and_not_repeated(name):
    with pytest.raises(ConfigError, match="api_key_env") as caught:
        Remote.resolve(None, {"api_key_env": name})
    assert name not in str(caught.value)
    assert Remote(api_key_env="").api_key_env == ""


def test_extra_cannot_replace_other_settings():
    with pytest.raises(ConfigError, match="n, temperature"):
        Remote.resolve(overrides={"extra": {"temperature": 1, "n": 4, "top_p": 1}})
