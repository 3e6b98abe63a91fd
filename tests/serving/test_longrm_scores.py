"""`POST /v1/scores` returns the scores that the model gives without a server."""

import random
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

import longrm

from ..reward_models.tiny_models import queries, words

TOLERANCE = 5e-5


def body(query):
    return {"prompt": list(query.prompt), "responses": [list(response) for response in query.responses]}


def ask(client, content, path="/v1/scores"):
    response = client.post(path, json=content)
    assert response.status_code == 200, response.text
    return response.json()


def test_scores_are_those_of_the_model(client, plain):
    (query,) = queries((30, 3))
    answer = ask(client, body(query))
    expected = plain.score(query.prompt, query.responses)
    assert answer["scores"] == pytest.approx(expected, abs=TOLERANCE)
    assert max(expected) - min(expected) > 100 * TOLERANCE
    assert answer["order"] == sorted(range(3), key=lambda index: -expected[index])
    assert answer["seconds"] > 0
    assert answer["model"] == "scalar", "no path of the server's"
    assert set(answer["usage"]) == {"prompt_tokens", "cached_tokens", "total_tokens"}
    again = ask(client, body(query))
    assert again["usage"]["cached_tokens"] == (answer["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert again["scores"] == pytest.approx(expected, abs=TOLERANCE)


def test_texts_are_messages_and_lists_are_lists(client, plain):
    answer = ask(client, {"prompt": "w1 w2?", "responses": ["w3", "w4 w5"]})
    assert answer["scores"] == pytest.approx(plain.score("w1 w2?", ["w3", "w4 w5"]), abs=TOLERANCE)
    several = ask(
        client, [{"prompt": "w1 w2?", "responses": ["w3"]}, {"prompt": "w9", "responses": ["w4", "w3"]}]
    )
    assert [len(one["scores"]) for one in several] == [1, 2]
    assert several[0]["scores"] == pytest.approx(answer["scores"][:1], abs=TOLERANCE)


def counts(client):
    """Samples of /metrics, but for the buckets of histograms."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {
        "/".join([sample.name.removeprefix("longrm:"), *sample.labels.values()]): sample.value
        for sample in samples
        if "le" not in sample.labels
    }


def test_metrics_count_what_was_answered(start):
    client = start()
    assert counts(client)["request_success_total"] == 0
    sent = [*queries((30, 3), (40, 2)), queries((30, 3))[0]]
    usage = [ask(client, body(query))["usage"] for query in sent]
    assert client.post("/v1/scores", json={"prompt": "p", "responses": []}).status_code == 400
    found = counts(client)
    total = {name: sum(one[name] for one in usage) for name in usage[0]}
    assert total["cached_tokens"] > 16, "the third request repeats the first"
    assert found["prompt_tokens_total"] == found["request_prompt_tokens_sum"] == total["total_tokens"]
    assert found["prompt_tokens_cached_total"] == found["prefix_cache_hits_total"] == total["cached_tokens"]
    assert found["prefix_cache_queries_total"] == total["prompt_tokens"]
    for name in ("request_success_total", "request_prompt_tokens_count", "e2e_request_latency_seconds_count"):
        assert found[name] == 3
    assert found["request_queue_time_seconds_count"] == 3
    assert 0 < found["e2e_request_latency_seconds_sum"] < 60
    assert found["request_failure_total/invalid"] == 1
    until = time.monotonic() + 20  # an answer is on its way before the worker counts its request as done
    while found["num_requests_running"] and time.monotonic() < until:
        found = counts(client)
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0
    assert 0 < found["prefix_cache_bytes"] <= found["prefix_cache_max_bytes"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("scalar", {}),
        ("likelihood", {"model_args": {"likelihood": "mean"}}),
        ("tokens", {"judge": {"format": "pointwise"}}),
        ("tokens", {"judge": {"format": "pairwise"}}),
        ("baseline", {}),
    ],
)
def test_every_kind_of_model_is_served(start, names, kind, settings):
    client, alone = start(kind, **settings), longrm.load(names[kind], **settings)
    for query in queries((40, 2), (25, 2), per_document=2):
        for _ in range(2):
            expected = alone.score(query.prompt, query.responses)
            assert ask(client, body(query))["scores"] == pytest.approx(expected, abs=TOLERANCE)


def test_over_long_prompts_are_refused_or_cut_on_request(client):
    context = words(random.Random(2), 2000)
    long = {"prompt": f"{context}\n\nWhich?", "responses": ["w1", "w2"]}
    response = client.post("/v1/scores", json=long)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "too_long"
    assert "> 4,096 tokens, more than the model reads" in error["message"]
    assert client.post("/v1/scores", json=long | {"cut": "middle"}).status_code == 400, "of what?"
    answer = ask(client, long | {"cut": "middle", "context": context})
    assert answer["cut"]["policy"] == "middle"
    assert answer["cut"]["tokens"] > 500
    assert answer["usage"]["total_tokens"] <= 4096 + 10
    wrong = client.post("/v1/scores", json=long | {"cut": "middle", "context": "elsewhere"})
    assert "word for word" in wrong.json()["error"]["message"]
    blank = client.post("/v1/scores", json=long | {"cut": "middle", "context": " "})
    assert "the context is empty" in blank.json()["error"]["message"]


def test_explanations_come_on_request(start):
    client = start("tokens", {"format": "pointwise"})
    (query,) = queries((10, 2))
    assert "explanation" not in ask(client, body(query))
    assert "P(" in ask(client, body(query) | {"explanations": True})["explanation"]


@pytest.mark.parametrize("path", ["/v1/scores", "/classify"])
def test_the_cache_is_shared_within_a_salt(start, path):
    client = start()
    (query,) = queries((80, 1))
    sent = body(query)
    if path == "/classify":
        sent = {"messages": [*query.prompt, *query.responses[0]]}

    def cached(**salt):
        usage = ask(client, sent | salt, path)["usage"]
        return usage.get("prompt_tokens_details", usage)["cached_tokens"]

    assert cached(cache_salt="a") == 0
    kept = cached(cache_salt="a")
    assert kept > 16
    assert [cached(cache_salt="b"), cached()] == [0, 0]
    assert [cached(cache_salt="b"), cached(), cached(cache_salt=None)] == [kept] * 3


def test_two_salts_in_one_forward_pass_share_nothing(start, plain):
    client = start()
    (query,) = queries((80, 1))
    both = [body(query) | {"cache_salt": salt} for salt in "ab"]
    for cold in (True, False):
        answers = ask(client, both)
        assert [one["usage"]["cached_tokens"] == 0 for one in answers] == [cold, cold]
        for one in answers:
            assert one["scores"] == pytest.approx(plain.score(query.prompt, query.responses), abs=TOLERANCE)
    assert ask(client, body(query))["usage"]["cached_tokens"] == 0


def test_content_that_is_a_list_of_texts_is_that_text(client):
    def sent(content):
        return {"prompt": [{"role": "user", "content": content}], "responses": ["w3", "w4 w5"]}

    parts = [{"type": "text", "text": "w1 "}, {"type": "text", "text": "w2"}]
    assert ask(client, sent(parts))["scores"] == pytest.approx(
        ask(client, sent("w1 w2"))["scores"], abs=TOLERANCE
    )
