"""What a server without a key answers: requests to its own addresses, and none that a foreign web page sent."""

import base64
import hashlib
import re
import shutil
import time

import pytest

from longrm.serving.app import front_page

from ..report.test_browser import Page
from .processes import serving

KEY = "a-key-of-length"
ONE = {"prompt": "w1?", "responses": ["w2", "w3 w4"]}
FORMS = [
    "text/plain",
    "TEXT/PLAIN; charset=utf-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
]


def status(client, host="127.0.0.1:8000", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()} | {"Host": host}
    return client.post("/v1/scores", json=ONE, headers=headers).status_code


@pytest.fixture(scope="module")
def local(start):
    return start("baseline", allowed_hosts=["scores.example"])


@pytest.fixture(scope="module")
def everywhere(start):
    return start("baseline", host="0.0.0.0", without_key=True)


@pytest.mark.parametrize(
    ("host", "at_loopback", "at_all"),
    [
        ("127.0.0.1:8000", 200, 200),
        ("LOCALHOST", 200, 200),
        ("[::1]:8000", 200, 200),
        ("scores.example:8000", 200, 403),
        ("rebound.example", 403, 403),
        ("127.0.0.1.rebound.example", 403, 403),
        ("192.168.0.7:8000", 403, 200),
        ("[2001:db8::1]:8000", 403, 200),
        ("[::1", 403, 403),
    ],
)
def test_hosts(local, everywhere, host, at_loopback, at_all):
    assert (status(local, host), status(everywhere, host)) == (at_loopback, at_all)
    assert local.get("/info", headers={"Host": host}).status_code == at_loopback


def test_the_host_of_the_server_is_accepted(start):
    named = start("baseline", host="192.168.0.7", without_key=True)
    assert [status(named, host) for host in ("192.168.0.7:1", "192.168.0.8:1")] == [200, 403]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8000", 200),
        ("http://pages.example", 200),
        ("http://127.0.0.1:9", 403),
        ("http://localhost:8000", 403),
        ("https://foreign.example", 403),
        ("null", 403),
    ],
)
def test_origins(start, origin, expected):
    client = start("baseline", allow_origins=["http://pages.example"])
    assert status(client, Origin=origin) == expected


def test_a_star_allows_any_origin(start):
    assert status(start("baseline", allow_origins=["*"]), Origin="https://foreign.example") == 200


def test_browsers_may_ask_first_without_a_key(start):
    client = start("baseline", allow_origins=["http://127.0.0.1:9"], api_key=KEY)
    asking = {
        "Origin": "http://127.0.0.1:9",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    assert client.options("/v1/scores", headers=asking).status_code == 200
    assert status(client, Origin="http://127.0.0.1:9") == 401
    other = client.get("/health", headers={"Origin": "http://elsewhere"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("kind", FORMS)
def test_forms_are_refused(local, kind):
    refused = local.post("/v1/scores", content="{}", headers={"Content-Type": kind})
    assert refused.status_code == 415
    assert "application/json" in refused.json()["error"]["message"]


def test_with_a_key_only_the_key_counts(start):
    client = start("baseline", api_key=KEY)
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Origin": "https://foreign.example",
        "Content_Type": FORMS[0],
    }
    assert status(client, "any.example", **headers) == 200
    assert status(client, "any.example") == 401


# --- The page at `/`: it loads nothing from elsewhere, and a click through it in Chromium scores ---


def test_the_page_loads_nothing_and_allows_its_own_script_alone(client):
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:,)""", response.text)
    assert "@import" not in response.text
    assert "innerHTML" not in response.text, "what comes back is text"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_names_the_model_as_text(client):
    name = client.get("/info").json()["model"]
    page = client.get("/").text
    assert f"<h1>{name}</h1>" in page
    assert "MODEL" not in page
    assert b"<h1>&lt;b&gt;&amp;</h1>" in front_page("<b>&").body


@pytest.fixture(scope="module")
def addresses(names):
    with (
        serving(model=names["scalar"]) as (_, address),
        serving("--set", f'allow_origins=["{address}"]') as (_, second),
    ):
        yield address, second


def until(page, expression):
    deadline = time.monotonic() + 30
    while not page.value(expression):
        assert time.monotonic() < deadline, expression


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_click_through_scores_with_two_models(addresses, tmp_path, width, dark):
    address, second = addresses
    with Page() as page:
        page.open(f"{address}/", width=width, dark=dark)
        page.value("at('demo').value = '20'; at('demo').dispatchEvent(new Event('change'))")
        assert page.value("document.querySelectorAll('.response').length") == 2
        page.value("at('more').click()")
        assert page.value("document.activeElement.getAttribute('aria-label')") == "Response 3"
        page.value("document.activeElement.value = '<b>none</b>'")
        page.value(f"at('other').value = '{second}'")
        page.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", modifiers=2)
        until(page, "at('state').textContent === 'Scored.'")
        assert page.value("document.querySelectorAll('#results article').length") == 2
        assert page.value("document.querySelectorAll('#results li').length") == 6
        assert page.value("document.querySelectorAll('#results b').length") == 0, "a response is text"
        scores = page.value(
            "[...document.querySelectorAll('#results article:first-child .score')].map((s) => +s.textContent)"
        )
        assert scores == sorted(scores, reverse=True)
        assert "tokens of prompt" in page.value("document.querySelector('#results article').textContent")
        assert page.value("document.documentElement.scrollWidth <= window.innerWidth"), (
            "no sideways scrolling"
        )
        assert not page.problems
        assert {request.split("/v1")[0].rstrip("/") for request in page.requests} <= {
            address,
            second,
            "data:,",
        }
        picture = page.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        (tmp_path / f"page-{width}.png").write_bytes(base64.b64decode(picture))
