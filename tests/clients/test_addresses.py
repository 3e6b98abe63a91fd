import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrm.cli.main import main
from longrm.clients.addresses import endpoint, split_address
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.config import Config
from longrm.errors import ConfigError
from longrm.evaluation.evaluation_run import Evaluation
from longrm.scoring.scored_file import ScoreSettings
from longrm.synthesis.models import AskedModel

URL = r"https?://[a-z\[\]:.@%]{0,9}(:[0-9]{0,6})?(/[a-z%.]{0,4})*(\?[a-z=&%]{0,9})?"


class Judged(Config):
    judge: AskedModel


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("https://h/v1/", "https://h/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1?api-version=1", "https://h/v1/chat/completions?api-version=1"),
    ],
)
def test_endpoint(url, expected):
    assert endpoint(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:port",
        "",
        "http://h:80:80",
        "http://[::1",
        "http://a..b/v1",
        "http://.",
        f"http://{'a' * 70}/v1",
        f"http://{'a' * 70_000}/v1",
        "http://xn--/v1",
        "http://h\n/v1",
        "http://h/\x1b[2J",
        "http://\udcff/v1",
        "http://h/\udcff",
        "\0",
    ],
)
def test_endpoint_refuses_what_is_no_server(url):
    with pytest.raises(ConfigError, match="is not the URL of a server") as caught:
        endpoint(url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("port", [0, -1, 65536, 99999, 10**30])
def test_a_port_that_is_none_is_said(port):
    with pytest.raises(
        ConfigError, match=rf"names port {port}; ports are 1 to 65535|is not the URL of a server"
    ):
        endpoint(f"http://127.0.0.1:{port}/v1")


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text(max_size=20).map("http://{}".format), st.from_regex(URL, fullmatch=True)))
def test_whatever_is_given_is_where_a_connection_can_be_tried_or_one_line(url):
    try:
        found = httpx.URL(endpoint(url))
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017  # most are refused, some are not
        return
    assert found.port is None or 0 < found.port < 65536
    assert found.raw_host.decode().encode("idna")


SECRET = "hunter2-of-all"
HOLDING = [
    f"http://user:{SECRET}@h:8000/v1",
    f"http://{SECRET}@h:8000/v1",
    f"ttp://user:{SECRET}@h:8000/v1",
    f"http://user:{SECRET}@h:port/v1",
    f"http://user:{SECRET}@h:99999/v1",
    f"http://user:{SECRET}/more@h:port/v1",
    f"user:{SECRET}@h",
    f"https://h/v1?key={SECRET}",
    f"https://h/v1?api-version=1&api_key={SECRET}",
    f"https://h/v1?subscription-key={SECRET}",
    f"https://h/v1?access_token={SECRET}",
    f"ftp://h/v1?sig={SECRET}",
]


@pytest.mark.parametrize("url", HOLDING)
def test_a_password_in_the_url_is_refused_unseen(url):
    with pytest.raises(ConfigError) as caught:
        endpoint(url)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        split_address(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", HOLDING)
@pytest.mark.parametrize("prefix", ["openai:", "compress:openai:"])
def test_it_is_refused_before_a_run_folder_could_keep_it(tmp_path, url, prefix):
    for cls, tree in [
        (Evaluation, {"bench": "probe", "model": f"{prefix}{url}#m"}),
        (ScoreSettings, {"data": "d", "model": f"{prefix}{url}#m"}),
        (Judged, {"judge": {"model": f"{prefix}{url}#m"}}),
        (Judged, {"judge": {"model": "openai:http://h#m", "replica_urls": [url]}}),
    ]:
        with pytest.raises(
            ConfigError, match=r"wrong value for '(judge\.)?(model|replica_urls\.0)'"
        ) as caught:
            cls.resolve(None, tree)
        assert SECRET not in str(caught.value)


def test_a_port_that_is_none_ends_a_command_before_it_begins(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    model = "openai:http://127.0.0.1:99999/v1#m"
    monkeypatch.setattr(
        "sys.argv", ["longrm", "evaluate", "--model", model, "--bench", "probe", "--out", str(out)]
    )
    with pytest.raises(SystemExit, match="1"):
        main()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "names port 99999; ports are 1 to 65535" in told
    assert not out.exists()


def test_the_key_of_the_environment_in_the_url_is_refused_unseen(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk/very-secret")
    for form in ("sk/very-secret", "sk%2Fvery-secret"):
        with pytest.raises(ConfigError, match="the URL holds the key of OPENAI_API_KEY") as caught:
            OpenAIClient(f"http://h/{form}/v1", "m", Remote())
        assert form not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "v1")
    OpenAIClient("http://h/v1", "m", Remote())


def test_an_address_is_a_url_and_a_name():
    assert split_address("http://h:8000/v1#owner/name") == ("http://h:8000/v1", "owner/name")
    for wrong in ("http://h:8000/v1", "http://h:8000/v1#", "#name"):
        with pytest.raises(ConfigError, match="is not URL#NAME"):
            split_address(wrong)
