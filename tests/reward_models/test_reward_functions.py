"""A reward model as a function of trainers: the scores of transformers, one prompt read for a group, and what fails."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.errors import DataError, RunError
from longrm.reward_models import Baseline, RewardModel
from longrm.types import Judgment, Outcome, message_text

from .tiny_models import make_scorer

PROMPTS = [
    f"In the old ledger {name} holds {word}.\n\nQuestion: What is the access code of {name}?"
    for name, word in (("Corimo", "bucket"), ("Tanelo", "turtle"))
]
COMPLETIONS = [
    f"The access code of {name} is {word}."
    for name in ("Corimo", "Tanelo")
    for word in ("bucket", "turtle", "bucket of turtle")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("model") / "tiny", positions=80)


@pytest.fixture(scope="module")
def loaded(folder):
    return longrm.load(str(folder))


@pytest.fixture(scope="module")
def plain_score(folder):
    """What a user of transformers alone would compute: one sequence a completion."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    @torch.inference_mode()
    def score(prompt, completion):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt")["input_ids"]
        return classifier(ids).logits.item()

    return score


class Watched(RewardModel):
    """Keeps what it was asked, and asks another model; or, without one, scores by length and has some rows fail."""

    def __init__(self, model=None):
        self.name = "watched"
        self.model = model
        self.asked = []

    def judge(self, queries):
        self.asked.append([(query.prompt, len(query.responses)) for query in queries])
        return self.model.judge(queries) if self.model else [self.judgment(query) for query in queries]

    def judgment(self, query):
        texts = [message_text(response[0]) for response in query.responses]
        for text in texts:
            if text in list(Outcome):
                return Judgment(Outcome(text), detail=f"{text} it was")
        return Judgment(
            Outcome.ANSWERED, tuple(float("nan") if text == "nan" else len(text) for text in texts)
        )


def conversational(text, role):
    return [{"role": role, "content": text}]


@pytest.mark.parametrize("form", ["text", "messages"])
def test_rewards_are_the_scores_of_transformers_and_each_prompt_is_read_once(loaded, plain_score, form):
    watched = Watched(loaded)
    prompts = [PROMPTS[number % 2] for number in range(6)]  # groups need not stand together
    expected = [plain_score(*row) for row in zip(prompts, COMPLETIONS, strict=True)]
    given = (prompts, COMPLETIONS)
    if form == "messages":
        given = [
            [conversational(text, role) for text in texts]
            for texts, role in zip(given, ("user", "assistant"), strict=True)
        ]
    rewards = longrm.reward_function(watched)(
        prompts=given[0], completions=given[1], completion_ids=[[1]] * 6, trainer_state=None
    )
    assert rewards == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1e-2, (
        "the completions must be told apart for this to mean anything"
    )
    assert [count for _, count in watched.asked[0]] == [3, 3]
    assert len(watched.asked) == 1


def test_of_a_group_only_the_completions_are_read_anew(loaded, monkeypatch):
    read, tokens = loaded._read, []
    monkeypatch.setattr(
        loaded, "_read", lambda packed, items: tokens.append(packed.input_ids.numel()) or read(packed, items)
    )
    reward = longrm.reward_function(loaded)
    for count in (1, 2, 5):
        reward([PROMPTS[0]] * count, COMPLETIONS[:count])
    alone, two, five = tokens
    completion = two - alone
    assert 0 < completion < alone / 2, "most of what is read is the prompt"
    assert five == pytest.approx(alone + 4 * completion, abs=8)


def test_a_name_is_loaded_and_names_the_rewards(folder):
    reward = longrm.reward_function(str(folder))
    assert reward.__name__ == folder.name
    assert reward([], []) == []
    assert longrm.reward_function("baseline:longest")(["p", "p"], ["a", "bb c"]) == [1.0, 4.0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai:http://127.0.0.1:8765/v1#org/N", "openai:127.0.0.1:8765/v1#N"),
        ("longrm:https://host:8000", "longrm:host:8000"),
        ("likelihood:runs/a/#Hub/b", "likelihood:a/#b"),
        ("runs/long/model", "long"),
        ("likelihood:runs/long/model", "likelihood:long"),
        ("ensemble:votes:runs/a+openai:http://host:1/v1#N+org/b", "ensemble:votes:a+openai:host:1/v1#N+b"),
    ],
)
def test_the_name_has_no_folders_and_tells_servers_apart(model, name):
    judge = Baseline("longest")
    judge.name = model
    assert longrm.reward_function(judge).__name__ == name


def test_a_completion_without_a_score_is_none_and_takes_no_other_with_it(loaded, plain_score, caplog):
    reward = longrm.reward_function(loaded)
    long = " ".join(["turtle"] * 100)
    told = {}
    rewards = reward(
        [PROMPTS[0]] * 3, [COMPLETIONS[0], long, COMPLETIONS[1]], log_metric=lambda *one: told.update([one])
    )
    expected = [plain_score(PROMPTS[0], text) for text in COMPLETIONS[:2]]
    assert rewards == [pytest.approx(expected[0], abs=1e-5), None, pytest.approx(expected[1], abs=1e-5)]
    assert told == {f"{reward.__name__}/unscored": pytest.approx(1 / 3)}
    assert "too_long" in caplog.text
    assert "> 80 tokens;" in caplog.text
    caplog.clear()
    assert reward([PROMPTS[0]] * 2, [long, COMPLETIONS[1]])[0] is None
    assert reward.unscored == {"too_long": 2}
    assert not caplog.text, "said once"


def test_a_call_in_which_nothing_could_be_scored_for_errors_is_refused():
    reward = longrm.reward_function(Watched())
    with pytest.raises(RunError, match="watched .*: error it was"):
        reward(["p", "q"], ["error", "error"])
    with pytest.raises(DataError, match="2 prompts for 1 completions"):
        reward(["p", "q"], ["a"])


def test_what_is_no_text_is_refused_and_an_empty_completion_is_not():
    reward = longrm.reward_function(Watched())
    parts = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    with pytest.raises(DataError, match="only text.*'image'"):
        reward([[{"role": "user", "content": parts}]], ["A turtle."])
    assert reward([[{"role": "user", "content": parts[1:]}]] * 2, ["", "ab"]) == [0.0, 2.0]


class Held(Watched):
    """Holds its first call until all others have come."""

    def __init__(self, model=None, error=None):
        super().__init__(model)
        self.began, self.go, self.error = threading.Event(), threading.Event(), error

    def judge(self, queries):
        judged = super().judge(queries)
        self.began.set()
        assert self.go.wait(60)
        if self.error and len(self.asked) > 1:
            raise self.error
        return judged


def all_at_once(held, completions):
    """Hands over one completion a thread, all but the first while the model works on that."""
    reward = longrm.reward_function(held)
    with ThreadPoolExecutor(len(completions)) as pool:
        first = pool.submit(reward, PROMPTS[:1], completions[:1])
        assert held.began.wait(60)
        others = [pool.submit(reward, PROMPTS[:1], [text]) for text in completions[1:]]
        while len(reward._waiting) < len(others):  # they come by themselves
            threading.Event().wait(0.001)
        held.go.set()
        return [one.exception() or one.result() for one in (first, *others)]


def test_completions_of_several_threads_are_scored_together(loaded, plain_score):
    held = Held(loaded)
    found = all_at_once(held, COMPLETIONS)
    expected = [[pytest.approx(plain_score(PROMPTS[0], text), abs=1e-5)] for text in COMPLETIONS]
    assert found == expected
    assert [[count for _, count in call] for call in held.asked] == [[1], [5]]


def test_awaited_calls_are_scored_together_while_the_loop_goes_on():
    held = Held()
    reward = longrm.reward_function(held)

    async def awaited(prompts, completions):  # as docs/rewards.md recommends
        return await asyncio.to_thread(reward, prompts, completions)

    async def together():
        first = asyncio.create_task(awaited(PROMPTS[:1], COMPLETIONS[:1]))
        while not held.began.is_set():
            await asyncio.sleep(0)
        others = [asyncio.create_task(awaited(PROMPTS[:1], [text])) for text in COMPLETIONS[1:]]
        while len(reward._waiting) < len(others):
            await asyncio.sleep(0)
        held.go.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(together()) == [[len(text)] for text in COMPLETIONS]
    assert [[count for _, count in call] for call in held.asked] == [[1], [5]]
