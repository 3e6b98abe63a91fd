"""Keys, limits and errors: what is refused, and that other requests are not affected."""

import codecs
import gzip
import json
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Route
from starlette.testclient import TestClient

import longrm
from longrm.errors import ConfigError
from longrm.reward_models.protocol import RewardModel
from longrm.serving.app import OPEN_PATHS, build_app
from longrm.serving.settings import ServerLimits, ServeSettings
from longrm.serving.wire_formats import WIRE_FORMATS
from longrm.types import Judgment, Outcome

from ..reward_models.tiny_models import make_scorer

ONE = {"prompt": "w1 secret-prompt?", "responses": ["w2", "w3 w4"]}
KEY = "a-key-of-length"
ROUTES = [route for routes in WIRE_FORMATS.values() for route in routes]


class Slow(RewardModel):
    """Judges when `may` is set."""

    name = "slow"

    def __init__(self):
        self.begun, self.may = threading.Event(), threading.Event()
        self.judged = []

    def judge(self, queries):
        self.begun.set()
        assert self.may.wait(30)
        self.judged += [query.prompt[0]["content"] for query in queries]
        return [
            Judgment(Outcome.ANSWERED, tuple(float(n) for n in range(len(query.responses))))
            for query in queries
        ]


class Panic(BaseException):
    """Like a panic of a program in Rust."""


class Broken(RewardModel):
    """Raises what the prompt names; the score of the response "nan" is not a number."""

    name = "broken"

    def judge(self, queries):
        for error in (RuntimeError, Panic):
            if any(error.__name__ in query.prompt[0]["content"] for query in queries):
                raise error("/a/path and a prompt")
        return [
            Judgment(
                Outcome.ANSWERED,
                tuple(math.nan if text[0]["content"] == "nan" else 0.5 for text in query.responses),
            )
            for query in queries
        ]


def serving(model, **limits):
    settings = ServeSettings(model="m", limits=ServerLimits(**limits))
    return TestClient(build_app(settings, lambda: model), "http://127.0.0.1", raise_server_exceptions=False)


def test_a_wrong_key_is_401_on_every_route(start):
    client = start(api_key=KEY)
    routes = [route for route in client.app.routes if isinstance(route, Route)]
    assert {"/v1/scores", "/classify", "/get_reward", "/metrics", "/info"} <= {route.path for route in routes}
    wrong = [
        "Bearer wrong",
        f"bearer {KEY}x",
        "Bearer",
        KEY,
        "Basic !",
        "Basic bm9uZTp3cm9uZw==",
        "Bearer \xe9",
    ]
    for route in routes:
        (method,) = set(route.methods) - {"HEAD"}
        for header in wrong:
            headers = {"Authorization": header.encode("latin-1")}
            response = client.request(method, route.path, headers=headers, json=ONE)
            assert response.status_code == 401, (route.path, header)
        nothing = client.request(method, route.path, json=ONE)
        assert (nothing.status_code == 401) == (route.path not in OPEN_PATHS), route.path
    assert client.post("/no-such-route", json=ONE).status_code == 401


@pytest.mark.parametrize("header", [{"auth": ("any", KEY)}, {"headers": {"Authorization": f"Bearer {KEY}"}}])
def test_the_key_is_accepted_as_a_token_or_in_the_address(start, header):
    client = start(api_key=f" {KEY}\n")
    assert client.post("/v1/scores", json=ONE, **header).status_code == 200
    assert client.get("/info", **header).json()["limits"]["waiting"] == 4096
    assert KEY not in client.get("/info", **header).text


def test_beyond_this_machine_a_key_is_required():
    for host in ("0.0.0.0", "::", "example.org", "192.168.0.7"):
        with pytest.raises(ConfigError, match="--without-key"):
            ServeSettings.resolve(None, {"model": "m", "host": host})
        assert ServeSettings(model="m", host=host, api_key=KEY).port == 8000
        assert ServeSettings(model="m", host=host, without_key=True).api_key is None
    for host in ("127.0.0.1", "localhost", "::1"):
        assert ServeSettings(model="m", host=host).host == host
    for key in ("short", "", " " * 8, "\n" * 9):
        with pytest.raises(ConfigError, match="api_key"):
            ServeSettings.resolve(None, {"model": "m", "api_key": key})
    assert KEY not in repr(ServeSettings(model="m", api_key=KEY))


BAD_BODIES = [
    b"", b"{", b"null", b"[]", b"3", b'"text"', b"\xff\xfe", b'{"prompt": "w1"}', b'{"prompt": 3, "responses": ["w2"]}',
    b'{"prompt": "w1", "responses": []}', b'{"prompt": "w1", "responses": "w2"}', b"[" * 100_000,
    b'{"prompt": "w1 secret-prompt", "responses": ["w2"], "other": 1}', b'{"input": {"a": 1}}',
    b'{"prompt": [], "responses": ["w2"]}', b'{"prompt": "w1", "responses": [[]]}', b'{"input": []}', b'{"text": [[]]}',
    b'{"prompt": [{"role": "no-such-role", "content": null}], "responses": ["w2"]}', b'{"input": [-1, -5, 3]}',
    b'{"prompt": "\\ud800", "responses": ["w2"]}', b'{"input": [99999999, 3]}', b'{"input": [1e400, 3]}',
    b'{"input": "\\ud800\\ud800"}', b'{"query": ["\\udfff"], "prompts": ["a"]}', b'{"messages": ["\\ud800 b"]}',
    b'{"input": [12345678901234567890123, 3]}', b'{"messages": []}', b'{"messages": [{"role": "user"}]}',
]  # fmt: skip


@pytest.mark.parametrize("path", [route.path for route in ROUTES])
def test_a_bad_body_gets_one_line_that_repeats_nothing(client, path):
    for content in BAD_BODIES:
        response = client.post(path, content=content)
        assert 400 <= response.status_code < 500, (content[:50], response.text)
        said = json.dumps(response.json())
        assert "secret-prompt" not in said
        assert "Traceback" not in said
        assert len(said) < 500
    assert client.post("/v1/scores", json=ONE).status_code == 200, "it goes on"


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        ({"prompt": [{"content": "secret"}], "responses": ["w2"]}, "prompt.0.role: "),
        ({"prompt": "w1", "responses": ["w2", [{"content": "secret"}]]}, "responses.1.0.role: "),
        ([{"prompt": "w1", "responses": [{"secret": 1}]}], "0.responses.0: "),
        ({"prompt": "w1", "responses": ["w2"], "normalize": "secret"}, "normalize: "),
        ({"prompt": "w1", "responses": ["w2"], "a\n\u202eb" * 20: 1}, f"{('a??b' * 20)[:40]}: "),
        ({"prompt": "w1", "responses": ["w2"], "explanations": "secret"}, "explanations: "),
    ],
)
def test_the_wrong_field_of_a_body_is_named(client, sent, place):
    response = client.post("/v1/scores", json=sent)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"invalid body: {place}")
    assert "secret" not in response.text


def test_a_byte_order_mark_is_skipped_and_compressed_bodies_are_refused(client):
    plain = json.dumps(ONE).encode()
    assert client.post("/v1/scores", content=codecs.BOM_UTF8 + plain).status_code == 200
    for encoding, status in (("identity", 200), ("gzip", 415), ("br", 415)):
        content = gzip.compress(plain) if encoding == "gzip" else plain
        response = client.post("/v1/scores", content=content, headers={"Content-Encoding": encoding})
        assert response.status_code == status


def test_the_reason_of_a_template_is_reported_only_in_its_own_words(tmp_path):
    with serving(longrm.load(str(make_scorer(tmp_path / "words")))) as client:
        for message, is_reported in [
            ({"role": "system", "content": "secret-prompt"}, True),
            ({"role": "user", "content": {"secret-prompt": 1}}, False),
            ({"role": "user", "content": None}, False),
        ]:
            response = client.post("/v1/scores", json={"prompt": [message], "responses": ["w2"]})
            assert response.status_code in (400, 422)
            assert ("knows the roles user and assistant only" in response.text) == is_reported
            assert "secret-prompt" not in response.text


class Short(Broken):
    """Reads few tokens."""

    limit = 512


def test_requests_above_the_limits_are_refused():
    most = 2**20  # bytes of a body: the least for any model
    with serving(Short()) as client:
        for content, status in [
            (ONE | {"responses": ["w" * most]}, 413),
            (ONE | {"responses": ["w1"] * 257}, 413),
            ([ONE] * 1025, 413),
            (ONE | {"responses": ["w1"] * 256}, 200),
        ]:
            assert client.post("/v1/scores", json=content).status_code == status
        parts = (b"x" * 100_000 for _ in range(100))
        assert client.post("/v1/scores", content=parts).status_code == 413, "also without Content-Length"
        for length, status in ((str(most + 1), 413), ("9" * 50, 413), (str(most), 200)):
            headers = {"Content-Length": length}
            assert client.post("/v1/scores", content=json.dumps(ONE), headers=headers).status_code == status
        assert client.app.state.service._bytes_in_work == 0


@pytest.mark.parametrize(
    ("context", "expected"), [(None, 2**25), (512, 2**20), (2**13, 2**23), (2**20, 2**25)]
)
def test_the_limit_of_a_body_follows_the_context_of_the_model(context, expected):
    model = Broken()
    model.limit = context
    with serving(model) as client:
        assert client.get("/info").json()["limits"]["body_bytes"] == expected


@pytest.mark.parametrize("as_messages", [False, True])
def test_responses_that_no_model_reads_are_refused_before_they_are_tokenized(as_messages):
    most = 8 * 16 * Short.limit
    with serving(Short()) as client:
        for text, status in (("w" * (most // 8 - 100), 200), ("w" * (most // 8 + 1), 413)):
            response = [{"role": "assistant", "content": text}] if as_messages else text
            answer = client.post("/v1/scores", json=ONE | {"responses": [response] * 8})
            assert answer.status_code == status


def test_clients_get_429_and_retry_after_when_too_many_prompts_wait():
    model = Slow()
    with serving(model, waiting=2) as client, ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.post, "/v1/scores", json=ONE)
        assert model.begun.wait(30)
        others = [pool.submit(client.post, "/v1/scores", json=ONE) for _ in range(6)]
        refused = []
        while len(refused) < 4:
            refused = [one for one in others if one.done()]
        assert client.get("/health").json() == {"status": "ok"}, "while the model works"
        assert client.get("/ready").status_code == 200
        assert "longrm:num_requests_waiting 2.0" in client.get("/metrics").text
        for one in refused:
            assert one.result().status_code == 429
            assert one.result().headers["Retry-After"] == "1"
        model.may.set()
        assert first.result().json()["scores"] == [0.0, 1.0]
        assert sorted(one.result().status_code for one in others) == [200, 200, 429, 429, 429, 429]


def test_requests_that_time_out_are_not_read():
    model = Slow()
    with serving(model, seconds=0.3) as client, ThreadPoolExecutor(4) as pool:
        first = pool.submit(client.post, "/v1/scores", json=ONE)
        assert model.begun.wait(30)
        assert client.post("/v1/scores", json=ONE | {"prompt": "late"}).status_code == 504
        assert first.result().status_code == 504
        model.may.set()
        assert client.post("/v1/scores", json=ONE | {"prompt": "next"}).status_code == 200
    assert model.judged == ["w1 secret-prompt?", "next"]


@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_an_unexpected_error_fails_its_request_alone(caplog, error):
    with serving(Broken()) as client, caplog.at_level(logging.CRITICAL):
        response = client.post("/v1/scores", json=ONE | {"prompt": error.__name__})
        assert response.status_code == 500
        assert "path" not in response.text
        assert client.post("/v1/scores", json=ONE).json()["scores"] == [0.5, 0.5]
        assert client.get("/health").status_code == 200


def test_a_model_is_read_on_the_thread_that_loaded_it_and_its_error_is_raised():
    threads = []

    class Watched(Broken):
        def __init__(self):
            threads.append(threading.get_ident())

        def judge(self, queries):
            threads.append(threading.get_ident())
            return super().judge(queries)

    with TestClient(build_app(ServeSettings(model="m"), Watched), "http://127.0.0.1") as client:
        assert client.post("/v1/scores", json=ONE).status_code == 200
    assert len(threads) == 2
    assert len({*threads, threading.get_ident()}) == 2
    with pytest.raises(ZeroDivisionError):
        build_app(ServeSettings(model="m"), lambda: 1 / 0)


def test_a_score_that_is_not_finite_is_null_for_its_response_alone():
    with serving(Broken()) as client:
        answer = client.post("/v1/scores", json=ONE | {"responses": ["w1", "nan"]}).json()
        assert (answer["scores"], answer["order"], answer["error"]["type"]) == ([0.5, None], [0], "unscored")
        several = client.post("/v1/scores", json=[ONE, ONE | {"responses": ["nan"]}]).json()
        assert [one["scores"] for one in several] == [[0.5, 0.5], [None]]
        sent = {"query": ["w1w2", "w1nan"], "prompts": ["w1", "w1"]}
        assert client.post("/get_reward", json=sent).json()["rewards"] == [0.5, None]
        alone = client.post("/v1/scores", json=ONE | {"responses": ["nan"]})
        assert alone.status_code == 422


def test_while_draining_requests_in_work_are_answered_and_new_ones_get_503():
    model = Slow()
    with ThreadPoolExecutor(4) as pool:
        with serving(model) as client:
            first = pool.submit(client.post, "/v1/scores", json=ONE)
            assert model.begun.wait(30)
            client.app.state.service.draining = True
            assert client.get("/ready").status_code == 503
            late = client.post("/v1/scores", json=ONE)
            assert (late.status_code, late.headers["Retry-After"]) == (503, "5")
            model.may.set()
            assert first.result().status_code == 200
        assert not client.app.state.service.worker.alive


def test_an_unknown_path_has_the_body_of_other_errors_and_lists_the_routes(client):
    error = client.post("/v1/chat/completions", json={"model": "any", "messages": []}).json()["error"]
    assert (error["type"], error["code"]) == ("invalid", 404)
    assert all(f"{route.path}," in error["message"].replace(" (", ",") for route in ROUTES)
    error = client.get("/v1/scores").json()["error"]
    assert (error["type"], error["code"], "POST" in error["message"]) == ("invalid", 405, True)


def test_the_openapi_document_has_every_example(client):
    document = client.get("/openapi.json").json()
    for route in ROUTES:
        content = document["paths"][route.path]["post"]["requestBody"]["content"]["application/json"]
        assert content["examples"][route.body.__name__]["value"] == route.example
        assert all(
            one["$ref"].rpartition("/")[2] in document["components"]["schemas"]
            for one in content["schema"]["anyOf"]
        )
    assert client.get("/info").json()["formats"]["openrlhf"] == ["/get_reward"]


def test_the_log_of_requests_repeats_nothing(caplog):
    with serving(Broken()) as client, caplog.at_level(logging.DEBUG, "longrm.serving"):
        assert client.post("/v1/scores?secret-prompt=1", json=ONE).status_code == 200
        assert client.post("/v1/scores", json=ONE | {"secret-prompt": 1}).status_code == 400
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[:2] for line in lines] == [["/v1/scores", "200"], ["/v1/scores", "400"]]
    assert "secret-prompt" not in "".join(lines)


@pytest.mark.parametrize("item", [1, {}, [], {"no": 1}])
@pytest.mark.parametrize("route", ROUTES, ids=lambda one: one.path)
def test_validation_stops_at_the_first_wrong_item(route, item):
    """A list of a million wrong items must not become a million errors of 3 KB each."""
    bodies = [[item] * 1000, {f"unknown-{n}": 1 for n in range(1000)}]
    bodies += [{**route.example, name: [item] * 1000} for name in route.body.model_fields if name != "root"]
    bodies += [[{f"unknown-{n}": 1 for n in range(1000)}] * 1000]
    for body in bodies:
        errors = 0
        try:
            route.body.model_validate(body)
        except ValidationError as error:
            errors = error.error_count()
        assert errors <= 12
    with pytest.raises(ValidationError) as failed:
        TypeAdapter(list[str]).validate_python([1] * 1000)
    assert failed.value.error_count() == 1000, "the control: a plain list"
