"""Scores of the steps of a trajectory in one pass, against transformers on a separate conversation for every step."""

import itertools
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.data.joining import encode_steps
from longrm.errors import DataError
from longrm.modeling.shapes import build_trees
from longrm.reward_models import token_rewards
from longrm.types import Outcome, Query, Trajectory
from tests.data.trajectories import HERMES, TOOLS
from tests.data.trajectories import say as message

from .tiny_models import bytes_tokenizer, make_model, make_scorer

TOLERANCE = 5e-5


def say(text):
    return message("assistant", text)


def result(text):
    return message("tool", text)


PROMPT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the sum?"})


def agent(steps: int, seed: int = 0) -> Trajectory:
    """Turns of different lengths, with results of tools and words of the user in between."""
    draw = random.Random(seed)
    made = [(say("I look it up."),)]
    for number in range(1, steps):
        text = " ".join(f"row{draw.randrange(1000)}" for _ in range(draw.randrange(1, 30)))
        between = result(text) if number % 3 else {"role": "user", "content": text}
        made.append((between, say(f"Step {number} uses {text[:20]}.")))
    return Trajectory("agent", "task", PROMPT, tuple(made), tools=tuple(TOOLS))


SOLUTION = Trajectory(
    "solution", "task", PROMPT, tuple((say(f"Line {n}: add {n * n}."),) for n in range(1, 6)), tools=()
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokenizer = bytes_tokenizer(HERMES)
    make_scorer(folder / "scalar", positions=4096, tokenizer=tokenizer)
    make_model(folder / "writer", tokenizer=tokenizer)
    return folder


def separate(folder, trajectory: Trajectory) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        tokenizer.apply_chat_template([*PROMPT, *prefix], tools=list(trajectory.tools) or None)["input_ids"]
        for prefix in trajectory.prefixes()
    ]


@pytest.mark.parametrize(
    "trajectory", [agent(1), agent(2), agent(12), SOLUTION], ids=lambda one: f"{one.id}{len(one.steps)}"
)
def test_scalar_scores_are_those_of_separate_conversations(folders, trajectory):
    plain = AutoModelForSequenceClassification.from_pretrained(folders / "scalar", dtype=torch.float32).eval()
    with torch.inference_mode():
        sequences = separate(folders / "scalar", trajectory)
        truth = [plain(torch.tensor([ids])).logits[0, 0].item() for ids in sequences]
    model = longrm.load(str(folders / "scalar"))
    (judged,) = model.judge([trajectory.query()])
    assert judged.scores == pytest.approx(truth, abs=TOLERANCE)
    # Read one step earlier the scores differ, so the comparison can fail.
    if len(truth) > 1:
        assert max(abs(a - b) for a, b in itertools.pairwise(truth)) > 100 * TOLERANCE


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("trajectory", [agent(9, seed=1), SOLUTION], ids=lambda one: one.id)
def test_likelihoods_are_those_of_the_turns_alone(folders, trajectory, reduce):
    plain = AutoModelForCausalLM.from_pretrained(folders / "writer", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders / "writer")
    truth, before = [], []
    for prefix, ids in zip(trajectory.prefixes(), separate(folders / "writer", trajectory), strict=True):
        opening = tokenizer.apply_chat_template(
            [*PROMPT, *prefix[:-1]], tools=list(trajectory.tools) or None, add_generation_prompt=True
        )["input_ids"]
        shared = next((at for at, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        start = max(len(opening), shared)
        with torch.inference_mode():
            logprobs = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = torch.stack([logprobs[at - 1, ids[at]] for at in range(start, len(ids))])
        truth.append((own.sum() if reduce == "sum" else own.mean()).item())
        before = ids
    model = longrm.load(f"likelihood:{folders / 'writer'}", model_args={"likelihood": reduce})
    (judged,) = model.judge([trajectory.query()])
    assert judged.scores == pytest.approx(truth, abs=TOLERANCE * (10 if reduce == "sum" else 1))


def test_every_token_of_a_trajectory_is_read_once():
    tokenizer, trajectory = bytes_tokenizer(), agent(20)
    items = encode_steps(tokenizer, trajectory.query())
    (tree,) = build_trees(items)
    whole = len(items[-1].prompt) + len(items[-1].responses[0])
    closings = sum(len(item.responses[0]) for item in items[:-1])
    assert tree.size == whole + closings
    assert closings <= 2 * len(items)
    assert sum(len(item.prompt) for item in items) > 8 * whole
    assert tree.shape.leaves == [len(item.prompt) + len(item.responses[0]) for item in items]


def test_results_are_omitted_as_whole_messages_where_a_trajectory_is_too_long(folders):
    trajectory = agent(12)
    whole = longrm.load(str(folders / "scalar"))
    sizes = [len(ids) for ids in separate(folders / "scalar", trajectory)]
    limit = sizes[-1] - 100
    (refused,) = longrm.load(str(folders / "scalar"), model_args={"max_length": limit}).judge(
        [trajectory.query()]
    )
    assert refused.outcome is Outcome.TOO_LONG
    for side in ("left", "middle", "right"):
        model = longrm.load(str(folders / "scalar"), model_args={"max_length": limit, "cut": side})
        (judged,) = model.judge([trajectory.query()])
        assert judged.outcome is Outcome.ANSWERED
        assert judged.cut is not None
        assert judged.cut.policy == side
        assert judged.cut.tokens >= 100
        uncut = whole.judge([trajectory.query()])[0].scores
        same = [abs(a - b) < TOLERANCE for a, b in zip(judged.scores, uncut, strict=True)]
        assert same[0]
        assert not same[-1]
        assert (side == "right") is (same.count(True) > len(same) / 2)


def test_a_reward_for_every_turn(folders):
    trajectories = [agent(4), agent(6, seed=2)]
    reward = longrm.reward_function(str(folders / "scalar"), per_step=True)
    completions = [[message for step in one.steps for message in step] for one in trajectories]
    rewards = reward([list(PROMPT)] * 2, completions, tools=[list(TOOLS)] * 2)
    model = longrm.load(str(folders / "scalar"))
    for one, found in zip(trajectories, rewards, strict=True):
        assert found == pytest.approx(model.judge([one.query()])[0].scores, abs=TOLERANCE)
    with pytest.raises(DataError):
        reward([list(PROMPT)], [[{"role": "user", "content": "no turn"}]])


def test_rewards_of_turns_are_at_the_ends_of_the_policys_tokens():
    assert token_rewards([0.5, -1.0], [1, 1, 0, 0, 1, 0]) == [0, 0.5, 0, 0, -1.0, 0]
    assert token_rewards([2.0], [0, 1]) == [0, 2.0]
    with pytest.raises(DataError):
        token_rewards([1.0], [1, 0, 1])


def judge_answers(monkeypatch, folders, texts, **settings):
    """A local judge that writes these texts, and the prompts that it was sent."""
    from longrm.clients import Completion

    model = longrm.load(str(folders / "writer"), judge=settings)
    prompts = []

    def generate(requests):
        prompts.extend(request.messages for request in requests)
        return [
            Completion(Outcome.ANSWERED, texts[len(prompts) - len(requests) + at])
            for at in range(len(requests))
        ]

    monkeypatch.setattr(model._writer, "generate", generate)
    return model, prompts


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('Step 3 is off. {"1": 1, "2": 0, "3": -1}', (1, 0, -1)),
        ('```json\n{"step_1": "1", "step_2": "+1", "step_3": 0}\n```', (1, 1, 0)),
        ('First {"1": 1, "2": 1, "3": 1}, but no: {"1": 1, "2": -1, "3": -1}', (1, -1, -1)),
        ("Step 1: 1\nStep 2: 0\n**Step 3**: -1", (1, 0, -1)),
        ('<think>{"1": 1, "2": 1, "3": 1}</think> {"1": -1, "2": -1, "3": -1}', (-1, -1, -1)),
        ('{"1": 1, "2": 1}', None),
        ('{"1": 1, "2": 2, "3": 1}', None),
        ("All steps look right.", None),
    ],
)
def test_labels_of_all_steps_in_one_answer(monkeypatch, folders, text, labels):
    model, prompts = judge_answers(monkeypatch, folders, [text], format="steps", retries=0)
    (judged,) = model.judge([agent(3).query()])
    assert judged.scores == (labels or ())
    assert judged.outcome is (Outcome.ANSWERED if labels else Outcome.UNPARSED)
    (text,) = [message["content"] for message in prompts[0]]
    assert [text.count(f'<step number="{number}">') for number in (1, 2, 3, 4)] == [1, 1, 1, 0]


def test_one_step_at_a_time_sees_nothing_that_comes_later(monkeypatch, folders):
    trajectory = agent(3)
    model, prompts = judge_answers(
        monkeypatch, folders, ["[[1]]", "[[-1]]", "It is [[0]]"], format="each-step"
    )
    (judged,) = model.judge([trajectory.query()])
    assert judged.scores == (1, -1, 0)
    last = [step[-1]["content"] for step in trajectory.steps]
    shown = [[text in prompt[0]["content"] for text in last] for prompt in prompts]
    assert shown == [[True, False, False], [True, True, False], [True, True, True]]


def test_formats_for_responses_do_not_judge_steps(monkeypatch, folders):
    model, _ = judge_answers(monkeypatch, folders, ["[[A]]"], format="pairwise")
    (judged,) = model.judge([agent(2).query()])
    assert judged.outcome is Outcome.ERROR
    assert "steps" in judged.detail


@pytest.mark.parametrize("format", ["steps", "each-step"])
def test_formats_of_steps_do_not_judge_responses(monkeypatch, folders, format):
    model, _ = judge_answers(monkeypatch, folders, ["[[1]]"] * 4, format=format)
    (judged,) = model.judge([Query("c", PROMPT, ((say("One."),), (say("Two."),)))])
    assert judged.outcome is Outcome.ERROR
    assert "steps of trajectories" in judged.detail
