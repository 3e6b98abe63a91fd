"""Training by reinforcement from end to end: what is sampled, rewarded, logged and learned, and how it resumes."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import groupby, product
from statistics import fmean, stdev

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import longrm
from longrm.data import write as write_comparisons
from longrm.data.joining import Encoded, common_prefix
from longrm.data.training_rows import Example
from longrm.errors import DataError, TrainingError
from longrm.judging import load_format
from longrm.judging.judge_prompts import judge_prompt_rows
from longrm.modeling.group_sampling import GroupSampler
from longrm.modeling.loading import load_language_model
from longrm.modeling.saving import save
from longrm.reward_models.verdict_rewards import VerdictScore
from longrm.rng import seed_of
from longrm.runs.logs import Log
from longrm.runs.records import RolloutRecord
from longrm.synthesis.recipes import judge_prompts
from longrm.training.checkpoints import saved_steps
from longrm.training.objectives import GRPO
from longrm.training.rollouts import (
    RolloutSource,
    advantages,
    advantages_of_batch,
    group_of,
    rejection_sampling,
    rollout_metrics,
)
from longrm.training.settings import RolloutSettings, TrainingSettings
from longrm.training.train import train
from longrm.training.world_judgments import TEMPLATES
from longrm.types import Outcome
from longrm.worlds import WorldPlan, generate, words_tokenizer

from ..reward_models.tiny_models import make_verdict_writer

TOKENIZER = words_tokenizer(verdicts=True)
WEIGHTS = {"correct": 1.0, "format": 0.1, "consistent": 0.3, "brief": 0.05}
GROUP, MOST, STEPS = 3, 5, 4
SPARSE = {"rollouts__reward_weights": {"correct": 1.0}, "rollouts__max_completion_length": 3}


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """The folder of a model that writes verdicts at random."""
    return make_verdict_writer(tmp_path_factory.mktemp("writer") / "model")


@pytest.fixture(scope="module")
def rows():
    """Judge prompts of six comparisons, each in both orders."""
    format = load_format("pairwise", template=TEMPLATES["pairwise"])
    plans = [(WorldPlan("records", length, seed=3), 3) for length in (32, 40)]
    return [
        row
        for plan, count in plans
        for comparison in generate(plan, count, TOKENIZER)
        for row in judge_prompt_rows(comparison, format, tokenizer=TOKENIZER)
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def prompts(rows, tmp_path_factory):
    return write(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", rows)


@pytest.fixture(scope="module")
def settings(writer, prompts):
    """Makes a recipe on the records world, or on the file; `a__b=value` changes one setting."""

    def make(source="world", **changes):
        tree = {
            "objective": "grpo",
            "model.path": str(writer),
            "rollouts": {
                "num_generations": GROUP,
                "max_completion_length": MOST,
                "reward_weights": WEIGHTS,
                "soft_tokens": MOST,
            },
            "optimizer": {"max_steps": STEPS, "learning_rate": 3e-3, "warmup_steps": 0.0},
            "checkpoint.save_steps": 2,
        }
        if source == "world":
            tree |= {
                "data.world": {"tokens_per_step": 80, "responses_per_step": 4},
                "curriculum.lengths": [32, 40],
            }
        else:
            tree |= {"data": {"path": str(prompts), "per_step": 4}}
        return TrainingSettings.resolve(
            None, tree | {name.replace("__", "."): value for name, value in changes.items()}
        )

    return make


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """Runs of the recipes, each trained once."""
    folder, known = tmp_path_factory.mktemp("finished"), {}

    def of(source="world", **changes):
        key = repr((source, changes))
        if key not in known:
            known[key] = folder / str(len(known))
            train(settings(source, **changes), known[key])
        return known[key]

    return of


def rollouts_of(folder):
    return list(Log(folder / "rollouts.jsonl", RolloutRecord))


def by_step(folder):
    return {step: list(own) for step, own in groupby(rollouts_of(folder), key=lambda record: record.step)}


def weights_of(folder):
    (path,) = (folder / "model").glob("*.safetensors")
    return load_file(path)


def distance(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def share_apart(one, other, start):
    """How far two trainings have come apart, over how far they came: Adam enlarges the rounding of small gradients."""
    apart, moved = (
        math.sqrt(sum(float((left[name] - right[name]).square().sum()) for name in one))
        for left, right in ((one, other), (one, start))
    )
    return apart / moved


@pytest.fixture
def contents_of(results_of):
    """All bytes of a run that do not depend on clocks."""
    return lambda folder: {**results_of(folder), "rollouts.jsonl": (folder / "rollouts.jsonl").read_bytes()}


# --- What is sampled and logged --------------------------------------------------------------------------------------


def test_every_prompt_has_a_group_of_judgments_in_both_orders(finished):
    for step, records in by_step(finished()).items():
        assert len(records) == 4
        orders = Counter(record.id.rpartition("#")[0] for record in records)
        assert set(orders.values()) == {2}, step
        assert {record.gold for record in records} == {"A", "B"}
        for record in records:
            assert len(record.tokens) == GROUP
            for tokens, text in zip(record.tokens, record.texts, strict=True):
                assert 1 <= len(tokens) <= MOST
                assert TOKENIZER.eos_id not in tokens[:-1]
                assert text == TOKENIZER.decode([token for token in tokens if token != TOKENIZER.eos_id])
    assert list(by_step(finished())) == [1, 2, 3, 4]


def rewarded(records, weights=WEIGHTS):
    """The rewards of the judgments of a step by `verdict_reward`, called as TRL calls it."""
    reward = longrm.verdict_reward(max_tokens=MOST, soft_tokens=MOST, **weights)
    size = len(records[0].texts)
    flat = [(record, at) for record in records for at in range(size)]
    values = reward(
        [""] * len(flat),
        [record.texts[at] for record, at in flat],
        completion_ids=[record.tokens[at] for record, at in flat],
        gold=[record.gold for record, _ in flat],
        order=[[int(index) for index in record.id.rpartition("#")[2].split("-")] for record, _ in flat],
        id=[record.id.rpartition("#")[0] for record, _ in flat],
        format=["pairwise"] * len(flat),
    )
    return [tuple(values[at : at + size]) for at in range(0, len(flat), size)]


@pytest.mark.parametrize("data", ["world", "file"])
def test_rewards_are_those_of_verdict_reward_on_the_texts_of_the_step(finished, data):
    seen, alone = {name: set() for name in WEIGHTS}, []
    for records in by_step(finished(data)).values():
        assert [record.rewards for record in records] == rewarded(records)
        alone += [rewarded([record]) != [record.rewards] for record in records]
        for record in records:
            for value, terms, outcome in zip(record.rewards, record.terms, record.outcomes, strict=True):
                assert value == pytest.approx(sum(WEIGHTS[name] * term for name, term in terms.items()))
                assert (
                    outcome == "answered" or terms["correct"] == terms["format"] == terms["consistent"] == 0
                )
                for name, term in terms.items():
                    seen[name].add(term)
    assert all(len(seen[name]) > 1 for name in ("correct", "consistent", "brief")), seen
    assert any(alone), "the control: `consistent` needs both orders in one step"


def test_advantages_are_those_of_the_group(finished):
    records = rollouts_of(finished())
    for record in records:
        mean, deviation = fmean(record.rewards), stdev(record.rewards)
        assert record.advantages == pytest.approx([(r - mean) / (deviation + 1e-4) for r in record.rewards])
    assert sum(map(any, (record.advantages for record in records))) > len(records) / 2
    plain = rollouts_of(finished(rollouts__scale_rewards="none"))
    for record in plain:
        assert record.advantages == pytest.approx([r - fmean(record.rewards) for r in record.rewards])


def both_orders(records):
    """The records of a step by comparison."""
    found = {}
    for record in records:
        found.setdefault(record.id.rpartition("#")[0], []).append(record)
    return found.values()


@pytest.mark.parametrize("scale", ["group", "none"])
def test_groups_over_both_orders_compare_all_judgments_of_a_comparison(finished, scale):
    run = finished(rollouts__group_by="comparison", rollouts__scale_rewards=scale)
    differs = 0
    for records in by_step(run).values():
        for orders in both_orders(records):
            rewards = [value for record in orders for value in record.rewards]
            assert len(rewards) == 2 * GROUP
            deviation = stdev(rewards) + 1e-4 if scale == "group" and len(set(rewards)) > 1 else 1.0
            for record in orders:
                expected = [(reward - fmean(rewards)) / deviation for reward in record.rewards]
                assert record.advantages == pytest.approx(expected)
                differs += abs(sum(record.advantages)) > 1e-6
    assert differs, "the control: the means of the prompts differ"


def test_rejection_sampling_learns_right_judgments_of_all_orders_equally(finished):
    changes = {
        "rollouts__advantage_estimator": "rft",
        "rollouts__reward_weights": {"correct": 0.1, "format": 1.0},
        "rollouts__max_completion_length": 1,
    }
    counts = Counter()
    for group_by in ("prompt", "comparison"):
        run = finished("file", rollouts__group_by=group_by, rollouts__num_generations=6, **changes)
        for records in by_step(run).values():
            for orders in (
                both_orders(records) if group_by == "comparison" else [[record] for record in records]
            ):
                right = [[own["correct"] == 1.0 for own in record.terms] for record in orders]
                learned = all(any(own) for own in right) and not all(all(own) for own in right)
                counts[group_by, learned] += 1
                for record, own in zip(orders, right, strict=True):
                    most = max(
                        (reward for reward, one in zip(record.rewards, own, strict=True) if one), default=0
                    )
                    best = [one and reward == most for reward, one in zip(record.rewards, own, strict=True)]
                    expected = [6 / sum(best) if one and learned else 0.0 for one in best]
                    assert record.advantages == pytest.approx(expected)
    assert len(counts) == 4, "some groups are learned and some are not"


JUDGES = {  # the rewards of four judgments in the order in which A is right, and in the other
    "always A": ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)),
    "mostly A": ((1.0, 1.0, 1.0, 0.0), (0.0, 1.0, 0.0, 0.0)),
    "never B": ((1.0, 1.0, 1.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    "right": ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)),
    "mostly right": ((1.0, 1.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0)),
}


def advantages_of(judge, **changes):
    """Of one comparison in both orders; the prompts of another one, of which all judgments are wrong, are between."""
    rewards = [*JUDGES[judge][:1], (0.0,) * 4, *JUDGES[judge][1:], (0.0,) * 4]
    names = ("one#0-1", "other#0-1", "one#1-0", "other#1-0")
    prompts = [
        Example(
            name, Encoded((1,), ()), (), "", judge={"format": "pairwise", "order": [*map(int, name[-3::2])]}
        )
        for name in names
    ]
    scores = [[VerdictScore(one, {"correct": one}, Outcome.ANSWERED, "") for one in own] for own in rewards]
    found = advantages_of_batch(prompts, scores, RolloutSettings(**changes))
    assert found[1] == found[3] == [0.0] * 4
    return found[0], found[2]


def test_a_judge_that_always_names_the_first_response_learns_only_from_both_orders():
    assert advantages_of("always A") == ([0.0] * 4, [0.0] * 4), "there is nothing to learn from one order"
    first, second = advantages_of("always A", group_by="comparison")
    assert all(value > 0.9 for value in first)
    assert all(value < -0.9 for value in second)
    first, second = advantages_of("mostly A", group_by="comparison", scale_rewards="none")
    assert (first, second) == ([0.5, 0.5, 0.5, -0.5], [-0.5, 0.5, -0.5, -0.5])


def test_rejection_sampling_gives_both_orders_the_same_weight():
    rft = {"advantage_estimator": "rft"}
    assert advantages_of("mostly A", **rft) == ([4 / 3, 4 / 3, 4 / 3, 0], [0, 4, 0, 0])
    assert advantages_of("always A", **rft) == ([0] * 4, [0] * 4)
    assert advantages_of("never B", **rft) == ([0] * 4, [0] * 4)
    by_prompt = advantages_of("never B", group_by="prompt", **rft)
    assert by_prompt == ([4 / 3, 4 / 3, 4 / 3, 0], [0] * 4), "the control: it would learn the bias"
    assert advantages_of("right", **rft) == ([0] * 4, [0] * 4), "nothing is left to learn"


def test_rejection_sampling_imitates_the_best_form_among_right_judgments():
    def score(right, form):
        return VerdictScore(right + 0.1 * form, {"correct": right, "format": form}, Outcome.ANSWERED, "")

    one = [score(1.0, 1.0), score(1.0, 0.0), score(1.0, 1.0), score(0.0, 1.0)]
    other = [score(1.0, 0.0), score(0.0, 1.0), score(0.0, 0.0), score(0.0, 1.0)]
    assert rejection_sampling([one, other]) == [[2, 0, 2, 0], [4, 0, 0, 0]]


def test_the_bias_of_a_judge_that_reads_nothing_returns_only_by_rejection_sampling():
    """Such a judge names the first response with probability p, in whichever order: expected gradients of its logit."""

    def gradient(p, **changes):
        rollouts = RolloutSettings(scale_rewards="none", **changes)
        prompts = [
            Example(f"x#{a}-{b}", Encoded((1,), ()), (), "", judge={"format": "pairwise", "order": [a, b]})
            for a, b in ((0, 1), (1, 0))
        ]
        total = 0.0
        for drawn in product(
            (True, False), repeat=8
        ):  # whether each of four judgments of two orders names the first
            chance = math.prod(p if first else 1 - p for first in drawn)
            scores = [
                [
                    VerdictScore(
                        float(first == gold), {"correct": float(first == gold)}, Outcome.ANSWERED, ""
                    )
                    for first in own
                ]
                for own, gold in ((drawn[:4], True), (drawn[4:], False))
            ]
            weights = [one for own in advantages_of_batch(prompts, scores, rollouts) for one in own]
            # d log p(verdict) / d logit
            total += chance * sum(
                weight * ((1 - p) if first else -p) for weight, first in zip(weights, drawn, strict=True)
            )
        return total

    for p in (0.7, 0.9):
        assert gradient(p, group_by="prompt") == pytest.approx(0, abs=1e-12)
        assert gradient(p, group_by="comparison") == pytest.approx(0, abs=1e-12)
        assert gradient(p, advantage_estimator="rft") < -0.1, "towards one half"
        assert gradient(1 - p, advantage_estimator="rft") > 0.1


def test_pairs_of_a_larger_comparison_formats_and_single_responses_are_groups_of_their_own():
    names = {
        "pairwise": [(0, 1), (1, 0), (0, 2), (2, 0)],
        "listwise": [(0, 1, 2), (2, 1, 0)],
        "pointwise": [(0,), (1,)],
    }
    prompts = [
        Example(f"x#{form}{order}", Encoded((1,), ()), (), "", judge={"format": form, "order": order})
        for form, orders in names.items()
        for order in orders
    ]
    groups = [*map(group_of, prompts)]
    assert [groups.index(own) for own in groups] == [0, 0, 2, 2, 4, 4, 6, 7]
    prompts[1] = replace(prompts[1], id="y" + prompts[1].id)
    assert group_of(prompts[1]) not in groups


def test_a_comparison_with_one_order_is_named(settings, rows, tmp_path, caplog):
    recipe = settings(
        "file", data__path=str(write(tmp_path / "rows.jsonl", rows[:3])), optimizer__max_steps=1
    )
    for group_by, warnings in (("prompt", 0), ("comparison", 1)):
        caplog.clear()
        rollouts = recipe.rollouts.model_copy(update={"group_by": group_by})
        train(recipe.model_copy(update={"rollouts": rollouts}), tmp_path / group_by)
        assert sum("1 pairs" in record.message for record in caplog.records) == warnings


@pytest.mark.parametrize("value", [0.0, 0.1, 1.1, 1 / 3])
def test_equal_rewards_have_no_advantage_at_all(value):
    for scale in (True, False):
        assert advantages([value] * 7, scale=scale) == [0.0] * 7
    assert any(advantages([value] * 6 + [value + 1e-9], scale=True))


def test_metrics_of_a_step_are_means_over_its_judgments(finished, steps_of):
    groups = by_step(finished())
    for step in steps_of(finished()):
        records = groups[step.step]
        terms = [own for record in records for own in record.terms]
        expected = {
            "reward": fmean(value for record in records for value in record.rewards),
            "format": fmean(own["format"] for own in terms),
            "consistent": fmean(own["consistent"] for own in terms),
            "brief": fmean(own["brief"] for own in terms),
            "unparsed": fmean(outcome == "unparsed" for record in records for outcome in record.outcomes),
            "constant_groups": fmean(len({*record.rewards}) == 1 for record in records),
            "entropy": fmean(value for record in records for value in record.entropies),
            "judgment_tokens": fmean(len(tokens) for record in records for tokens in record.tokens),
            "clipped": 0.0,
        }
        verdicts = Counter(verdict for record in records for verdict in record.verdicts)
        if verdicts["A"] + verdicts["B"]:
            expected["first_share"] = verdicts["A"] / (verdicts["A"] + verdicts["B"])
        assert step.losses == pytest.approx(expected)
        assert step.accuracy == pytest.approx(fmean(own["correct"] for own in terms))
        assert step.length == max(record.length for record in records)


def test_a_term_is_a_mean_over_the_judgments_to_which_it_applies():
    record = RolloutRecord(
        1, "x#0", "1", 9, ((1,), (2, 3)), ("", ""), ("answered", "unparsed"), (0.0, 1.0), (0.0, 0.0),
        ({"correct": 1.0}, {"format": 0.5}), (1.0, 2.0),
    )  # fmt: skip
    other = replace(record, advantages=(1.0, -1.0), terms=({"format": 0.0}, {}))
    assert rollout_metrics([record, other], ["correct", "format"]) == {
        "reward": 0.5, "accuracy": 1.0, "format": 0.25, "unparsed": 0.5, "constant_groups": 0.5, "entropy": 1.5,
        "judgment_tokens": 1.5, "omitted_correct": 3.0, "omitted_format": 2.0,
    }  # fmt: skip


def test_the_share_of_verdicts_for_the_first_response_is_that_of_pairs():
    record = RolloutRecord(
        1, "x#0-1", "A", 9, ((1,),) * 4, ("",) * 4, ("answered",) * 4, (0.0,) * 4, (0.0,) * 4, ({},) * 4, (1.0,) * 4,
        verdicts=("A", "B", "A", "C"),
    )  # fmt: skip
    listwise = replace(record, verdicts=("A > B", "A > B > C", "A = B", ""))
    assert rollout_metrics([record, listwise], [])["first_share"] == 3 / 4
    assert "first_share" not in rollout_metrics([replace(record, verdicts=("7", "", "C", "1"))], [])


def test_a_metric_out_of_range_is_named_once_for_every_stretch(settings, monkeypatch, tmp_path, caplog):
    shares = [0.9] * 5 + [0.4] * 10 + [0.95] * 12 + [0.5] * 12 + [0.12] * 12
    values, metrics_of = iter(shares), rollout_metrics
    monkeypatch.setattr(
        "longrm.training.rollouts.rollout_metrics",
        lambda *given: metrics_of(*given) | {"first_share": next(values), "unparsed": 0.3},
    )
    train(settings(optimizer__max_steps=len(shares), **SPARSE), tmp_path / "run")
    named = [record.getMessage() for record in caplog.records if "first response" in record.getMessage()]
    assert [text.partition(":")[0] for text in named] == ["steps 12 to 21", "steps 36 to 45"]


# --- The weights that sample, and those that are compared with -------------------------------------------------------


def prompt_of(record, rows):
    name, _, order = record.id.rpartition("#")
    (row,) = (row for row in rows if row["id"] == name and "-".join(map(str, row["order"])) == order)
    return TOKENIZER.generation_ids(row["prompt"])


def sampled(folder, state, seed, step, records, rows):
    """What the group sampler draws with these weights."""
    model = load_language_model(folder, packed=True).model
    model.load_state_dict(state, strict=False)
    sampler = GroupSampler(model, {TOKENIZER.eos_id})
    return [
        tuple(
            sample.tokens
            for sample in sampler.sample(
                prompt_of(record, rows),
                [seed_of("rollout", seed, step - 1, record.id, number) for number in range(GROUP)],
                temperature=1.0,
                top_p=1.0,
                max_tokens=MOST,
            )
        )
        for record in records
    ]


def test_judgments_are_sampled_with_the_weights_after_the_step_before(
    finished, settings, writer, rows, stored_weights
):
    run = finished("file", checkpoint__save_steps=1)
    assert saved_steps(run) == [3, 4]
    groups, seed = by_step(run), settings("file").seed
    found = {step: [record.tokens for record in groups[step]] for step in (1, 4)}
    assert sampled(writer, {}, seed, 1, groups[1], rows) == found[1]
    state = stored_weights(run / "checkpoints/3")
    assert sampled(writer, state, seed, 4, groups[4], rows) == found[4]
    assert sampled(writer, {}, seed, 4, groups[4], rows) != found[4], "the control: the weights of the start"
    assert sampled(writer, state, seed + 1, 4, groups[4], rows) != found[4], "and another seed"


def plain_logprobs(model, record, rows, temperature):
    """By transformers' own forward passes, one sequence at a time."""
    prompt, found = prompt_of(record, rows), []
    for tokens in record.tokens:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        found += (
            (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        )
    return torch.tensor(found)


def flat(values):
    return torch.tensor([value for own in values for value in own])


KL = {"loss__beta": 0.2, "rollouts__temperature": 0.7, "rollouts__num_iterations": 2}
LORA = {"model__lora": {"r": 2, "lora_alpha": 4.0}}


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_old_and_reference_logprobs_are_those_of_a_plain_forward(
    finished, writer, rows, steps_of, changes, stored_weights
):
    run = finished("file", **KL, **changes)
    start = AutoModelForCausalLM.from_pretrained(writer)
    groups = by_step(run)
    assert list(groups) == [1, 3], "two steps have the same judgments"
    for step, records in groups.items():
        policy = AutoModelForCausalLM.from_pretrained(writer)
        if step > 1 and not changes:
            policy.load_state_dict(stored_weights(run / "checkpoints/2"), strict=False)
        for record in records:
            reference, old = flat(record.reference_logprobs), flat(record.old_logprobs)
            truth = plain_logprobs(start, record, rows, 0.7)
            torch.testing.assert_close(reference, truth, rtol=0, atol=1e-5)
            if step == 1 or not changes:
                current = plain_logprobs(policy, record, rows, 0.7)
                torch.testing.assert_close(old, current, rtol=0, atol=1e-5)
            assert (float((old - reference).abs().max()) > 1e-3) == (step > 1)
            assert float((plain_logprobs(start, record, rows, 1.0) - reference).abs().max()) > 1e-3
    divergences = [step.losses["kl"] for step in steps_of(run)]
    assert divergences[0] == pytest.approx(0.0, abs=1e-6)
    assert all(value > 1e-5 for value in divergences[1:])


def test_both_orders_are_read_and_written_together(settings, rows, monkeypatch, tmp_path, steps_of):
    """In sampling, for the old and the reference log-probabilities, and in the update."""
    written, packed = [], []
    write, pack = GroupSampler.write, longrm.modeling.shared_prefix.pack

    def noted(self, continuations):
        written.append(Counter(tuple(one.prompt) for one in continuations))
        return write(self, continuations)

    def noted_pack(trees):
        packed.append([len(tree.shape.leaves) for tree in trees])
        return pack(trees)

    monkeypatch.setattr(GroupSampler, "write", noted)
    monkeypatch.setattr("longrm.training.rollouts.pack", noted_pack)
    # Less than two prompts have together, more than one tree of both.
    budget = {"memory__max_tokens_per_microbatch": 95}
    train(settings("file", **KL, **budget), tmp_path / "run")
    assert [sorted(own.values()) for own in written] == [[GROUP, GROUP]] * 4
    assert packed == [[2 * GROUP]] * 8
    for step, records in by_step(tmp_path / "run").items():
        tokens = 0
        for one, other in both_orders(records):
            prompts = prompt_of(one, rows), prompt_of(other, rows)
            tokens += sum(map(len, [*prompts, *one.tokens, *other.tokens])) - common_prefix(*prompts)
        assert steps_of(tmp_path / "run")[step - 1].tokens == tokens


def test_adapters_alone_are_trained_and_the_base_is_left_as_it_was(finished, stored_weights):
    state = stored_weights(finished("file", **KL, **LORA) / "checkpoints/4")
    assert state
    assert all("lora" in name for name in state)
    assert all(float(value.abs().max()) > 0 for value in state.values()), "also those that begin at zero"


# --- What is learned -------------------------------------------------------------------------------------------------


def test_rewards_rise(finished, steps_of):
    """Judgments that end at once are rewarded: the easiest thing to learn."""
    changes = {
        "rollouts__reward_weights": {"brief": 1.0},
        "optimizer__max_steps": 12,
        "rollouts__num_generations": 6,
    }
    rewards = [step.losses["reward"] for step in steps_of(finished(optimizer__learning_rate=1e-2, **changes))]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.15


def test_groups_of_equal_rewards_change_nothing(finished, settings, steps_of, writer, tmp_path, monkeypatch):
    run = finished("file", **SPARSE)
    shares = [step.losses["constant_groups"] for step in steps_of(run)]
    assert 0 < fmean(shares) < 1
    monkeypatch.setattr(GRPO, "learns", lambda self, example: True)
    train(settings("file", **SPARSE), tmp_path / "all")
    for found, other in zip(steps_of(run), steps_of(tmp_path / "all"), strict=True):
        assert found.loss == pytest.approx(other.loss, abs=1e-6)
        assert found.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
        assert found.tokens <= other.tokens
    assert sum(step.tokens for step in steps_of(run)) < sum(
        step.tokens for step in steps_of(tmp_path / "all")
    )
    start = load_file(writer / "model.safetensors")
    assert share_apart(weights_of(run), weights_of(tmp_path / "all"), start) < 2e-3
    assert [one.tokens for one in rollouts_of(run)] == [one.tokens for one in rollouts_of(tmp_path / "all")]


@pytest.mark.parametrize("group_by", ["prompt", "comparison"])
def test_constant_groups_are_replaced_by_those_of_further_batches(
    finished, settings, steps_of, monkeypatch, tmp_path, group_by
):
    most = {"prompt": 1, "comparison": 3}[group_by]
    changes = SPARSE | {"rollouts__max_completion_length": most, "rollouts__group_by": group_by}
    read, batch = [], RolloutSource.batch

    def noted(*arguments):
        given = batch(*arguments)
        read.append({example.id for example in given})
        return given

    monkeypatch.setattr(RolloutSource, "batch", noted)
    train(settings("file", **changes, rollouts__max_num_gen_batches=3), tmp_path / "run")
    replaced = lengths = 0
    first = by_step(finished("file", **changes))[1]
    assert by_step(tmp_path / "run")[1][: len(first)] == first, "the first batch is the same"
    for step, records in zip(steps_of(tmp_path / "run"), by_step(tmp_path / "run").values(), strict=True):
        assert len({record.id for record in records}) == len(records) <= 12
        groups = [[record] for record in records] if group_by == "prompt" else [*both_orders(records)]
        useful = [own for own in groups if any(any(record.advantages) for record in own)]
        constant = [own for own in groups if own not in useful]
        kept = {record.id for record in [record for own in [*useful, *constant] for record in own][:4]}
        assert read[step.step - 1] == kept
        begun = [own for own in groups if own[0] in records[:4]]
        assert step.losses["replaced_groups"] == fmean(own[0].id not in kept for own in begun)
        assert step.losses["constant_groups"] == fmean(not any(record.advantages) for record in records)
        replaced += step.losses["replaced_groups"]
        lengths += len(records) > 4
        # No batch is read without need: what came before the last one did not suffice.
        before = [own for own in useful if own[0] in records[:-4]]
        assert len(records) == 4 or sum(map(len, before)) < 4
    assert replaced
    assert lengths


def test_a_step_of_equal_rewards_alone_moves_no_weight(finished, writer, steps_of):
    """No verdict has the right form within one token."""
    changes = {"rollouts__reward_weights": {"format": 1.0}, "rollouts__max_completion_length": 1}
    run = finished(rollouts__max_num_gen_batches=2, **changes)
    assert {len(records) for records in by_step(run).values()} == {8}, "others are not better"
    assert [(step.grad_norm, step.losses["constant_groups"]) for step in steps_of(run)] == [
        (0.0, 1.0)
    ] * STEPS
    assert distance(weights_of(run), load_file(writer / "model.safetensors")) == 0
    assert distance(weights_of(finished()), load_file(writer / "model.safetensors")) > 1e-3


def test_several_micro_batches_equal_one(finished, writer):
    one = finished("file", loss__loss_type="dapo", **KL)
    several = finished("file", loss__loss_type="dapo", memory__max_tokens_per_microbatch=70, **KL)
    assert [record.tokens for record in rollouts_of(one)] == [
        record.tokens for record in rollouts_of(several)
    ]
    start = load_file(writer / "model.safetensors")
    assert share_apart(weights_of(one), weights_of(several), start) < 2e-3
    assert share_apart(weights_of(one), weights_of(finished("file", **KL)), start) > 0.2


def test_checkpointed_layers_change_only_rounding(finished):
    plain, saving = finished(), finished(memory__gradient_checkpointing=True)
    assert [record.tokens for record in rollouts_of(plain)] == [
        record.tokens for record in rollouts_of(saving)
    ]
    assert distance(weights_of(plain), weights_of(saving)) < 1e-4


def test_bfloat16_trains(finished, steps_of):
    run = finished(model__bf16=True, loss__beta=0.1)
    assert all(math.isfinite(step.grad_norm) and step.grad_norm > 0 for step in steps_of(run))
    assert abs(steps_of(run)[0].losses["kl"]) < 1e-3


@pytest.mark.parametrize("changes", [{"rollouts__temperature": 1e-3}, {"rollouts__top_p": 1e-6}])
def test_temperature_and_top_p_reach_the_sampling(finished, changes):
    for record in rollouts_of(finished(optimizer__max_steps=1, **changes)):
        assert len(set(record.tokens)) == 1
    assert all(len(set(record.tokens)) > 1 for record in rollouts_of(finished()))


# --- Which prompts a step reads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 2])
def test_an_epoch_reads_every_comparison_once_in_both_orders(finished, rows, steps_of, iterations):
    run = finished(
        "file", rollouts__num_iterations=iterations, optimizer__max_steps=None, optimizer__num_train_epochs=2
    )
    assert len(steps_of(run)) == 2 * 3 * iterations
    groups = [[record.id for record in records] for records in by_step(run).values()]
    expected = sorted(f"{row['id']}#{row['order'][0]}-{row['order'][1]}" for row in rows)
    for epoch in (groups[:3], groups[3:]):
        assert sorted(name for names in epoch for name in names) == expected
    for names in groups:
        assert set(Counter(name.rpartition("#")[0] for name in names).values()) == {2}


def test_prompts_of_pairs_in_several_formats_train(settings, tmp_path):
    """Listwise prompts of pairs have the orders of pairwise ones."""
    write_comparisons(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 32), 2, TOKENIZER))
    recipe = {"source": str(tmp_path / "pairs.jsonl"), "formats": ["pairwise", "listwise", "pointwise"]}
    judge_prompts.synthesize(judge_prompts.RECIPE.resolve(None, recipe), tmp_path / "prompts")
    data = {"path": str(tmp_path / "prompts"), "per_step": 6}
    train(settings("file", data=data, optimizer__max_steps=2), tmp_path / "run")
    ids = [record.id for record in rollouts_of(tmp_path / "run")]
    forms = Counter(name.rpartition("#")[2] for name in ids)
    assert forms == dict.fromkeys(
        ("0-1", "1-0", "listwise-0-1", "listwise-1-0", "pointwise-0", "pointwise-1"), 2
    )
    assert len({name.rpartition("#")[0] for name in ids}) == 2


def test_iterations_keep_the_length_of_their_first_step(finished, steps_of):
    """The curriculum goes on to the second length after the first step."""
    changes = {"curriculum__ramp": 0.25, "rollouts__num_iterations": 2, "loss__beta": 0.1}
    lengths = [step.length for step in steps_of(finished(**changes))]
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3]
    alone = [step.length for step in steps_of(finished(**changes | {"rollouts__num_iterations": 1}))]
    assert alone[0] < alone[1], "the control"


def test_equal_ids_in_two_files_are_two_comparisons(settings, rows, tmp_path):
    """`consistent` compares the orders of one comparison, never those of another file."""
    names = sorted({row["id"] for row in rows})
    moved = {name: names[(at + 1) % len(names)] for at, name in enumerate(names)}
    files = [
        write(tmp_path / "a.jsonl", rows),
        write(tmp_path / "b.jsonl", [row | {"id": moved[row["id"]]} for row in rows]),
    ]
    weights = {"correct": 1.0, "consistent": 0.3}
    rollouts = {
        "rollouts__reward_weights": weights,
        "rollouts__max_completion_length": 1,  # one token is often a verdict
        "rollouts__num_generations": 16,  # enough judgments for the control, whatever a processor samples
    }
    data = {"sources": [{"path": str(path)} for path in files], "per_step": 24}
    train(settings("file", data=data, optimizer__max_steps=1, **rollouts), tmp_path / "run")
    records = rollouts_of(tmp_path / "run")
    assert len({record.id for record in records}) == 24
    assert [record.rewards for record in records] == rewarded(records, weights)
    mixed = rewarded([replace(record, id=record.id.rpartition("/")[2]) for record in records], weights)
    assert [record.rewards for record in records] != mixed, "the control"


# --- Stopping and resuming -------------------------------------------------------------------------------------------


def progress_that_stops(error, label, number):
    """Raises at a progress report with a label, by its number from 1; counts those of sampling."""
    seen = Counter()

    def progress(what, done, total, note=""):
        seen[what] += 1
        if (what, seen[what]) == (label, number):
            raise error

    return progress, seen


BEGUN = {
    "both orders, replaced": (
        "world",
        {
            "rollouts__group_by": "comparison",
            "rollouts__max_num_gen_batches": 2,
            "rollouts__scale_rewards": "none",
        },
    ),
    "iterations, kl": (
        "world",
        {"loss__beta": 0.1, "rollouts__num_iterations": 3, "optimizer__max_steps": 6},
    ),
    "adapters, iterations, kl": ("file", KL | LORA),
}


def cut(log, drop):
    """Removes the last records, and half of the one before."""
    lines = log.read_bytes().splitlines(keepends=True)
    kept = lines[: len(lines) - drop]
    log.write_bytes(b"".join(kept)[: -len(kept[-1]) // 2])


def interrupted(error, calls):
    """A loss that raises after so many calls."""
    loss, left = GRPO.loss, iter(range(calls))

    def until(self, model, micro):
        if next(left, None) is None:
            raise error
        return loss(self, model, micro)

    return until


MOMENTS = {  # a label of progress and the number of its report, or calls of the loss
    "sampling": ("sampling", 3),
    "half logged": ("training", 4),
    "update": ("loss", 3),
    "between steps": ("training", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", BEGUN)
def test_a_stopped_run_resumes_to_the_same_bytes(
    tmp_path, finished, settings, stop, contents_of, monkeypatch, name, moment
):
    (data, changes), (label, number), (error, _) = BEGUN[name], MOMENTS[moment], stop
    whole, recipe = finished(data, **changes), settings(data, **changes)
    progress, _ = progress_that_stops(error, label, number)
    with monkeypatch.context() as patched:
        if label == "loss":
            patched.setattr(GRPO, "loss", interrupted(error, number))
        with pytest.raises(error):
            train(recipe, tmp_path / "run", progress=progress)
    if moment == "half logged":
        cut(tmp_path / "run" / "rollouts.jsonl", 1)
    train(recipe, tmp_path / "run")
    assert contents_of(tmp_path / "run") == contents_of(whole)


def test_a_run_between_iterations_uses_the_judgments_in_its_log(
    tmp_path, settings, finished, stop, contents_of
):
    """Its weights have changed since, so others would be sampled."""
    changes = {"rollouts__num_iterations": 4, "checkpoint__save_steps": 1}
    recipe, whole, (error, at) = settings(**changes), finished(**changes), stop
    with pytest.raises(error):
        train(recipe, tmp_path / "run", progress=at(4))
    assert saved_steps(tmp_path / "run") == [2, 3]
    other = tmp_path / "other"
    other.mkdir()
    for path in (tmp_path / "run").rglob("*"):
        target = other / path.relative_to(tmp_path / "run")
        target.mkdir(parents=True, exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    progress, seen = progress_that_stops(error, "", 0)
    train(recipe, tmp_path / "run", progress=progress)
    assert not seen["sampling"]
    assert contents_of(tmp_path / "run") == contents_of(whole)

    log = other / "rollouts.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0]["advantages"] = [-value for value in lines[0]["advantages"]]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    train(recipe, other)
    assert distance(weights_of(other), weights_of(whole)) > 1e-4, "the control: the log is what counts"


def test_a_comparison_that_a_step_reads_twice_resumes_to_the_same_bytes(
    tmp_path, settings, prompts, stop, contents_of
):
    data = {"sources": [{"path": str(prompts), "weight": 2.0}], "per_step": 24}
    recipe = settings(
        "file", data=data, rollouts__num_iterations=2, optimizer__max_steps=2, checkpoint__save_steps=1
    )
    error, at = stop
    train(recipe, tmp_path / "whole")
    assert len(rollouts_of(tmp_path / "whole")) == 24
    assert len({record.id for record in rollouts_of(tmp_path / "whole")}) == 12
    with pytest.raises(error):
        train(recipe, tmp_path / "run", progress=at(2))
    train(recipe, tmp_path / "run")
    assert contents_of(tmp_path / "run") == contents_of(tmp_path / "whole")


# --- What cannot be trained on ---------------------------------------------------------------------------------------


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


BAD_ROWS = {
    "no gold": (lambda row: without(row, "gold"), "gold"),
    "no order": (lambda row: without(row, "order"), "order"),
    "no id": (lambda row: without(row, "id"), "id"),
    "no format": (lambda row: without(row, "format"), "format"),
    "a preference": (lambda row: {"prompt": "a", "chosen": "b", "rejected": "c"}, "gold"),
    "an order that is no list": (lambda row: row | {"order": 1}, "order"),
    "an order of texts": (lambda row: row | {"order": ["0", "1"]}, "order"),
    "an empty order": (lambda row: row | {"order": []}, "order"),
    "an empty prompt": (lambda row: row | {"prompt": []}, "prompt"),
    "a gold that is no verdict": (lambda row: row | {"gold": "first"}, "gold"),
    "an unknown format": (lambda row: row | {"format": "pairwize"}, "format"),
    "a gold that is no rank": (lambda row: row | {"format": "pointwise", "gold": "best"}, ""),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_stops_before_any_work_and_is_named(settings, rows, tmp_path, name):
    change, field = BAD_ROWS[name]
    path = write(tmp_path / "rows.jsonl", [*rows[:2], change(rows[2])])
    with pytest.raises(DataError) as raised:
        train(settings("file", data__path=str(path)), tmp_path / "run")
    message = str(raised.value)
    assert str(path) in message
    assert field in message
    assert "line 3" in message or rows[2]["id"] in message
    assert not list((tmp_path / "run").glob("*s.jsonl")), "no log was begun"


def test_bad_rows_can_be_skipped_and_are_counted(settings, rows, tmp_path):
    path = write(tmp_path / "rows.jsonl", [*rows[:4], without(rows[4], "gold"), rows[5]])
    recipe = settings("file", data={"path": str(path), "on_bad_row": "skip"}, optimizer__max_steps=1)
    summary = train(recipe, tmp_path / "run")
    assert (summary["data"]["read"], summary["data"]["used"], summary["data"]["bad"]) == (6, 5, 1)


@pytest.fixture
def changed_writer(writer, tmp_path):
    """Saves the writer after a change of the model."""
    numbers = iter(range(9))

    def make(change):
        folder = tmp_path / f"changed-{next(numbers)}"
        language_model = load_language_model(writer, packed=True)
        change(language_model.model)
        save(language_model, folder)
        return str(folder)

    return make


@pytest.mark.parametrize("data", ["world", "file"])
def test_a_prompt_and_its_judgment_must_fit_into_the_window(
    settings, finished, changed_writer, tmp_path, data
):
    longest = max(record.length for record in rollouts_of(finished(data)))
    for spare, fits in ((0, True), (-1, False)):
        window = {"max_position_embeddings": longest + MOST + spare}
        recipe = settings(data, model__path=changed_writer(lambda model: model.config.update(window)))  # noqa: B023
        if fits:
            train(recipe, tmp_path / "fits")
            continue
        with pytest.raises(DataError, match="max_completion_length"):
            train(recipe, tmp_path / "run")
        if data == "file":
            assert not (tmp_path / "run/rollouts.jsonl").exists()
            skipping = recipe.model_copy(update={"data": recipe.data.model_copy(update={"too_long": "skip"})})
            assert train(skipping, tmp_path / "skipping")["data"]["too_long"] > 0


def test_logits_that_are_not_finite_stop_with_the_step_and_the_prompt(settings, changed_writer, tmp_path):
    def spoil(model):
        model.get_input_embeddings().weight.data[TOKENIZER.encode("Question")] = math.nan

    with pytest.raises(TrainingError, match=r"step 1.*records-32-.*learning_rate"):
        train(settings(model__path=changed_writer(spoil)), tmp_path / "run")
