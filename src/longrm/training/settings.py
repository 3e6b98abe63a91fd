"""The settings of `longrm train`. They load without torch, so a mistake in a recipe is reported at once."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from longrm.column_names import ColumnNames
from longrm.config import OPERATIONAL, Config
from longrm.errors import ConfigError, RunError, nearest
from longrm.modeling.shapes import HeadForm, ModelShape
from longrm.training.losses import LOSSES, Loss
from longrm.training.other_names import OTHER_NAMES
from longrm.training.plan import Assumptions

if TYPE_CHECKING:
    from longrm.reward_models.verdict_rewards import VerdictReward

CompletionForm = Literal["fact", "pairwise", "pointwise"]
"""What a model learns to write about a generated comparison: a fact of its context, or a judgment of its responses."""


class NewModelSettings(Config):
    """A small Llama with random weights, to start without a pretrained model: 4 heads of 32 dimensions.

    Attributes:
        tokenizer: "words", the vocabulary of generated worlds; "judge_words", which has verdicts too; or a file, folder
            or Hub id.
        layers: Decoder layers.
        hidden: Hidden size; the feed-forward layer has twice as much.
        structured: Start with heads that attend to previous tokens and heads that match equal content
            (`modeling.structured_start`). This needs 2 layers and a hidden size of 32, or more.
    """

    tokenizer: str = "words"
    layers: int = Field(2, ge=1)
    hidden: int = Field(64, ge=4, multiple_of=4)
    structured: bool = False

    @model_validator(mode="after")
    def _is_large_enough(self) -> "NewModelSettings":
        if self.structured and (self.layers < 2 or self.hidden < 32):
            raise ValueError("structured needs at least 2 layers and a hidden size of 32")
        return self

    def shape(self, rope_theta: float | None = None) -> ModelShape:
        """All sizes of the model."""
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            heads=4,
            kv_heads=4,
            head_dim=32,
            intermediate=2 * self.hidden,
            rope_theta=rope_theta or 10_000.0,
            init_std=0.08,  # larger than a large model's 0.02: at 64 dimensions that leaves hidden states near zero
            attention_bias=self.structured,
        )


class LoraSettings(Config):
    """Low-rank adapters on the linear layers (Hu et al. 2021); of other weights only a scalar head is trained.

    Named as in PEFT's `LoraConfig`, with TRL's defaults.

    Attributes:
        r: Rank of the update of every matrix.
        lora_alpha: The update is scaled by lora_alpha / r.
        target_modules: Names of the linear layers that get adapters, such as ["q_proj", "v_proj"].
        load_in_4bit: Keep the frozen matrices in 4 bits, which need a quarter of the memory (QLoRA, Dettmers et al.
            2023).
    """

    r: int = Field(16, ge=1)
    lora_alpha: float = Field(32.0, gt=0.0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    load_in_4bit: bool = False


class ModelSettings(Config):
    """The model that training starts from.

    Attributes:
        path: A folder or Hub id (OWNER/NAME@REVISION) of a reward model, or of a language model, which gets a new
            scalar head if the objective needs one.
        new: A small random model instead.
        head: The form of a new scalar head, linear by default: "mlp" has two layers with SiLU in between (BaseReward,
            arXiv 2509.16127). A model that has a head keeps it.
        rope_theta: Set the base of the rotary frequencies before training, to extend the context window.
        lora: Train adapters instead of all weights.
        frozen_layers: The lowest layers, and the embeddings, that are not trained: what they compute of a prompt needs
            neither a gradient nor memory for one.
        compile: Compile norms and feed-forward layers with `torch.compile`, which takes a minute at the start and needs
            a C++ compiler on a CPU.
        bf16: Compute matrix products in bfloat16; slow on most CPUs. Trained weights, heads and log-probabilities are
            always fp32.
    """

    path: str | None = None
    new: NewModelSettings | None = None
    head: HeadForm | None = None
    rope_theta: float | None = Field(None, gt=1.0)
    lora: LoraSettings | None = None
    frozen_layers: int = Field(0, ge=0)
    compile: Annotated[bool, OPERATIONAL] = False
    bf16: bool = False

    @model_validator(mode="after")
    def _one_start(self) -> "ModelSettings":
        if (self.path is None) == (self.new is None):
            raise ValueError("set either model.path or model.new")
        if self.lora is not None and self.path is None:
            raise ValueError("model.lora needs model.path")
        if self.lora is not None and self.rope_theta is not None:
            raise ValueError(
                "an adapter cannot store model.rope_theta: set rope_parameters in the base's config.json"
            )
        return self


class SourceFile(Config):
    """One of several files that training mixes.

    Attributes:
        path: Data in any format that `longrm.data` reads.
        format: Format of the rows; detected from the columns by default.
        columns: Names of the columns in the file, by longrm's names, such as `prompt = "question"`.
        weight: Passes over the file per epoch; with 0.5 an epoch reads one half, and the next one the other half.
    """

    path: str
    format: str | None = None
    columns: ColumnNames | None = None
    weight: float = Field(1.0, gt=0.0)


class WorldDataSettings(Config):
    """Training data that is generated on the fly; no context is used twice.

    Attributes:
        name: A generated world (`longrm world --list`), or a list of worlds from which every context is drawn evenly.
        texts: Kinds of text for worlds in prose, drawn for every context; all by default.
        responses: Responses per comparison; several numbers take turns from context to context.
        tokens_per_step: Context tokens per optimizer step: as many contexts as fit, at least one.
        responses_per_step: Responses per optimizer step, divided among its contexts.
        seed: Seed of the generated contexts; choose one that no evaluation uses.
        completions: What a language model learns to write: the fact that answers the question, or a pairwise or
            pointwise judgment; of several, one is drawn for every question. Preference training takes the chosen
            judgment by consensus, and omits questions on which all judges agree.
        template: For `objective = "grpo"`: a jinja2 file with a judging prompt of your own, or one of a recipe, such as
            "instruct_judge/judge.jinja"; by default the format's.
    """

    name: str | tuple[str, ...] = "records"
    texts: tuple[str, ...] = ()
    responses: tuple[int, ...] = (2,)
    tokens_per_step: int = Field(4096, ge=1)
    responses_per_step: int = Field(128, ge=2)
    seed: int = 0
    completions: tuple[CompletionForm, ...] = ()
    template: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The worlds from which contexts are drawn."""
        return (self.name,) if isinstance(self.name, str) else self.name


class DataSettings(Config):
    """Where the rows come from: one file, several files, or a generated world.

    Attributes:
        path: Training data in any format that `longrm.data` reads.
        columns: Names of the columns in `path`, by longrm's names, such as `prompt = "question"`.
        sources: Several files instead, mixed by their weights, or one with columns of other names.
        world: Generate the data instead.
        on_bad_row: What to do about a row that cannot be read, or has no gold order.
        too_long: What to do about a row whose prompt and longest response exceed `max_length`; none is truncated.
        max_length: Longest row in tokens; the model's context window by default, as long contexts are the purpose (TRL:
            1,024).
        without_contrast: What to do about a row of judgments that all give the same score.
        neutral_steps: For `objective = "prm"`: omit steps with the label 0, or train them as right or as wrong.
        per_step: Rows per optimizer step. The prompts of a comparison for a judge stay together: a step reads as many
            comparisons as fit.
        group_by_length: Rows of similar length that follow each other. Set it to the number of groups of devices that
            read different rows, so that they take equally long; it should divide `per_step`.
    """

    path: str | None = None
    columns: ColumnNames | None = None
    sources: tuple[SourceFile, ...] = ()
    world: WorldDataSettings | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    too_long: Literal["stop", "skip"] = "stop"
    max_length: int | None = Field(None, ge=2)
    without_contrast: Literal["keep", "skip"] = "keep"
    neutral_steps: Literal["skip", "right", "wrong"] = "skip"
    per_step: int = Field(32, ge=1)
    group_by_length: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _one_source(self) -> "DataSettings":
        if (self.path is not None) + bool(self.sources) + (self.world is not None) != 1:
            raise ValueError("set one of data.path, data.sources and data.world")
        for name, field in type(self).model_fields.items():
            if self.world is not None and name != "world" and getattr(self, name) != field.default:
                raise ValueError(f"data.{name} is not valid with data.world")
        if self.columns is not None and self.sources:
            raise ValueError("data.columns is only valid with data.path; set columns in each of data.sources")
        paths = [source.path for source in self.sources]
        if len(paths) != len(set(paths)):
            raise ValueError("data.sources has the same path twice; set the weight of one")
        return self

    def files(self) -> tuple[SourceFile, ...]:
        """The files to read; none for a world."""
        return self.sources if self.path is None else (SourceFile(path=self.path, columns=self.columns),)


class CurriculumSettings(Config):
    """How the context length of generated data grows.

    Attributes:
        lengths: Context lengths in tokens, ascending. Each but the last is used for the same number of steps.
        ramp: Share of all steps after which the last length is reached.
        short_share: Probability that a step goes back to the first length, so that it is not forgotten.
    """

    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), min_length=1)
    ramp: float = Field(0.5, gt=0.0, le=1.0)
    short_share: float = Field(0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _ascending(self) -> "CurriculumSettings":
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(f"curriculum.lengths must be ascending, got {list(self.lengths)}")
        return self


class LossSettings(Config):
    """The loss and its options. An option of another loss is an error.

    Defaults are those of LongRM, and of the papers of the other losses; TRL's are "sigmoid" for DPO, which is "dpo"
    here, and "dapo" for GRPO.

    Attributes:
        loss_type: Which loss; the default depends on the objective. For "prm" it is "bce", the binary cross-entropy of
            labels, or "step_pairs", right steps above wrong ones.
        label_smoothing: The share of labels that are assumed to be wrong, in rows without a probability.
        beta: Preference losses: scale of the log-probabilities, above 0. GRPO losses: weight of the divergence from the
            model that training starts from. Both are `beta` in TRL.
        gamma: Preference losses: margin by which the chosen response should lead.
        nll_coef: Preference losses: weight of the negative log-likelihood of the chosen response, per token.
        rejected: Preference losses: the number of rejected responses to read, the first ones; all by default.
        center_rewards_coefficient: Ranking losses: weight of (2 x mean score)^2, which keeps scores near zero
            (Eisenstein et al. 2023).
        epsilon: GRPO losses: how far below 1 the probability ratio of a token to its sampling is clipped.
        epsilon_high: GRPO losses: how far above 1; the same by default.
    """

    # None means the loss's own default in `LOSSES`.
    loss_type: str
    label_smoothing: float | None = Field(None, ge=0.0, lt=0.5)
    beta: float | None = Field(None, ge=0.0)
    gamma: float | None = Field(None, ge=0.0)
    nll_coef: float | None = Field(None, ge=0.0)
    rejected: int | None = Field(None, ge=1)
    center_rewards_coefficient: float | None = Field(None, ge=0.0)
    epsilon: float | None = Field(None, gt=0.0)
    epsilon_high: float | None = Field(None, gt=0.0)

    @model_validator(mode="after")
    def _takes_its_options(self) -> "LossSettings":
        if self.loss_type not in LOSSES:
            raise ConfigError(f"unknown loss {self.loss_type!r}; {nearest(self.loss_type, LOSSES)}")
        for name in type(self).model_fields:
            if name != "loss_type" and getattr(self, name) is not None and name not in self.loss.options:
                takes = ", ".join(self.loss.options) or "no options"
                raise ConfigError(f'loss.{name}: loss.loss_type = "{self.loss_type}" takes {takes}')
        if self.beta == 0.0 and self.loss.objective != "grpo":
            raise ConfigError("loss.beta: must be greater than 0")
        return self

    @property
    def loss(self) -> Loss:
        """The entry of `LOSSES`."""
        return LOSSES[self.loss_type]

    def options(self) -> dict[str, Any]:
        """The options of the loss, defaults filled in."""
        given = {name: getattr(self, name) for name in self.loss.options}
        return {name: self.loss.options[name] if value is None else value for name, value in given.items()}


class RolloutSettings(Config):
    """How judgments are sampled and rewarded; for `objective = "grpo"`, and named as in TRL's `GRPOConfig`.

    Attributes:
        num_generations: Judgments sampled for every prompt.
        temperature: Of the sampling.
        top_p: Only the most likely tokens that together have this probability are drawn.
        max_completion_length: The most tokens of a judgment.
        num_iterations: Optimizer steps with the same judgments.
        advantage_estimator: "grpo" compares the rewards of a group; "rft" is rejection sampling: of every prompt
            the right judgments (`correct` is 1) with the highest reward are learned, with equal weight, if the group
            has some for all of its prompts and not only right ones. It draws a biased judge back to one half, which
            "grpo" does not: begin with it where the start judges by position.
        group_by: The judgments of one prompt are a group, as in TRL, or those of one pair or list in all orders, over
            which a judge that always names the first response is both right and wrong (EIS-GRPO, arXiv 2505.13346).
            With "rft" the default is "comparison": by prompt it could learn one position alone.
        max_num_gen_batches: Dynamic sampling (DAPO, Yu et al. 2025): the most batches of prompts that a step reads to
            replace groups without an advantage. Named as in verl.
        scale_rewards: Whether the advantages of "grpo" are divided by the standard deviation of their group's rewards.
        reward_weights: Weight of every reward term, by its name in `longrm.verdict_reward`.
        soft_tokens: For the term "brief": the last so many of `max_completion_length` are penalized.
        answer_metric: For the term "solved": the answer metric, as for `judging.answer_metric`.
    """

    num_generations: int = Field(8, ge=2)
    temperature: float = Field(1.0, gt=0.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    max_completion_length: int = Field(512, ge=1)
    num_iterations: int = Field(1, ge=1)
    advantage_estimator: Literal["grpo", "rft"] = "grpo"
    group_by: Literal["prompt", "comparison"] = "prompt"
    max_num_gen_batches: int = Field(1, ge=1)
    scale_rewards: Literal["group", "none"] = "group"
    reward_weights: Mapping[str, float] = {"correct": 1.0, "format": 0.1}
    soft_tokens: int | None = Field(None, ge=1)
    answer_metric: str = "exact_match"

    @model_validator(mode="before")
    @classmethod
    def _group_of_rft(cls, values: Any) -> Any:
        given = isinstance(values, Mapping) and values.get("advantage_estimator") == "rft"
        return {"group_by": "comparison", **values} if given else values

    @field_validator("reward_weights")
    @classmethod
    def _weighs_right_verdicts(
        cls, weights: Mapping[str, float], info: ValidationInfo
    ) -> Mapping[str, float]:
        if info.data.get("advantage_estimator") == "rft" and "correct" not in weights:
            raise ValueError('advantage_estimator = "rft" needs a weight of "correct"')
        return weights

    @model_validator(mode="after")
    def _has_a_reward(self) -> "RolloutSettings":
        self.reward()
        return self

    def reward(self) -> "VerdictReward":
        """Makes the reward; raises `ConfigError` for a term, a metric or an option that cannot be used."""
        # Imported here: it needs numpy, which help texts and other recipes do not.
        from longrm.reward_models.verdict_rewards import VerdictReward

        return VerdictReward(
            self.reward_weights,
            max_tokens=self.max_completion_length,
            soft_tokens=self.soft_tokens,
            metric=self.answer_metric,
        )


class OptimizerSettings(Config):
    """AdamW and its schedule, named as in transformers' `TrainingArguments`. Its betas are 0.9 and 0.95, as in LongRM.

    Defaults that differ from TRL's are LongRM's: the learning rate is lower than for adapters (TRL: 1e-4 with
    RewardTrainer), the schedule has a warm-up and a cosine (TRL: linear, without a warm-up), and one epoch is read
    instead of three.

    Attributes:
        max_steps: Optimizer steps; for data in files, `num_train_epochs` may be set instead.
        num_train_epochs: Passes over the data.
        learning_rate: Peak learning rate. The default is 1e-4 with `model.lora` and 1e-3 with `model.new`.
        lr_scheduler_type: How the learning rate decays after warm-up.
        lr_scheduler_kwargs: For "cosine_with_min_lr": `min_lr_rate`, the final learning rate as a share of the peak.
        warmup_steps: Steps over which the learning rate rises, to the peak at the last of them; below 1, a share of all
            steps.
        weight_decay: Decoupled weight decay, not applied to norms and biases.
        max_grad_norm: Gradients are scaled down to this norm if theirs is larger.
    """

    max_steps: int | None = Field(None, ge=1)
    num_train_epochs: int | None = Field(None, ge=1)
    learning_rate: float = Field(2e-6, gt=0.0)
    lr_scheduler_type: Literal["cosine", "cosine_with_min_lr", "linear", "constant_with_warmup"] = "cosine"
    lr_scheduler_kwargs: Mapping[Literal["min_lr_rate"], Annotated[float, Field(gt=0.0, lt=1.0)]] = {}
    warmup_steps: float = Field(0.03, ge=0.0)
    weight_decay: float = Field(0.0, ge=0.0)
    max_grad_norm: float = Field(1.0, gt=0.0)

    @model_validator(mode="after")
    def _fits(self) -> "OptimizerSettings":
        if self.max_steps is not None and self.num_train_epochs is not None:
            raise ValueError("set optimizer.max_steps or optimizer.num_train_epochs, not both")
        if bool(self.lr_scheduler_kwargs) != (self.lr_scheduler_type == "cosine_with_min_lr"):
            raise ValueError(
                "lr_scheduler_type = 'cosine_with_min_lr' and lr_scheduler_kwargs.min_lr_rate need each other"
            )
        return self

    def warmup(self, steps: int) -> int:
        """Steps of the warm-up in a training of so many steps."""
        return math.ceil(self.warmup_steps * steps if self.warmup_steps < 1 else self.warmup_steps)


class MemorySettings(Config):
    """Ways to save memory. `longrm plan` computes what a recipe needs.

    Attributes:
        max_tokens_per_microbatch: Tokens per micro-batch; a longer row is one alone. Questions about one context share
            it only if they fit into one micro-batch.
        gradient_checkpointing: Keep only the input of every layer, and recompute the layer in the backward pass. By
            default this is on where the training does not fit without it.
        activation_offloading: Move the layers' inputs, which gradient checkpointing keeps, to CPU memory. This and
            `keep_attention` turn gradient checkpointing on.
        keep_attention: Keep the output of attention on the device, too, so that it is not recomputed.
        tiled_mlp: Compute feed-forward layers tile by tile, and again in the backward pass.
        check: Stop before the first step if it needs more CPU memory than is available.
    """

    max_tokens_per_microbatch: int = Field(16_384, ge=1)
    gradient_checkpointing: bool | None = None
    activation_offloading: bool = False
    keep_attention: bool = False
    tiled_mlp: bool = False
    check: bool = True

    @model_validator(mode="before")
    @classmethod
    def _imply_checkpointing(cls, values: Any) -> Any:
        given = isinstance(values, Mapping) and any(
            map(values.get, ("activation_offloading", "keep_attention"))
        )
        return {"gradient_checkpointing": True, **values} if given else values

    @model_validator(mode="after")
    def _fits(self) -> "MemorySettings":
        for name in ("activation_offloading", "keep_attention"):
            if getattr(self, name) and not self.gradient_checkpointing:
                raise ValueError(f"memory.{name} needs memory.gradient_checkpointing = true")
        return self


class ParallelSettings(Config):
    """How a training is laid out over several devices; `torchrun` sets their number.

    Attributes:
        sequence_parallel_size: Devices that share every sequence; groups of this size read different rows.
        shard: Shard weights, gradients and optimizer state over all devices (FSDP2); else each has all of them.
        reshard_after_forward: Free the gathered weights of a layer after its forward pass, and gather them again for
            the backward pass.
        offload: Keep the sharded weights, gradients and optimizer state in CPU memory.
    """

    sequence_parallel_size: int = Field(1, ge=1)
    shard: bool = False
    reshard_after_forward: bool = True
    offload: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "ParallelSettings":
        if not self.shard and (self.offload or not self.reshard_after_forward):
            name = "offload = true" if self.offload else "reshard_after_forward = false"
            raise ValueError(f"parallel.{name} needs parallel.shard = true")
        return self


class CheckpointSettings(Config):
    """When checkpoints are written. One is also written after 30 minutes without one.

    Steps of long contexts take minutes, so the default is lower than transformers' 500 steps. Of all checkpoints, which
    transformers keeps, only the latest can be resumed from; the one before it is for the case that it cannot be read.

    Attributes:
        save_steps: Steps between checkpoints.
        save_total_limit: How many are kept, the latest.
    """

    save_steps: int = Field(100, ge=1)
    save_total_limit: int = Field(2, ge=1)


def _known_metric(name: str) -> str:
    # imported here because metrics need numpy, which help texts and recipes without evaluations do not
    from longrm.evaluation.metrics import known_metric

    return known_metric(name)


class EvaluationSettings(Config):
    """Evaluation during training, and after the last step.

    Attributes:
        eval_steps: Steps between evaluations.
        metric_for_best_model: A metric that the evaluation reports, by its name in docs/measures.md.
        load_best_model_at_end: Save the model with the best value of the metric instead of the last one.
        settings: The settings of `longrm evaluate`, without the model.
    """

    eval_steps: int = Field(100, ge=1)
    metric_for_best_model: Annotated[str, AfterValidator(_known_metric)] = "pair_accuracy"
    load_best_model_at_end: bool = False
    settings: dict[str, Any]


def _trackers(names: Any) -> Any:
    """The names of trackers; TRL also takes one name, and "none"."""
    if isinstance(names, str):
        names = [names]
    return [name for name in names if name != "none"] if isinstance(names, list | tuple) else names


class TrainingSettings(Config):
    """A recipe of `longrm train`.

    Attributes:
        objective: "sft", "preference", "grpo", "bradley_terry" or "prm".
        seed: Seed of a new head or model, the order of the data, and the curriculum.
        model: The model that training starts from.
        data: The rows.
        curriculum: Context lengths of generated data.
        loss: The loss and its options.
        rollouts: How the judgments of GRPO are sampled and rewarded.
        optimizer: AdamW, its schedule and the number of steps.
        memory: Ways to save memory.
        parallel: Layout over several devices.
        checkpoint: When checkpoints are written.
        evaluation: Evaluation during training.
        plateau_steps: Stop if the loss stays at chance for this many steps; 0 never stops.
        report_to: Trackers that transformers supports, such as "tensorboard" or "wandb".
        plan: What `longrm plan` assumes about a model or data that is not on this machine: `model` (layers, hidden,
            heads, kv_heads, head_dim, intermediate, vocabulary, tied, qk_norm) and `rows`, a list of tables (rows,
            prompt, responses, response; for "grpo" only rows and prompt).
    """

    other_names = OTHER_NAMES
    objective: str
    seed: int = 0
    model: ModelSettings
    data: DataSettings
    curriculum: CurriculumSettings | None = None
    loss: LossSettings
    rollouts: RolloutSettings | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    memory: Annotated[MemorySettings, OPERATIONAL] = MemorySettings()
    parallel: Annotated[ParallelSettings, OPERATIONAL] = ParallelSettings()
    checkpoint: Annotated[CheckpointSettings, OPERATIONAL] = CheckpointSettings()
    evaluation: EvaluationSettings | None = None
    plateau_steps: Annotated[int, OPERATIONAL] = Field(200, ge=0)
    report_to: Annotated[tuple[str, ...], BeforeValidator(_trackers), OPERATIONAL] = ()
    plan: Annotated[Assumptions | None, OPERATIONAL] = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Fills in defaults that depend on other settings, so that the config.toml of every run names them."""
        if not isinstance(values, Mapping):
            return values
        model, optimizer = _given(values.get("model")), _given(values.get("optimizer", {}))
        if isinstance(model, Mapping) and isinstance(optimizer, Mapping):
            for kind, rate in _LEARNING_RATES.items():
                if model.get(kind) is not None:
                    values = {**values, "optimizer": {"learning_rate": rate, **optimizer}}
        if values.get("objective") == "grpo":
            values = {"rollouts": {}, **values}
        loss, defaults = values.get("loss", {}), default_losses()
        if isinstance(loss, Mapping) and "loss_type" not in loss and values.get("objective") in defaults:
            return {**values, "loss": {**loss, "loss_type": defaults[values["objective"]]}}
        return values

    @field_validator("objective")
    @classmethod
    def _is_known(cls, objective: str) -> str:
        if objective not in default_losses():
            losses = {"reward": "bradley_terry", "rm": "bradley_terry"} | {
                name: f"{loss.objective}, with loss_type={name!r}" for name, loss in LOSSES.items()
            }
            hint = (
                f"it is {losses[objective]}" if objective in losses else nearest(objective, default_losses())
            )
            raise ConfigError(f"unknown objective {objective!r}; {hint}")
        return objective

    @model_validator(mode="after")
    def _fits(self) -> "TrainingSettings":
        if self.loss.loss.objective != self.objective:
            known = ", ".join(name for name, loss in LOSSES.items() if loss.objective == self.objective)
            raise ConfigError(
                f'loss.loss_type = "{self.loss.loss_type}" is not a loss of "{self.objective}"; known: {known}'
            )
        if self.data.world is not None:
            if self.objective == "prm":
                raise ValueError('objective = "prm" needs data.path, not data.world')
            if self.curriculum is None:
                raise ValueError("data.world needs curriculum.lengths, such as [128]")
            if self.optimizer.max_steps is None:
                raise ValueError("data.world needs optimizer.max_steps")
            if self.loss.loss.needs_reference:
                # Its reference log-probabilities are computed once for every row, and generated data has no end.
                raise ValueError(f'loss.loss_type = "{self.loss.loss_type}" needs data.path, not data.world')
            forms = self.data.world.completions
            if self.objective != "sft" and "fact" in forms:
                raise ValueError('completions = ["fact"] is only supported with objective = "sft"')
            is_records = self.data.world.names == ("records",) and set(self.data.world.responses) == {2}
            if forms and not is_records and self.objective != "grpo":
                raise ValueError('completions are only supported for name = "records" with responses = [2]')
            if self.data.world.template and self.objective != "grpo":
                raise ValueError('data.world.template is only supported with objective = "grpo"')
        elif self.curriculum is not None:
            raise ValueError("curriculum is only valid with data.world")
        if self.model.head is not None and self.objective not in ("bradley_terry", "prm"):
            raise ValueError('model.head is only valid with objective = "bradley_terry" or "prm"')
        if self.data.neutral_steps != "skip" and self.objective != "prm":
            raise ValueError('data.neutral_steps is only valid with objective = "prm"')
        if self.rollouts is not None and self.objective != "grpo":
            raise ValueError('rollouts is only valid with objective = "grpo"')
        if self.rollouts is not None and (self.parallel.shard or self.parallel.sequence_parallel_size > 1):
            raise ValueError(
                'objective = "grpo" needs the whole model on every device: set parallel.shard = false and '
                "parallel.sequence_parallel_size = 1"
            )
        stated = self.plan.rows if self.plan else ()
        if self.rollouts is None and any(rows.response is None for rows in stated):
            raise ValueError("plan.rows needs response, the tokens of a response")
        if self.rollouts is not None and any(rows.response is not None for rows in stated):
            raise ValueError(
                'plan.rows: omit response; with objective = "grpo" it is rollouts.max_completion_length'
            )
        return self

    def extends(self, begun: Mapping[str, Any]) -> bool:
        """Whether these settings continue a run with more steps; raises `RunError` if its schedule has ended."""

        def split(settings: Mapping[str, Any]) -> tuple[str, int, str, dict[str, Any]]:
            """Unit and number of steps, the schedule, and the settings that must not change."""
            kept = self.defining(settings)
            optimizer, curriculum = kept.pop("optimizer", {}), kept.pop("curriculum", {})
            unit = "max_steps" if "max_steps" in optimizer else "num_train_epochs"
            kept |= {name: optimizer.get(name) for name in ("weight_decay", "max_grad_norm")}
            kept |= {**curriculum, "ramp": None}
            return unit, optimizer.get(unit, 1), optimizer.get("lr_scheduler_type", ""), kept

        (unit, number, before, fixed), (new_unit, more, schedule, new_fixed) = map(
            split, (begun, self.to_dict())
        )
        if new_unit != unit or more <= number or new_fixed != fixed:
            return False
        if schedule == before != "constant_with_warmup":
            raise RunError(
                f'optimizer.lr_scheduler_type = "{schedule}" has ended with {unit} = {number}; to continue to {more}, '
                'set it to "constant_with_warmup" or another one'
            )
        return True


_LEARNING_RATES = {"lora": 1e-4, "new": 1e-3}
"""Default peaks of adapters, as in TRL, and of random weights, by the setting of `model`."""


def _given(group: Any) -> Any:
    """A group as a mapping of the settings that were given."""
    return group.model_dump(exclude_unset=True) if isinstance(group, Config) else group


def default_losses() -> dict[str, str]:
    """The default loss of every objective: the first one in `LOSSES`."""
    return {loss.objective: name for name, loss in reversed(LOSSES.items())}
