"""Bradley-Terry training of a discriminative reward model: settings in, a run folder out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers
from pydantic import Field, model_validator
from torch import Tensor

from longrm.config import Config
from longrm.errors import DataError
from longrm.modeling.encoding import Encoded, encode, plant, within_budget
from longrm.modeling.heads import scores
from longrm.modeling.loading import ModelShape, Scorer, load_scorer, new_scorer, rescale_rope, save
from longrm.modeling.shared_prefix import pack
from longrm.modeling.structured_start import structure
from longrm.runs.folder import SCHEMA_VERSION, SUMMARY, RunFolder, read_summary
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, silent
from longrm.runs.records import StepRecord
from longrm.training.curriculum import Curriculum, CurriculumSettings
from longrm.training.data import Data, Source, context_digest, open_source
from longrm.training.losses import bradley_terry
from longrm.training.trainer import (
    CHECKPOINTS,
    STEPS,
    CheckpointSettings,
    MicroBatch,
    OptimizerSettings,
    Step,
    StepTrainer,
    TrainingLogs,
    logged_steps,
    saved_steps,
)
from longrm.types import Comparison
from longrm.worlds.words import load_tokenizer


class NewModel(Config):
    """A small Llama with random weights, for when there is nothing to start from.

    Attributes:
        tokenizer: "words", or a tokenizer's file, folder or Hub id.
        layers: Decoder layers.
        hidden: Hidden size.
        heads: Attention heads.
        kv_heads: Key-value heads; as many as heads by default.
        head_dim: Size of a head.
        intermediate: Size of the feed-forward layer; twice the hidden size by default.
        rope_theta: Base of the rotary frequencies.
        init_std: Standard deviation of the random weights.
        structured: Begin with heads that look back and heads that match content; `modeling.structured_start`.
    """

    tokenizer: str = "words"
    layers: int = Field(2, ge=1)
    hidden: int = Field(64, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    head_dim: int = Field(32, ge=2, multiple_of=2)
    intermediate: int | None = Field(None, ge=1)
    rope_theta: float = Field(10_000.0, gt=1.0)
    init_std: float = Field(0.02, gt=0.0)
    structured: bool = False

    @model_validator(mode="after")
    def _divides(self) -> "NewModel":
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.structured and self.layers < 2:
            raise ValueError("a structured start needs at least 2 layers")
        return self

    def shape(self) -> ModelShape:
        """The sizes with their defaults filled in."""
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate or 2 * self.hidden,
            rope_theta=self.rope_theta,
            init_std=self.init_std,
            attention_bias=self.structured,
        )


class ModelSettings(Config):
    """What training starts from.

    Attributes:
        path: A folder or Hub id: a reward model, or a language model that gets a new scalar head.
        new: A small random model instead.
        rope_theta: Sets the base of the rotary frequencies before training, to stretch positions.
    """

    path: str | None = None
    new: NewModel | None = None
    rope_theta: float | None = Field(None, gt=1.0)

    @model_validator(mode="after")
    def _one_start(self) -> "ModelSettings":
        if (self.path is None) == (self.new is None):
            raise ValueError("training starts from either model.path or model.new: give one of them")
        return self


class BradleyTerryTraining(Config):
    """Settings of `longrm train bradley-terry`.

    Attributes:
        seed: Of the new head or model, the order of the data, and the curriculum.
        model: What training starts from.
        data: What it reads.
        curriculum: Context lengths of generated data.
        optimizer: AdamW, its schedule and the number of steps.
        checkpoint: When the state is saved.
        tokens_per_forward: A step is cut into parts of at most this many tokens; a longer row stands alone.
        stall_steps: Stop when the loss stays at a coin's over so many steps; 0 never stops.
    """

    seed: int = 0
    model: ModelSettings
    data: Data
    curriculum: CurriculumSettings | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    tokens_per_forward: int = Field(16_384, ge=1)
    stall_steps: int = Field(200, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> "BradleyTerryTraining":
        if self.data.world is not None:
            if self.curriculum is None:
                raise ValueError("generated data needs curriculum.lengths, such as [128]")
            if self.optimizer.steps is None:
                raise ValueError("generated data has no end: set optimizer.steps")
        elif self.curriculum is not None:
            raise ValueError("curriculum sets the lengths of generated data; a file's rows have their own")
        if self.optimizer.steps is not None and self.optimizer.epochs is not None:
            raise ValueError("optimizer.steps and optimizer.epochs exclude each other")
        return self


def run(settings: BradleyTerryTraining, out: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """Trains into the folder `out`, continuing from its latest checkpoint.

    Args:
        settings: What to train, on what.
        out: The run folder; the model lies in `out/model` at the end.
        progress: Called after every step.

    Returns:
        The summary; `summary.json` holds the same.

    Raises:
        ModelError: The start cannot be loaded.
        DataError: The data cannot be read.
        TrainingError: A NaN or a stalled loss.
    """
    with RunFolder(out, "training", settings) as folder:
        if (out / SUMMARY).exists():
            summary = read_summary(out)
            if logged_steps(out) == summary["steps"]:
                return summary
        scorer = start_of(settings)
        _train(settings, scorer, out, progress)
        save(scorer, out / "model")
        summary = _summary(list(Log(out / STEPS, StepRecord)))
        folder.write_summary(summary)
        return summary


def start_of(settings: BradleyTerryTraining) -> Scorer:
    """The model that training starts from, with its head and its rotary base as the settings have them."""
    model = settings.model
    if model.new is not None:
        scorer = new_scorer(model.new.shape(), load_tokenizer(model.new.tokenizer), seed=settings.seed)
        if model.new.structured:
            structure(scorer.model, seed=settings.seed)
    else:
        assert model.path is not None
        scorer = load_scorer(model.path, head_seed=settings.seed)
    if model.rope_theta is not None:
        rescale_rope(scorer.model, model.rope_theta)
    return scorer


def _train(settings: BradleyTerryTraining, scorer: Scorer, out: Path, progress: Progress) -> None:
    source = open_source(settings.data, scorer.tokenizer, settings.seed)
    steps = settings.optimizer.steps or (settings.optimizer.epochs or 1) * (source.epoch_steps() or 0)
    lengths = settings.curriculum
    curriculum = Curriculum(lengths, steps=steps, seed=settings.seed) if lengths else None
    saved = saved_steps(out)
    checkpoint = out / CHECKPOINTS / str(saved[-1]) if saved else None
    with TrainingLogs(out, checkpoint) as logs:
        trainer = StepTrainer(
            scorer,
            BradleyTerryObjective(settings, scorer, source, curriculum),
            _arguments(settings, steps, out),
            folder=out,
            logs=logs,
            checkpoints=settings.checkpoint,
            stall_steps=settings.stall_steps,
            progress=progress,
        )
        trainer.replay(list(logs.steps))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    scorer.model.eval()


class BradleyTerryObjective:
    """Steps of comparisons, scored over shared prefixes and ordered by the Bradley-Terry loss."""

    def __init__(
        self,
        settings: BradleyTerryTraining,
        scorer: Scorer,
        source: Source,
        curriculum: Curriculum | None,
    ) -> None:
        self._tokenizer = scorer.tokenizer
        self._source = source
        self._limit = int(scorer.model.config.max_position_embeddings)
        self._budget = settings.tokens_per_forward
        self._curriculum = curriculum

    def prepare(self, step: int) -> Step:
        """Draws, encodes and packs the comparisons of a step.

        Raises:
            DataError: A comparison is longer than the model reads; nothing is cut.
        """
        length = self._curriculum.length(step) if self._curriculum else None
        rows = self._source.batch(step, length)
        items = [encode(self._tokenizer, row.prompt, row.responses) for row in rows]
        for row, item in zip(rows, items, strict=True):
            if item.longest > self._limit:
                raise DataError(
                    f"'{row.id}' has {item.longest} tokens and the model reads {self._limit}; leave it out, or raise "
                    "max_position_embeddings in the model's config.json"
                )
        digests = tuple(dict.fromkeys(context_digest(row) for row in rows))
        longest = max(len(item.prompt) for item in items)
        return Step(list(self._micro_batches(rows, items)), longest, digests)

    def _micro_batches(self, rows: Sequence[Comparison], items: Sequence[Encoded]) -> Iterator[MicroBatch]:
        start = 0
        for trees in within_budget(plant(items), self._budget):
            branches, stop = sum(len(tree.branches) for tree in trees), start
            while branches > 0:
                branches -= len(rows[stop].responses)
                stop += 1
            assert branches == 0, "a tree holds whole comparisons"
            ranks = [row.ranks or () for row in rows[start:stop]]
            yield MicroBatch(pack(trees), ranks, weight=(stop - start) / len(rows))
            start = stop

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The Bradley-Terry loss of a micro-batch, a mean over its comparisons."""
        return bradley_terry(scores(model, micro.packed.to(model.device)), micro.ranks)


def _arguments(settings: BradleyTerryTraining, steps: int, out: Path) -> transformers.TrainingArguments:
    optimizer = settings.optimizer
    return transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=1,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type=optimizer.schedule,
        warmup_steps=optimizer.warmup,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_norm,
        save_steps=settings.checkpoint.every,
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def _summary(records: Sequence[StepRecord]) -> dict[str, Any]:
    last = records[-20:]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "training",
        "objective": "bradley_terry",
        "steps": len(records),
        "tokens": sum(record.tokens for record in records),
        "window": len(last),
        "loss": sum(record.loss for record in last) / len(last),
        "accuracy": sum(record.accuracy for record in last) / len(last),
    }
