"""On the same rollouts, the loss and all gradients of GRPO equal those of TRL's GRPOTrainer, over two inner iterations.

TRL gets the rollouts and rewards by its `rollout_func` and `reward_funcs`, and computes advantages, old and reference
log-probabilities, and the loss itself, over padded sequences. Ours come from `RolloutSource` and `Batches`, over shared
prefixes. Both compute in fp32.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import trl
from torch import Tensor

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.modeling.group_sampling import Sample
from longrm.modeling.loading import LanguageModel
from longrm.modeling.shared_prefix import Packed
from longrm.reward_models.verdict_rewards import VerdictScore
from longrm.rng import Rng
from longrm.runs.progress import no_progress
from longrm.training.batches import Batches, MicroBatch
from longrm.training.objectives import GRPO
from longrm.training.rollouts import RolloutSource
from longrm.training.settings import RolloutSettings, TrainingSettings
from longrm.types import Outcome

from .conftest import TOLERANCE, VOCABULARY, assert_equal_but_for_faults, deviation, gradients, twins

END, MOST = 2, 14
LENGTHS = [(3, MOST, 1, 8), (MOST, 2, 5, MOST), (6, 4, MOST, 9)]  # those of MOST tokens were cut
REWARDS = [(1.1, 0.0, 0.1, 1.0), (0.1, 0.1, 0.1, 0.1), (0.0, 1.1, 1.1, 0.3)]  # one group is constant
GROUP, RATE = 4, 0.5  # the rate of the step between the iterations, after which some ratios are clipped

rng = Rng("rollouts")


def ids(count: int) -> list[int]:
    return [4 + rng.below(VOCABULARY - 4) for _ in range(count)]


DOCUMENT = ids(60)
PROMPTS = [[*DOCUMENT, *ids(21)], [*DOCUMENT, *ids(9)], ids(43)]
COMPLETIONS = [
    [tuple(ids(length) if length == MOST else [*ids(length - 1), END]) for length in own] for own in LENGTHS
]


@dataclass
class Case:
    """Settings of both, by our names."""

    loss: str
    beta: float
    temperature: float = 1.0
    scale: str = "group"
    epsilon_high: float | None = None
    kv_heads: int = 4

    def settings(self, **memory: int) -> TrainingSettings:
        loss = {"loss_type": self.loss, "beta": self.beta, "epsilon_high": self.epsilon_high}
        return TrainingSettings.model_validate(
            {
                "objective": "grpo",
                "model": {"new": {}},
                "data": {"path": "unused"},
                "loss": {name: value for name, value in loss.items() if value is not None},
                "rollouts": {
                    "num_generations": GROUP,
                    "temperature": self.temperature,
                    "scale_rewards": self.scale,
                    "max_completion_length": MOST,
                    "num_iterations": 2,
                },
                "memory": memory,
            }
        )


CASES = {
    f"{loss}, {name}, beta {beta}": Case(loss, beta, **others)
    for loss in ("grpo", "dr_grpo", "dapo")
    for name, others in {
        "plain": {},
        "other": {"temperature": 0.7, "scale": "none", "epsilon_high": 0.28, "kv_heads": 2},
    }.items()
    for beta in (0.0, 0.2)
}


def theirs(
    case: Case, stock: Any, reference: Any, tokenizer: Any, folder: Path
) -> tuple[Any, dict[str, Any]]:
    """A trainer of TRL, and the batch that it makes of the rollouts."""
    reference.save_pretrained(folder / "reference")
    stock.config._name_or_path = str(folder / "reference")  # where TRL loads its reference from

    def rollout(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [prompt for prompt in PROMPTS for _ in range(GROUP)],
            "completion_ids": [list(one) for own in COMPLETIONS for one in own],
            "logprobs": None,
        }

    trainer = trl.GRPOTrainer(
        stock,
        lambda completions, **_: [reward for own in REWARDS for reward in own],
        trl.GRPOConfig(
            str(folder),
            bf16=False,
            activation_checkpointing=False,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            loss_type=case.loss,
            beta=case.beta,
            temperature=case.temperature,
            scale_rewards=case.scale,
            epsilon_high=case.epsilon_high,
            num_generations=GROUP,
            per_device_train_batch_size=GROUP * len(PROMPTS),
            max_completion_length=MOST,
            num_iterations=2,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "w1"}]),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # as `train` sets it
    return trainer, trainer._generate_and_score_completions([{"prompt": "w1"}] * GROUP * len(PROMPTS))


class Prompts:
    """A source of judge prompts."""

    def batch(self, step: int, length: int | None) -> list[Example]:
        return [
            Example(
                str(number),
                Encoded(prompt, ()),
                (),
                "",
                judge={"gold": "A", "id": str(number), "format": "pairwise", "order": [0, 1]},
            )
            for number, prompt in enumerate(PROMPTS)
        ]


class Rewards:
    """In the place of `VerdictReward`."""

    weights: Mapping[str, float] = {}

    def judge(self, rows: Any, texts: Any, tokens: Any) -> list[VerdictScore]:
        return [VerdictScore(reward, {}, Outcome.ANSWERED, "") for own in REWARDS for reward in own]


@pytest.fixture
def ours(tokenizer, tmp_path, monkeypatch) -> Callable[..., Batches]:
    """Makes our batches of the rollouts, for a model that has the weights of the reference so far."""

    def drawn(source: RolloutSource, first: int, prompts: Sequence[Example]) -> list[list[Sample]]:
        return [
            [Sample(tokens, tokens[-1] == END, 0.5) for tokens in COMPLETIONS[int(prompt.id)]]
            for prompt in prompts
        ]

    monkeypatch.setattr(RolloutSource, "_draw", drawn)
    monkeypatch.setattr(RolloutSettings, "reward", lambda _: Rewards())

    def make(case: Case, model: Any, budget: int = 10_000) -> Batches:
        settings = case.settings(max_tokens_per_microbatch=budget)
        objective = GRPO(settings.loss)
        folder = tmp_path / f"ours-{budget}"
        folder.mkdir()
        source = RolloutSource(
            Prompts(),
            objective,
            LanguageModel(model, tokenizer),
            settings,
            folder,
            curriculum=None,
            progress=no_progress,
        )
        return Batches(source, objective, budget=budget, limit=4096)

    return make


def for_comparison(computed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Advantages are centered, so a loss may be next to 0: its rounding is relative to theirs, which are about 1."""
    return computed | {"loss": 1 + computed["loss"]}


def computed(
    batches: Batches, step: int, model: Any, change: Callable[[MicroBatch], MicroBatch] = lambda micro: micro
) -> dict[str, Tensor]:
    """Our loss and gradients of a step, as the loop adds them up."""
    objective = batches.objective
    parts = [
        micro.weight * objective.loss(model, change(micro))[0]
        for micro in batches.prepare(step).micro_batches
    ]
    return for_comparison(gradients(model, sum(parts)))  # type: ignore[arg-type]


def positions_run_on(micro: MicroBatch) -> MicroBatch:
    packed = micro.packed
    run_on = torch.arange(packed.layout.tokens)[None]
    return replace(micro, packed=Packed(packed.input_ids, run_on, packed.layout))


def with_groups(batches: Batches, change: Callable[[Any], Any]) -> Batches:
    """The batches with other groups; `prepare` sets those of the rollouts only once."""
    objective = copy.copy(batches.objective)
    assert isinstance(objective, GRPO)
    objective.groups = {name: change(group) for name, group in objective.groups.items()}
    return replace(batches, objective=objective)


def with_settings(batches: Batches, loss: Mapping[str, Any] = {}, **changes: Any) -> Batches:
    objective = copy.copy(batches.objective)
    assert isinstance(objective, GRPO)
    objective.settings = objective.settings.model_copy(update=dict(loss))
    objective.options = objective.settings.options()
    objective.rollouts = objective.rollouts.model_copy(update=changes)
    return replace(batches, objective=objective)


def swapped(group: Any) -> Any:
    first, second, *rest = group.advantages
    return replace(group, advantages=(second, first, *rest))


# TRL 1.16 reads a property of transformers by its old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_two_iterations_equal_the_grpo_trainer(name, ours, stock_tokenizer, tmp_path):
    case = CASES[name]
    stock, model = twins("logprobs", kv_heads=case.kv_heads)
    reference, _ = twins("logprobs", kv_heads=case.kv_heads, seed=1)
    policy = copy.deepcopy(stock.state_dict())
    # Not far from the policy, as in training: exp of the log-ratios to a random one drowns all other terms.
    reference.load_state_dict(
        {name: 0.8 * policy[name] + 0.2 * value for name, value in reference.state_dict().items()}
    )

    model.load_state_dict(reference.state_dict())
    batches, in_parts = ours(case, model), ours(case, model, budget=100)
    model.load_state_dict(policy)
    trainer, batch = theirs(case, stock, reference, stock_tokenizer, tmp_path)
    assert "old_per_token_logps" in batch
    assert ("ref_per_token_logps" in batch) == bool(case.beta)

    for step in (0, 1):
        # Loss and gradients, in one micro-batch and in several.
        truth = for_comparison(gradients(stock, trainer._compute_loss(stock, batch)))
        found = computed(batches, step, model)
        assert len(in_parts.prepare(step).micro_batches) > 1
        assert deviation(computed(in_parts, step, model), truth) < TOLERANCE

        groups = batches.objective.groups
        advantages = torch.tensor([value for group in groups.values() for value in group.advantages])
        torch.testing.assert_close(advantages, batch["advantages"], rtol=1e-5, atol=1e-6)

        other = next(kind for kind in ("dapo", "grpo") if kind != case.loss)
        faults = {
            "positions run on": computed(batches, step, model, positions_run_on),
            "swapped advantages": computed(with_groups(batches, swapped), step, model),
            "another loss": computed(with_settings(batches, {"loss_type": other}), step, model),
            "another temperature": computed(with_settings(batches, temperature=0.9), step, model),
        }
        if case.beta:
            trainer.args.use_bias_correction_kl = False
            biased = for_comparison(gradients(stock, trainer._compute_loss(stock, batch)))
            trainer.args.use_bias_correction_kl = True
            assert deviation(biased, truth) > 100 * TOLERANCE
            faults["another sign"] = computed(with_settings(batches, {"beta": -case.beta}), step, model)
        if case.loss == "dr_grpo":
            faults["other most tokens"] = computed(
                with_settings(batches, max_completion_length=MOST + 1), step, model
            )
        if step:
            bare = with_groups(batches, lambda group: replace(group, old_logprobs=()))
            faults["no old log-probabilities"] = computed(bare, step, model)
            faults["another clip"] = computed(with_settings(batches, {"epsilon": 0.1}), step, model)
        assert_equal_but_for_faults(found, truth, faults)

        if (
            case.beta and case.loss == "dapo"
        ):  # which computes all groups, and weighs all tokens alike as TRL's metrics
            (micro,) = batches.prepare(step).micro_batches
            metrics = batches.objective.loss(model, micro)[1]
            # The last but one: the last is of the biased divergence.
            logged = {name: trainer._metrics["train"][name][-2] for name in ("kl", "clip_ratio/region_mean")}
            assert metrics["kl"] == pytest.approx(logged["kl"], rel=1e-5)
            assert metrics["clipped"] == pytest.approx(logged["clip_ratio/region_mean"], rel=1e-5)
            assert (metrics["clipped"] > 0) == bool(step)

        # A plain step between the iterations, for both alike.
        with torch.no_grad():
            for trained, own in ((stock, truth), (model, found)):
                for name, parameter in trained.named_parameters():
                    parameter -= RATE * own[name]
