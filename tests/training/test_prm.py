"""Training on labels of steps: losses, rows, gradients against separate conversations, and whole runs."""

import json
import logging
from dataclasses import dataclass, replace

import datasets
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.cli.commands import cli
from longrm.data.joining import encode_steps, join_steps
from longrm.data.training_rows import open_rows, tokenize, tokenize_rows
from longrm.data.trajectories import TrajectoryRow, read_trajectories
from longrm.errors import ConfigError, DataError
from longrm.modeling.loading import load_scorer
from longrm.modeling.shapes import build_trees
from longrm.training.batches import Batches
from longrm.training.losses import binary_cross_entropy
from longrm.training.objectives import PRM
from longrm.training.plan.plan import plan_training
from longrm.training.settings import LossSettings
from longrm.training.train import train
from tests.data.trajectories import HERMES, say
from tests.reward_models.test_steps import SOLUTION, agent
from tests.reward_models.tiny_models import bytes_tokenizer, make_scorer

SCORES = torch.tensor([0.3, -1.2, 4.0, 0.0, -0.7], dtype=torch.float64)
LABELS = [1.0, 0.0, 1.0, 0.25, 1.0]
TOLERANCE = 2e-5


# --- The loss ---


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torch_s(smoothing):
    scores = SCORES.clone().requires_grad_()
    loss, metrics = binary_cross_entropy(scores, LABELS, label_smoothing=smoothing)
    target = smoothing + (1 - 2 * smoothing) * torch.tensor(LABELS, dtype=torch.float64)
    assert loss.item() == pytest.approx(binary_cross_entropy_with_logits(SCORES, target).item(), rel=1e-12)
    assert abs(loss.item() - binary_cross_entropy_with_logits(SCORES, 1 - target).item()) > 1e-2
    assert torch.autograd.gradcheck(
        lambda values: binary_cross_entropy(values, LABELS, label_smoothing=smoothing)[0], [scores]
    )
    # Three are right, one is wrong, and a score of 0 counts half.
    assert metrics == pytest.approx({"accuracy": 3.5 / 5, "score": 0.48, "right": 0.65})


# --- Rows ---


def row(name, labels=None, **columns):
    messages = [say("user", "Add 2 and 3."), say("assistant", "I look."), say("tool", "5")]
    messages += [say("assistant", "It is 5."), say("user", "Sure?"), say("assistant", "Yes.")]
    return {"id": name, "messages": messages, **columns} | ({} if labels is None else {"step_labels": labels})


ROWS = [
    row("all", [1, -1, 1], success=False),
    row("neutral", [1, 0, 0.5]),
    row("part", [None, -1, None]),
    row("outcome", success=True),
    row("nothing", [0, None, 0], success=True),
]


@pytest.fixture
def put(tmp_path):
    def write(rows, name="rows.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in rows))
        return str(tmp_path / name)

    return write


def examples_of(path, tokenizer, neutral="skip"):
    return {
        one.id: one for one in tokenize_rows(open_rows(path, "trajectory"), tokenizer, neutral_steps=neutral)
    }


def texts_of(tokenizer, example):
    """The text of every sequence, by its fork."""
    tokens = example.tokens
    return [
        tokenizer.decode([*tokens.prompt[:at], *ids], special=False)
        for at, ids in zip(tokens.forks, tokens.responses, strict=True)
    ]


def test_labels_and_outcomes_become_targets_at_the_ends_of_steps(put):
    tokenizer = bytes_tokenizer()
    found = examples_of(put(ROWS), tokenizer)
    assert {name: one.labels for name, one in found.items()} == {
        "all": (1.0, 0.0, 1.0),
        "neutral": (1.0, 0.75),
        "part": (0.0,),
        "outcome": (1.0,),
        "nothing": (),
    }
    assert found["all"].ranks == (1, 2, 1)
    assert not found["all"].tied
    ends = [text.split("\n")[-2] for text in texts_of(tokenizer, found["all"])]
    assert [text.strip() for text in ends] == ["I look.", "It is 5.", "Yes."]
    assert texts_of(tokenizer, found["part"]) == texts_of(tokenizer, found["all"])[1:2]
    assert texts_of(tokenizer, found["outcome"]) == texts_of(tokenizer, found["all"])[2:]
    assert found["part"].size < found["outcome"].size == found["outcome"].tokens.longest
    assert found["all"].tokens.longest == found["outcome"].tokens.longest < found["all"].size
    for neutral, label in (("right", 1.0), ("wrong", 0.0)):
        assert examples_of(put(ROWS), tokenizer, neutral)["nothing"].labels == (label, label)


def test_what_is_omitted_is_counted(put, tmp_path, caplog):
    folder = tmp_path / "model"
    make_scorer(folder, tokenizer=bytes_tokenizer())
    same = {"model": str(folder), "data": put(ROWS), "max_steps": 1, "learning_rate": 1e-3}
    with caplog.at_level(logging.INFO, "longrm"):
        found = longrm.train("prm", out=tmp_path / "run", **same).summary
    assert found.data.items() >= {
        "read": 5, "used": 4, "unlabeled": 1,
        "labeled_steps": 7, "neutral_steps": 1, "unlabeled_steps": 2, "outcomes": 1,
    }.items()  # fmt: skip
    assert "1 rows (nothing)" in caplog.text
    pairs = longrm.train("prm", loss_type="step_pairs", out=tmp_path / "pairs", **same).summary
    assert pairs.data["used"] == 2
    assert pairs.data["unlabeled"] == 3
    right = longrm.train("prm", neutral_steps="right", out=tmp_path / "right", **same).summary
    assert (right.data["used"], right.data["labeled_steps"]) == (5, 10)
    bare = {"id": "bare", "prompt": "Add 2 and 3.", "completions": ["5"]}
    with pytest.raises(DataError, match=r"bare.jsonl, line 2.*'bare'"):
        longrm.train("prm", out=tmp_path / "bare", **same | {"data": put([ROWS[0], bare], "bare.jsonl")})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objective": "bradley-terry", "neutral_steps": "right"}, "data.neutral_steps"),
        ({"data": "records", "lengths": [128], "max_steps": 2}, "data.world"),
        ({"loss_type": "hardest"}, "bce, step_pairs"),
        ({"train_on_last_step_only": True}, "null"),
    ],
)
def test_settings_of_others_are_refused(changes, named, put, tmp_path):
    arguments = {"objective": "prm", "model": "x", "data": put(ROWS), "out": tmp_path / "run"} | changes
    with pytest.raises(ConfigError, match=named):
        longrm.train(**arguments)


# --- One pass over a trajectory, compared with separate conversations ---


@pytest.mark.parametrize(
    "trajectory", [agent(1), agent(20), SOLUTION], ids=lambda one: f"{one.id}{len(one.steps)}"
)
def test_joined_steps_are_the_tree_of_their_items(trajectory):
    items = encode_steps(bytes_tokenizer(), trajectory.query())
    joined = join_steps(items)
    (tree,) = build_trees(items)
    assert build_trees([joined]) == [tree]
    assert joined.size == tree.size
    assert joined.longest == len(items[-1].prompt) + 1
    # Whatever the budget, and next to others, the steps of a trajectory are one tree.
    assert build_trees([joined, joined], 1) == [tree, tree]


FORGETS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if loop.last or message.role != 'assistant' %}"
    "{{ message.content }}{% else %}{{ message.content[-4:] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_steps_that_a_template_renders_differently_later_are_read_as_they_were():
    tokenizer, trajectory = bytes_tokenizer(FORGETS), agent(5)
    items = encode_steps(tokenizer, trajectory.query())
    joined = join_steps(items)
    separate = [[*item.prompt, *item.responses[0]] for item in items]
    (tree,) = build_trees([joined])
    leaves = tree.shape.leaves
    assert leaves == [len(ids) for ids in separate]
    assert [
        [*joined.prompt[:at], *ids] for at, ids in zip(joined.forks, joined.responses, strict=True)
    ] == separate


LABELED = (
    replace(agent(7), id="a", labels=(1.0, -1.0, 1.0, 1.0, None, -1.0, None)),
    replace(agent(3, seed=1), id="b", labels=(-1.0, None, 1.0)),
    replace(SOLUTION, id="c", labels=(1.0, 1.0, 1.0, -1.0, -1.0)),
)


@dataclass
class Fixed:
    """The same examples for every step."""

    examples: list

    def batch(self, step, length):
        return self.examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_scorer(folder, positions=4096, tokenizer=bytes_tokenizer(HERMES))
    return folder


@pytest.mark.parametrize("budget", [1, 10**6])
def test_gradients_are_those_of_separate_conversations(folder, budget):
    """Against transformers alone: every conversation up to a step is a sequence, and torch computes the loss."""
    plain = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores, targets = [], []
    for trajectory in LABELED:
        for prefix, label in zip(trajectory.prefixes(), trajectory.labels, strict=True):
            if label is not None:
                tools = list(trajectory.tools) or None
                ids = tokenizer.apply_chat_template([*trajectory.prompt, *prefix], tools=tools)["input_ids"]
                scores.append(plain(torch.tensor([ids])).logits[0, 0])
                targets.append(label > 0)
    truth_loss = binary_cross_entropy_with_logits(torch.stack(scores), torch.tensor(targets).float())
    truth_loss.backward()
    truth = gradients(plain)

    loaded, objective = load_scorer(folder, device="cpu"), PRM(LossSettings(loss_type="bce"))
    rows = [TrajectoryRow(1, "here", trajectory) for trajectory in LABELED]
    source = Fixed([tokenize(row, loaded.tokenizer) for row in rows])
    parts = Batches(source, objective, budget=budget, limit=4096).prepare(0).micro_batches
    assert len(parts) == (3 if budget == 1 else 1)

    def summed(weights):
        loaded.model.zero_grad()
        total = sum(
            weight * objective.loss(loaded.model, part)[0]
            for part, weight in zip(parts, weights, strict=True)
        )
        total.backward()
        return total.item(), gradients(loaded.model)

    loss, found = summed([part.weight for part in parts])
    assert loss == pytest.approx(truth_loss.item(), rel=TOLERANCE)
    assert deviation(found, truth) < TOLERANCE
    if budget == 1:  # a mean over trajectories is another loss
        assert deviation(summed([1 / 3] * 3)[1], truth) > 100 * TOLERANCE
    else:  # read one step too early, the scores are others
        shifted = replace(source.examples[0], labels=(*source.examples[0].labels[1:], 1.0))
        parts = [replace(parts[0], examples=[shifted, *parts[0].examples[1:]])]
        assert deviation(summed([1.0])[1], truth) > 100 * TOLERANCE


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def deviation(found, truth):
    assert found.keys() == truth.keys()
    return max(float((found[name] - one).norm() / one.norm()) for name, one in truth.items())


# --- Whole runs ---


@pytest.fixture(scope="module")
def trained(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, train(recipe("prm", optimizer__max_steps=60, optimizer__learning_rate=1e-2), folder)


def test_right_steps_are_learned_and_scored(trained, trajectories, steps_of):
    folder, summary = trained
    assert steps_of(folder)[0].loss > 0.55 > 2 * summary["loss"]
    assert summary["accuracy"] > 0.95 > 2 / 3 == pytest.approx(1 - steps_of(folder)[0].losses["right"])
    rows = [json.loads(line) for line in trajectories.read_text().splitlines()]
    model = longrm.load(str(folder / "model"))
    reader = read_trajectories(trajectories)
    judged = model.judge([one.trajectory.query() for one in reader])
    right = [
        [score > 0 for score in one.scores] == row["labels"] for one, row in zip(judged, rows, strict=True)
    ]
    assert sum(right) > 0.9 * len(rows)


@pytest.mark.parametrize("kind", ["bce", "step_pairs"])
def test_a_stopped_run_resumes_to_the_same_bytes(kind, recipe, stop, results_of, tmp_path):
    settings = recipe("prm", loss={"loss_type": kind}, memory={"max_tokens_per_microbatch": 1})
    error, at = stop
    whole = train(settings, tmp_path / "whole")
    with pytest.raises(error):
        train(settings, tmp_path / "stopped", progress=at(5))
    assert train(settings, tmp_path / "stopped") == whole
    assert results_of(tmp_path / "stopped") == results_of(tmp_path / "whole")
    together = train(recipe("prm", loss={"loss_type": kind}), tmp_path / "together")
    assert together["tokens"] == whole["tokens"], "the budget cuts no trajectory"
    assert together["loss"] == pytest.approx(whole["loss"], rel=1e-4)


def test_rows_of_trl_in_memory_the_file_and_the_command_train_one_model(trajectories, results_of, tmp_path):
    rows = [json.loads(line) for line in trajectories.read_text().splitlines()]
    same = {"max_steps": 2, "per_step": 4, "learning_rate": 3e-3}
    new = {"layers": 2, "hidden": 16}
    memory = longrm.train(
        "prm", new=new, data=datasets.Dataset.from_list(rows), out=tmp_path / "memory", **same
    )
    sets = [f"--set={name}={value}" for name, value in same.items()]
    words = ["train", "prm", "--data", str(trajectories), "--set=new={layers = 2, hidden = 16}", *sets]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "file")], catch_exceptions=False)
    assert done.exit_code == 0
    assert ", accuracy " in done.stdout
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("memory", "file")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "a score after every step" in (memory.path / "model/README.md").read_text()


def test_a_plan_counts_every_token_of_a_trajectory_once(recipe, trained):
    planned = plan_training(recipe("prm", optimizer__max_steps=60), "rtx4090").workload
    assert planned.tokens == pytest.approx(trained[1]["tokens"])
