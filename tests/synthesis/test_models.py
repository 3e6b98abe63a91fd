import asyncio
import threading
import time
from dataclasses import replace

from longrm.clients import TextGenerator
from longrm.runs.logs import Log
from longrm.synthesis.models import SPENDING, ModelSettings, PaidAnswer, ServedModel
from longrm.synthesis.pipeline import open_models
from longrm.synthesis.simulated import GoldAnswers

from ..clients.conftest import Reply, requests, server  # noqa: F401  # the server is a fixture


def ask(model, prompts):
    return [answer.text for answer in asyncio.run(model.ask(prompts))]


class Endless(TextGenerator):
    """As a model that writes a long text: it computes for 20 seconds."""

    name, limit = "endless", None

    def __init__(self):
        self.began, self.ended = threading.Event(), threading.Event()

    def generate(self, requests):
        self.began.set()
        end = time.monotonic() + 20
        try:
            while time.monotonic() < end:
                sum(range(1000))
        finally:
            self.ended.set()

    def tokens(self, messages):
        return None


def test_a_cancelled_model_stops_in_its_thread():
    async def cancel(writer):
        asked = asyncio.create_task(ServedModel("m", writer).ask(requests(30)))
        while not writer.began.is_set():
            await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.wait([asked])

    writer = Endless()
    began = time.monotonic()
    asyncio.run(cancel(writer))
    assert time.monotonic() - began < 4
    assert writer.ended.is_set()


def opened(models, folder):
    return open_models(models, folder, 0, GoldAnswers())


def test_an_answer_is_paid_for_once_in_all_runs(server, tmp_path):  # noqa: F811
    models = [
        ModelSettings(
            model=f"openai:{server.url}#tiny", name="one", price={"prompt": 2.0, "completion": 4.0}
        ),
        ModelSettings(model=f"openai:{server.url}#small"),
    ]
    for _ in range(2):
        with opened(models, tmp_path) as (asked, spending):
            assert [model.name for model in asked] == ["one", "small"]
            assert all(
                ask(model, requests(5)) == [f"echo of question {at}" for at in range(5)] for model in asked
            )
        # The server reports ten tokens read and five written per answer.
        cost = (50 * 2.0 + 25 * 4.0) / 1e6
        known = {"answers": 5, "prompt_tokens": 50, "completion_tokens": 25}
        assert spending.to_dict() == {"one": {**known, "cost": cost}, "small": {**known, "cost": 0.0}}
        assert spending.note() == "10 answers, 150 tokens, 0.00 spent"
    assert len(server.seen) == 10
    assert len([*Log(tmp_path / SPENDING, PaidAnswer)]) == 10
    with opened(models, tmp_path) as (asked, spending):
        ask(asked[0], [replace(requests(1)[0], max_tokens=3)])
    assert spending.accounts["one"]["answers"] == 6


def test_a_run_may_continue_with_other_urls_but_not_with_another_model():
    one = ModelSettings(model="openai:http://a/v1#m")
    moved = ModelSettings(model="openai:http://b/v1#m")
    other = ModelSettings(model="openai:http://a/v1#n")
    first, second, third = (ModelSettings.defining(model.to_dict()) for model in (one, moved, other))
    assert first == second != third
    assert (one.label, ModelSettings(model="simulated:0.1").label) == ("m", "simulated:0.1")


def test_equal_requests_are_asked_once(server, tmp_path):  # noqa: F811
    twice = [*requests(3), *requests(3)]
    one = ModelSettings(model=f"openai:{server.url}#tiny")
    with opened([one], tmp_path) as (asked, _):
        assert ask(asked[0], twice) == [f"echo of question {at % 3}" for at in range(6)]
    assert len(server.seen) == 3
    with opened([one], tmp_path) as (asked, spending):
        ask(asked[0], twice)
    assert (len(server.seen), spending.accounts["tiny"]["answers"]) == (3, 3)
