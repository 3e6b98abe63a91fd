"""What a training reads, as shapes: how many rows of which lengths, and its largest micro-batch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ModelError
from longrm.modeling.shared_prefix import Layout, TreeShape
from longrm.runs.progress import Progress, no_progress
from longrm.training.batches import Batches, Objective
from longrm.training.bradley_terry import BradleyTerry, BradleyTerryTraining
from longrm.training.curriculum import Curriculum
from longrm.training.data import FileSource
from longrm.training.preference import Preference, PreferenceTraining
from longrm.training.run import Recipe, source_of
from longrm.training.settings import PlannedRows, Training
from longrm.training.sft import SFT, SFTTraining
from longrm.worlds.words_tokenizer import load_tokenizer

_ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Reading:
    """What a training reads.

    Attributes:
        steps: Optimizer steps.
        rows: Rows in all of them.
        trees: How often a tree of each shape is read.
        largest: The micro-batch with the most tokens.
        several: Whether a step may have several micro-batches.
        origin: Where the lengths come from, in a few words.
        counts: Rows read, and left out by reason, where there is a file.
        epochs: Passes over the data; generated data is read once.
    """

    steps: int
    rows: float
    trees: Mapping[TreeShape, float]
    largest: Layout
    several: bool
    origin: str
    counts: Mapping[str, int] = field(default_factory=dict)
    epochs: float = 1.0

    @property
    def prompt_tokens(self) -> float:
        """Tokens of all prefixes."""
        return sum(count * shape.prefix for shape, count in self.trees.items())

    @property
    def response_tokens(self) -> float:
        """Tokens of all branches."""
        return sum(count * shape.branch_tokens for shape, count in self.trees.items())

    @property
    def targets(self) -> int:
        """Tokens of the branches of the largest micro-batch."""
        return sum(shape.branch_tokens for shape in self.largest.trees)

    @property
    def separate_tokens(self) -> float:
        """Tokens that would be read if every response had a copy of its prompt."""
        return sum(
            count * (shape.branch_tokens + shape.prefix * len(shape.branches))
            for shape, count in self.trees.items()
        )


def reading_of(recipe: Recipe, limit: int | None, progress: Progress) -> Reading:
    """What a recipe reads; `[plan.rows]` stand in for data that is not at hand.

    Args:
        recipe: The recipe.
        limit: Tokens that the model reads, where that is known.
        progress: Called while rows are tokenized.

    Raises:
        ConfigError: Neither the data nor `[plan.rows]` are there.
        DataError: The data cannot be read.
    """
    planned = recipe.plan.rows if recipe.plan else ()
    if recipe.data.world is not None:
        return _generated(recipe, limit or _ENDLESS)
    missing = [file.path for file in recipe.data.files() if not Path(file.path).expanduser().exists()]
    if missing and not planned:
        raise ConfigError(
            f"{missing[0]} is not there; make it, or state its rows in the recipe: "
            "plan.rows = [{rows = 1000, prompt = 30000, responses = 2, response = 500}]"
        )
    tokenizer = None if missing else _tokenizer(recipe, optional=bool(planned))
    if tokenizer is None:
        return _stated(recipe, planned)
    source = source_of(recipe, tokenizer, limit=limit or _ENDLESS, progress=progress)
    assert isinstance(source, FileSource), "a world has been dealt with"
    return _of_file(recipe, source)


def objective_of(recipe: Recipe) -> Objective:
    """The objective of a recipe, to tell which responses it reads; it computes no loss that needs a reference."""
    match recipe:
        case SFTTraining():
            return SFT()
        case BradleyTerryTraining():
            return BradleyTerry(recipe.loss)
        case PreferenceTraining():
            return Preference(recipe.loss)
        case unknown:
            assert_never(unknown)


def _tokenizer(recipe: Training, *, optional: bool) -> Tokenizer | None:
    model = recipe.model
    try:
        return load_tokenizer(model.new.tokenizer if model.new else model.path or "")
    except ModelError:
        if not optional:
            raise
        return None


def _stated(recipe: Recipe, planned: Iterable[PlannedRows]) -> Reading:
    most = _most_responses(recipe)
    trees: Counter[TreeShape] = Counter()
    for rows in planned:
        responses = min(rows.responses, most)
        trees[TreeShape(rows.prompt, (rows.response,) * responses)] += rows.rows
    return _of_rows(recipe, trees, trees, "[plan.rows]; the data or its tokenizer is not here", {})


def _most_responses(recipe: Recipe) -> int:
    match recipe:
        case SFTTraining():
            return 1
        case BradleyTerryTraining():
            return _ENDLESS
        case PreferenceTraining():
            return _ENDLESS if recipe.loss.rejected is None else 1 + recipe.loss.rejected
        case unknown:
            assert_never(unknown)


def _of_file(recipe: Recipe, source: FileSource) -> Reading:
    select = objective_of(recipe).select
    weights = {file.label: file.weight for file in recipe.data.files()}
    trees: Counter[TreeShape] = Counter()
    weighted: dict[TreeShape, float] = {}
    for example in source.examples():
        tokens = select(example).tokens
        shape = TreeShape(len(tokens.prompt), tuple(map(len, tokens.responses)))
        trees[shape] += 1
        weighted[shape] = weighted.get(shape, 0.0) + weights[example.source]
    return _of_rows(
        recipe, trees, weighted, "the data, every row by itself", source.counts, source.epoch_steps()
    )


def _of_rows(
    recipe: Recipe,
    trees: Counter[TreeShape],
    weighted: Mapping[TreeShape, float],
    origin: str,
    counts: Mapping[str, int],
    epoch_steps: int | None = None,
) -> Reading:
    """Rows as they would be read if none shared a prompt with another; an epoch reads as many as `weighted` says."""
    per_step, budget = recipe.data.per_step, recipe.memory.tokens_per_forward
    epoch_steps = epoch_steps or -(-trees.total() // per_step)
    steps = recipe.optimizer.steps or (recipe.optimizer.epochs or 1) * epoch_steps
    passes = steps / epoch_steps
    longest = sorted(trees, key=lambda shape: -shape.tokens)
    return Reading(
        steps=steps,
        rows=passes * sum(weighted.values()),
        trees={shape: passes * count for shape, count in weighted.items()},
        largest=_fullest(longest, trees, per_step, budget),
        several=_several(longest, trees, per_step, budget),
        origin=origin,
        counts=counts,
        epochs=passes,
    )


def _fullest(
    longest: Iterable[TreeShape], trees: Mapping[TreeShape, int], per_step: int, budget: int
) -> Layout:
    """The most that a step can put into one micro-batch: the longest row, and what still fits beside it."""
    taken: list[TreeShape] = []
    room = budget
    for shape in longest:
        fitting = max(room // shape.tokens, int(not taken))
        more = min(trees[shape], per_step - len(taken), fitting)
        taken += [shape] * more
        room -= more * shape.tokens
    return Layout(tuple(taken))


def _several(
    longest: Iterable[TreeShape], trees: Mapping[TreeShape, int], per_step: int, budget: int
) -> bool:
    tokens = left = 0
    left = per_step
    for shape in longest:
        tokens += min(left, trees[shape]) * shape.tokens
        left -= min(left, trees[shape])
    return tokens > budget and min(per_step, sum(trees.values())) > 1


def _generated(recipe: Recipe, limit: int) -> Reading:
    """One step of every length is drawn; all steps of a length are taken to be like it."""
    assert recipe.data.world is not None, "the caller has seen it"
    assert recipe.curriculum is not None, "settings ask for it"
    assert recipe.optimizer.steps is not None, "settings ask for it"
    steps, seed = recipe.optimizer.steps, recipe.seed
    curriculum = Curriculum(recipe.curriculum, steps=steps, seed=seed)
    tokenizer = _tokenizer(recipe, optional=False)
    assert tokenizer is not None
    source = source_of(recipe, tokenizer, limit=limit, progress=no_progress)
    budget = recipe.memory.tokens_per_forward
    batches = Batches(source, objective_of(recipe), budget=budget, limit=limit, curriculum=curriculum)
    lengths = [curriculum.length(step) for step in range(steps)]
    trees: Counter[TreeShape] = Counter()
    rows, several = 0, False
    layouts: list[Layout] = []
    for length, count in Counter(lengths).items():
        micro_batches = batches.prepare(lengths.index(length)).micro_batches
        several |= len(micro_batches) > 1
        for micro in micro_batches:
            layouts.append(micro.packed.layout)
            rows += count * len(micro.examples)
            for shape in micro.packed.layout.trees:
                trees[shape] += count
    return Reading(
        steps=steps,
        rows=rows,
        trees=trees,
        largest=max(layouts, key=lambda layout: layout.tokens),
        several=several,
        origin=f"data.world, one step of every length of {recipe.data.world.name} drawn",
    )
