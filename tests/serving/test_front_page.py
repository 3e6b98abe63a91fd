"""The page at `/`: it loads nothing from elsewhere, and a click through it in Chromium scores."""

import base64
import hashlib
import re
import shutil
import time

import pytest

from longrm.serving.app import front_page

from ..report.test_browser import Page
from .processes import serving


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
