"""The objectives of training, and `OBJECTIVES`, their names in recipes. Importing this module imports no torch.

An objective says which rows and which kind of model it needs, and turns a micro-batch into a loss. The loss functions
themselves are in `losses.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from longrm.errors import DataError
from longrm.training.losses import centering
from longrm.training.settings import LossSettings, RolloutSettings

if TYPE_CHECKING:
    from torch import Tensor

    from longrm.data.training_rows import Example, RowKind
    from longrm.runs.records import RolloutRecord
    from longrm.training.batches import MicroBatch

ModelKind = Literal["scorer", "language_model"]
"""A model with a scalar head, or a language model."""

ReferenceLogprobs = Mapping[str, Sequence[float]]
"""By example id, the summed log-probability of each response under the reference model."""


class Objective:
    """What a training minimizes: `loss`, a function of the model and a micro-batch.

    `graded` is true if rows have margins or probabilities; `reference` is needed by some losses. `chance` is the loss
    of a model that knows nothing, if that is known.
    """

    trains: ClassVar[ModelKind]
    reads: "ClassVar[RowKind]"
    help: ClassVar[str]  # of `longrm train OBJECTIVE`; `longrm train --help` shows its first sentence
    description: ClassVar[str]  # what was trained, for the model card

    def __init__(
        self, settings: LossSettings, reference: ReferenceLogprobs | None = None, *, graded: bool = False
    ) -> None:
        self.settings = settings
        self.reference = reference
        self.step_metrics: dict[str, float] = {}  # of the whole step, besides the means over micro-batches
        self.options = settings.options()
        # Margins, the likelihood and centering change the loss of a model that knows nothing. With label smoothing even
        # a perfect model may come close to it.
        terms = ("nll_coef", "label_smoothing", "center_rewards_coefficient")
        self.chance = None if graded or any(map(self.options.get, terms)) else settings.loss.chance

    def select(self, example: "Example") -> "Example":
        """The example with the responses that the loss reads."""
        return example

    def weight(self, example: "Example") -> float:
        """The weight of an example in the mean over a step; the tokens are those that the model wrote."""
        unit = self.settings.loss.mean_over
        if unit == "comparisons":
            return 1.0
        if unit == "responses":
            return float(len(example.tokens.responses))
        assert unit == "tokens", unit
        return float(sum(map(len, example.tokens.completion_tokens)))

    def learns(self, example: "Example") -> bool:
        """Whether the example has a gradient; one without is counted in the mean and not computed."""
        return True

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The weighted mean over the examples of a micro-batch, and metrics to log."""
        raise NotImplementedError


class SFT(Objective):
    """Stage 1 of a generative reward model: the likelihood of completions, a mean over their tokens (LongRM, SFT)."""

    trains = "language_model"
    reads = "demonstration"
    help = """Imitate judgments: stage 1 of a generative reward model.

    \b
    longrm train sft --model MODEL --data FILE --out runs/sft
    longrm train sft --config paper/qwen3-8b/sft --out runs/sft

    The model learns to write the completions of demonstrations; prompts carry no loss.
    """
    description = "imitation of judgments: the likelihood of their tokens"

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        import torch  # not at the top: settings and help load without it

        return self.settings.loss.function(torch.cat(micro.response_logprobs(model)))


class Preference(Objective):
    """Stage 2 of a generative reward model: log-probabilities of chosen against rejected responses."""

    trains = "language_model"
    reads = "comparison"
    help = """Prefer judgments over others: stage 2, LOGO, SimPO or DPO.

    \b
    longrm train preference --model MODEL --data FILE --out runs/logo
    longrm train preference --config mine.toml --set loss_type=dpo --out runs/dpo

    The model learns to prefer chosen responses over rejected ones, by their log-probabilities.
    """
    description = "preference between judgments"

    def select(self, example: "Example") -> "Example":
        """The best response, then worse ones in their order, `loss.rejected` at most."""
        best = example.ranks.index(min(example.ranks))
        worse = [index for index, rank in enumerate(example.ranks) if rank > example.ranks[best]]
        kept = [best, *worse[: self.settings.rejected]]
        tokens = example.tokens.only(kept)
        return replace(example, tokens=tokens, ranks=tuple(example.ranks[index] for index in kept))

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        options = {name: value for name, value in self.options.items() if name != "rejected"}  # see `select`
        if self.settings.loss.needs_reference:
            assert self.reference is not None, "the loss needs a reference"
            options["reference"] = [
                logprob for example in micro.examples for logprob in self.reference[example.id]
            ]
        counts = [len(example.ranks) for example in micro.examples]
        return self.settings.loss.function(micro.response_logprobs(model), counts, **options)


class BradleyTerry(Objective):
    """A discriminative reward model: scores by a linear head, ordered by gold ranks."""

    trains = "scorer"
    reads: "ClassVar[RowKind]" = "comparison"
    help = """Train a discriminative reward model on comparisons.

    \b
    longrm train bradley-terry --model MODEL --data FILE --out runs/mine
    longrm train bradley-terry --config mine.toml --set seed=1 --out runs/other

    A scalar head learns the gold order of responses: -log sigmoid(r_chosen - r_rejected).
    """
    description = "a score for every response"

    def select(self, example: "Example") -> "Example":
        """All responses; raises `DataError` if the loss cannot read the example's margin or probability."""
        if not self.settings.loss.reads_pairs and (
            example.margin is not None or example.probability is not None
        ):
            raise DataError(
                f"'{example.id}' has a margin or a probability, which loss.loss_type = "
                f'"{self.settings.loss_type}" does not read: choose a loss of pairs, or remove the column'
            )
        return example

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        # Imported here: settings and help load without torch.
        from longrm.modeling.shared_prefix import scores

        options = dict(self.options)
        smoothing = options.pop("label_smoothing", 0.0)
        centering_weight = options.pop("center_rewards_coefficient", 0.0)
        if self.settings.loss.reads_pairs:
            options["margins"] = [example.margin or 0.0 for example in micro.examples]
            options["probabilities"] = [
                1.0 - smoothing if example.probability is None else example.probability
                for example in micro.examples
            ]
        # One score per response, in the order of the examples.
        values = scores(model, micro.packed.to(model.device))
        ranks = [example.ranks for example in micro.examples]
        loss, metrics = self.settings.loss.function(values, ranks, **options)
        return loss + centering_weight * centering(values, ranks), metrics


class PRM(BradleyTerry):
    """A process reward model: a scalar head reads a score after every labeled step, in one pass over a trajectory.

    TRL's `PRMTrainer` trains a token classifier with two labels instead, whose difference of logits is this score.
    """

    reads = "trajectory"
    help = """Train a process reward model on labels of steps.

    \b
    longrm train prm --model MODEL --data FILE --out runs/prm
    longrm train prm --config my_pairs/steps --set loss_type=step_pairs --out RUN

    The score after every step learns its label, by binary cross-entropy; of a trajectory with an outcome only, the
    score at its end. A trajectory is read once for all of its steps.
    """
    description = "a score after every step of a trajectory"

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        if self.settings.loss.reads_pairs:
            return super().loss(model, micro)
        # Imported here: settings and help load without torch.
        from longrm.modeling.shared_prefix import scores

        values = scores(model, micro.packed.to(model.device))
        labels = [label for example in micro.examples for label in example.labels]
        return self.settings.loss.function(values, labels, **self.options)


class GRPO(Objective):
    """A generative reward model by reinforcement learning: sampled judgments, rewarded by their verdicts.

    Attributes:
        groups: The judgments of every example of the step, by its id.
        rollouts: How they were sampled; `rollouts.RolloutSource` sets both.
    """

    trains = "language_model"
    reads = "judge_prompt"
    help = """Reward a judge for right verdicts: reinforcement learning.

    \b
    longrm train grpo --model MODEL --data FILE --out runs/grpo
    longrm train grpo --config mine.toml --out runs/grpo

    Every step samples several judgments of each prompt and prefers those with a higher reward than the others of their
    group (group relative policy optimization). The prompt is read once for all of them. The rows are those of longrm
    synthesize judge-prompts.
    """
    description = "rewards of sampled judgments for right verdicts"
    groups: "Mapping[str, RolloutRecord]"
    rollouts: RolloutSettings

    def learns(self, example: "Example") -> bool:
        """Whether the judgments of the group have different rewards, or the divergence has a gradient."""
        return bool(self.options["beta"]) or any(self.groups[example.id].advantages)

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        groups = [self.groups[example.id] for example in micro.examples]
        logprobs = micro.response_logprobs(model, self.rollouts.temperature)
        old = [own for group in groups for own in group.old_logprobs]
        reference = [own for group in groups for own in group.reference_logprobs]
        return self.settings.loss.function(
            logprobs,
            [advantage for group in groups for advantage in group.advantages],
            max_tokens=self.rollouts.max_completion_length,
            old=old or None,
            reference=reference or None,
            **self.options,
        )


OBJECTIVES: dict[str, type[Objective]] = {
    "sft": SFT,
    "preference": Preference,
    "grpo": GRPO,
    "bradley_terry": BradleyTerry,
    "prm": PRM,
}
"""Every objective by its name in recipes."""
