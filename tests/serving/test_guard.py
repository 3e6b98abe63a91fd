"""What a server without a key answers: requests to its own addresses, and none that a foreign web page sent."""

import pytest

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
