"""What a training computes: the sizes of its model, what it trains, the rows that it reads, its largest micro-batch."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm import hub
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import Example
from longrm.errors import ConfigError, ModelError, first_line
from longrm.modeling.shapes import PackedLayout, TreeShape, build_trees, check_frozen_layers
from longrm.runs.folder import trained_model
from longrm.runs.progress import Progress
from longrm.training.batches import Batches, ExampleSource
from longrm.training.objectives import OBJECTIVES, ModelKind
from longrm.training.plan import ModelSizes
from longrm.training.sampling import Curriculum
from longrm.training.settings import ModelSettings, RolloutSettings, TrainingSettings
from longrm.training.sources import FileSource, open_source
from longrm.worlds.words_tokenizer import load_tokenizer

_UNLIMITED = 2**62
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")  # shared with `ModelShape`


def sizes_of(settings: TrainingSettings, kind: ModelKind) -> ModelSizes:
    """The sizes of the model that a recipe starts from, from its config; a head of two layers counts as one."""
    new, path = settings.model.new, settings.model.path
    if new is not None:
        shape = new.shape()
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return ModelSizes(
            **{name: getattr(shape, name) for name in _SIZES},
            kind=kind,
            vocabulary=load_tokenizer(new.tokenizer).vocab_size,
            tied=True,
            biases=(queries + 2 * keys + shape.hidden) * shape.attention_bias,
            limit=shape.max_positions,
            origin="model.new",
        )
    if path is None:
        raise ConfigError("the recipe names no model: add --set model.path=FOLDER")
    folder = trained_model(Path(path).expanduser())
    name, revision = (None if folder.is_dir() else hub.split_revision(path)) or (str(folder), None)
    stated = settings.plan.model if settings.plan else None
    if stated and not folder.is_dir() and hub.cached_file(name, "config.json", revision) is None:
        return replace(stated, kind=kind)
    from transformers import AutoConfig  # slow to import; sizes that are stated need none of it

    try:
        local_only = stated is not None
        config = AutoConfig.from_pretrained(name, revision=revision or "main", local_files_only=local_only)
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(
            f"{path}: cannot read its config ({first_line(error)}); [plan.model] may state its sizes"
        ) from None
    return _sizes_of_config(config, kind, path)


def _sizes_of_config(config: Any, kind: ModelKind, path: str) -> ModelSizes:
    """Sizes under the names that decoders of transformers share; counting the parameters shows whether they are all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from longrm.modeling.folders import check_config, check_trainable, layer_kinds, recurrent_layers

    check_config(config, path)
    check_trainable(config, path)
    if recurrent_layers(config):
        # For the backward pass, transformers' own Gated DeltaNet keeps 3 times what attention keeps (hidden size 256);
        # kernels were not measured.
        raise ModelError(
            f"{path}: recurrent layers cannot be planned: their memory depends on the kernels that are installed; "
            "train one step instead (optimizer.max_steps = 1), with memory.gradient_checkpointing = true if memory "
            "runs out"
        )
    config.num_labels = 1
    auto: Any = AutoModelForSequenceClassification if kind == "scorer" else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    modules = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    sizes = ModelSizes(
        kind=kind,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        qk_norm={"q_norm", "k_norm"} <= modules,
        norms=sum(name.endswith("_layernorm") and name[:2] not in ("q_", "k_") for name in modules),
        window=getattr(config, "sliding_window", None),
        window_layers=layer_kinds(config).count("sliding_attention"),
        limit=config.max_position_embeddings,
        origin=f"the config of {path}",
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # Configs name biases differently: they are what remains, the same number in every layer, and small.
    biases, rest = divmod(parameters - sizes.parameters, sizes.layers)
    if rest or not 0 <= biases <= 0.02 * sizes.layer_parameters:
        raise ModelError(
            f"{path}: it has {parameters} parameters, and a decoder of its sizes {sizes.parameters}; architectures "
            "other than Llama's (experts or plain feed-forward layers) cannot be planned"
        )
    return replace(sizes, biases=biases)


@dataclass(frozen=True, slots=True)
class TrainedPart:
    """What is trained of a model: its weights or adapters, in all layers or in the upper ones."""

    sizes: ModelSizes
    rank: int = 0  # of the adapters; 0 trains the weights themselves
    frozen_layers: int = 0  # the lowest ones; if there are any, the embeddings are frozen, too
    target_modules: str | tuple[str, ...] = "all-linear"  # which matrices have adapters

    @property
    def layers(self) -> int:
        """The number of trained layers."""
        return self.sizes.layers - self.frozen_layers

    @property
    def embeddings(self) -> bool:
        """Whether the embeddings are trained."""
        return not self.rank and not self.frozen_layers

    @property
    def head(self) -> bool:
        """Whether the head is trained: a scalar head always, a tied one if the embeddings are."""
        tied = self.sizes.tied and not self.embeddings
        return self.sizes.kind == "scorer" or not (self.rank or tied)

    @property
    def layer_parameters(self) -> int:
        """Trained parameters of a trained layer."""
        return self.adapter_parameters or self.sizes.layer_parameters

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters of a trained layer."""
        return self.sizes.adapter_parameters(self.rank, self.target_modules)

    @property
    def parameters(self) -> int:
        """All trained parameters."""
        sizes = self.sizes
        body = self.layers * self.layer_parameters + sizes.head_parameters * self.head
        return body + sizes.hidden * (not self.rank) + sizes.vocabulary * sizes.hidden * self.embeddings


def trained_part(model: ModelSettings, sizes: ModelSizes) -> TrainedPart:
    """What a recipe trains of a model; raises `ModelError` if it freezes every layer."""
    check_frozen_layers(model.frozen_layers, sizes.layers)
    if model.lora is None:
        return TrainedPart(sizes, 0, model.frozen_layers)
    return TrainedPart(sizes, model.lora.r, model.frozen_layers, model.lora.target_modules)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a training reads."""

    steps: int
    rows: float  # in all steps; those that several steps use are counted once
    trees: Mapping[TreeShape, float]  # how often the steps read a tree of each shape
    largest: PackedLayout  # the micro-batch with the most tokens
    several: bool  # whether a step may have several micro-batches
    origin: str  # where the lengths come from, in a few words
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read and omitted, if there is a file
    epochs: float = 1.0  # passes over the data; generated data is read once

    @property
    def prompt_tokens(self) -> float:
        """Tokens of all prefixes."""
        return sum(count * shape.prefix for shape, count in self.trees.items())

    @property
    def response_tokens(self) -> float:
        """Tokens of all branches."""
        return sum(count * shape.branch_tokens for shape, count in self.trees.items())

    @property
    def tokens(self) -> float:
        """All tokens, each prefix counted once."""
        return self.prompt_tokens + self.response_tokens

    @property
    def targets(self) -> int:
        """Tokens of the branches of the largest micro-batch, at which log-probabilities are computed."""
        return sum(shape.branch_tokens for shape in self.largest.trees)

    @property
    def longest_row(self) -> TreeShape:
        """The longest row of the largest micro-batch."""
        return max(self.largest.trees, key=lambda shape: shape.tokens)


def workload_of(
    settings: TrainingSettings, limit: int | None, progress: Progress, opened: ExampleSource | None = None
) -> Workload:
    """What a recipe reads, from its data if it is `opened`; `[plan.rows]` replaces data that is not on this machine.

    Rows of files are planned as if none shared a prompt with another, except for the judge prompts of a comparison.
    Every judgment that GRPO samples is assumed to have `rollouts.max_completion_length` tokens.
    """
    stated = settings.plan.rows if settings.plan else ()
    model = settings.model
    tokenizer_name = model.new.tokenizer if model.new else model.path or ""
    if settings.data.world is not None:
        return _generated(settings, load_tokenizer(tokenizer_name), limit or _UNLIMITED)
    missing = [file.path for file in settings.data.files() if not Path(file.path).expanduser().exists()]
    if missing and not stated:
        of_row = "" if settings.rollouts else ", responses = 2, response = 500"
        raise ConfigError(
            f"{missing[0]} does not exist; create it, or state its rows in the recipe: "
            f"plan.rows = [{{rows = 1000, prompt = 30000{of_row}}}]"
        )
    try:
        tokenizer = None if missing or opened is not None else load_tokenizer(tokenizer_name)
    except ModelError:
        if not stated:
            raise
        tokenizer = None
    per_step, budget = settings.data.per_step, settings.memory.max_tokens_per_microbatch
    trees: Counter[TreeShape] = Counter()
    weighted: dict[TreeShape, float] = {}  # how often an epoch reads them
    counts: Mapping[str, int] = {}
    rollouts, rows, weighted_rows = settings.rollouts, 0, 0.0
    epochs = settings.optimizer.num_train_epochs or 1
    if tokenizer is None and opened is None:
        most = 1 + (settings.loss.rejected or _UNLIMITED) if settings.objective != "sft" else 1
        for one in stated:
            if rollouts is not None:
                branches = (rollouts.max_completion_length,) * rollouts.num_generations
            else:
                assert one.response is not None, "settings require it"
                branches = (one.response,) * min(one.responses, most)
            trees[TreeShape(one.prompt, branches)] += one.rows
        rows = trees.total()
        weighted, weighted_rows, epoch_steps = dict(trees), rows, float(-(-rows // per_step))
        origin = "[plan.rows], because the data or its tokenizer is not on this machine"
    else:
        objective = OBJECTIVES[settings.objective]
        source = opened
        if tokenizer is not None:
            source = open_source(
                settings.data,
                tokenizer,
                settings.seed,
                kind=objective.reads,
                limit=limit or _UNLIMITED,
                reserved=0 if rollouts is None else rollouts.max_completion_length,
                pairs=settings.loss.loss.reads_pairs,
                progress=progress,
            )
        assert isinstance(source, FileSource), "generated data is planned above"
        select = objective(settings.loss).select
        weights = {file.path: file.weight for file in settings.data.files()}
        for (file_path, _), own in groupby(source.examples(), key=_comparison):
            examples, weight = [select(example) for example in own], weights[file_path]
            rows += len(examples)
            weighted_rows += weight * len(examples)
            for shape in _shapes(examples, rollouts, budget):
                trees[shape] += 1
                weighted[shape] = weighted.get(shape, 0.0) + weight
        counts, epoch_steps = source.counts, source.steps(epochs) / epochs
        origin = "the data, row by row"
    iterations = 1 if rollouts is None else rollouts.num_iterations
    epoch_steps *= iterations
    steps = settings.optimizer.max_steps or round(epochs * epoch_steps)
    passes = steps / epoch_steps
    per_step = -(-per_step * trees.total() // rows)  # trees, which may have several judge prompts
    # The most that one micro-batch can have: the longest row, and the longest of those that fit next to it. `longest`
    # is the number of tokens of the `per_step` longest rows: if they exceed the budget, a step may need several parts.
    largest: list[TreeShape] = []
    room, rows_left, longest = budget, per_step, 0
    for shape in sorted(trees, key=lambda shape: -shape.tokens):
        more = min(trees[shape], per_step - len(largest), max(room // shape.tokens, int(not largest)))
        largest += [shape] * more
        room -= more * shape.tokens
        longest += min(rows_left, trees[shape]) * shape.tokens
        rows_left -= min(rows_left, trees[shape])
    return Workload(
        steps=steps,
        rows=passes * weighted_rows,
        trees={shape: passes * iterations * count for shape, count in weighted.items()},
        largest=PackedLayout(tuple(largest)),
        several=longest > budget and min(per_step, trees.total()) > 1,
        origin=origin,
        counts=counts,
        epochs=passes,
    )


def _comparison(example: Example) -> tuple[str, str]:
    """The file and the comparison of an example; the prompts of a comparison for a judge are in the same step."""
    return example.source, example.judge["id"] if example.judge else example.id


def _shapes(
    examples: Sequence[Example], rollouts: RolloutSettings | None, budget: int
) -> Iterator[TreeShape]:
    """The trees of the examples of a comparison."""
    if rollouts is None:
        for example in examples:
            yield from (tree.shape for tree in build_trees([example.tokens]))
        return
    items = [_with_judgments(example, rollouts).tokens for example in examples]
    for tree in build_trees(sorted(items, key=lambda item: list(item.prompt)), budget):
        yield tree.shape


def _with_judgments(example: Example, rollouts: RolloutSettings) -> Example:
    return example.with_judgments([(0,) * rollouts.max_completion_length] * rollouts.num_generations)


@dataclass(frozen=True, slots=True)
class _AssumedRollouts:
    """A source of judge prompts, with judgments that all have the most tokens."""

    prompts: ExampleSource
    rollouts: RolloutSettings

    def batch(self, step: int, length: int | None) -> list[Example]:
        return [_with_judgments(example, self.rollouts) for example in self.prompts.batch(step, length)]


def _generated(settings: TrainingSettings, tokenizer: Tokenizer, limit: int) -> Workload:
    """Draws one step of every length, and assumes that all steps of a length are like it."""
    world, steps = settings.data.world, settings.optimizer.max_steps
    assert world is not None
    assert settings.curriculum is not None
    assert steps is not None
    curriculum = Curriculum(settings.curriculum, steps=steps, seed=settings.seed)
    objective, rollouts = OBJECTIVES[settings.objective], settings.rollouts
    iterations = 1 if rollouts is None else rollouts.num_iterations
    source: ExampleSource = open_source(
        settings.data, tokenizer, settings.seed, kind=objective.reads, limit=limit
    )
    batches = Batches(
        source if rollouts is None else _AssumedRollouts(source, rollouts),
        objective(settings.loss),
        budget=settings.memory.max_tokens_per_microbatch,
        limit=limit,
        curriculum=curriculum,
    )
    lengths = [curriculum.length(step - step % iterations) for step in range(steps)]
    trees: Counter[TreeShape] = Counter()
    rows, several = 0.0, False
    largest = PackedLayout(())
    for length, count in Counter(lengths).items():
        micro_batches = batches.layouts(lengths.index(length))
        several |= len(micro_batches) > 1
        for layout, examples in micro_batches:
            largest = max(largest, layout, key=lambda one: one.tokens)
            rows += count / iterations * examples
            trees.update({shape: count * number for shape, number in Counter(layout.trees).items()})
    return Workload(
        steps=steps,
        rows=rows,
        trees=trees,
        largest=largest,
        several=several,
        origin=f"data.world, one step of every length of {', '.join(world.names)}",
    )
