"""What a training step reads: a pure function of the seed, the step and the curriculum's length.

No iterator holds state, so a resumed run draws what an uninterrupted one would have drawn.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from longrm.data.joining import Encoded, encode
from longrm.data.readers import Skipped
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import (
    Example,
    RowKind,
    context_digest,
    digest_of,
    open_rows,
    tokenize_rows,
)
from longrm.errors import ConfigError, DataError
from longrm.judging import load_format
from longrm.judging.judge_prompts import judge_prompt_rows
from longrm.rng import Rng
from longrm.runs.progress import Progress, no_progress
from longrm.training.sampling import Mixture
from longrm.training.settings import DataSettings, WorldDataSettings
from longrm.training.world_judgments import TEMPLATES, JudgmentWriter
from longrm.types import Comparison
from longrm.worlds import WorldPlan, group

_MIN_BEST_OF_N_LENGTH = 128
"""Tokens of a context from which comparisons may have more than two responses; shorter ones have too few facts."""

_logger = logging.getLogger(__name__)


class GeneratedSource:
    """Fresh contexts of a world for every step. The settings determine the data, so it has no counts and no digest."""

    digest = ""

    def __init__(self, world: WorldDataSettings, tokenizer: Tokenizer, kind: RowKind) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._tokenizer = tokenizer
        self._kind = kind
        self._writer, self._formats = None, {}
        if kind == "judge_prompt":
            templates: Mapping[str, Path] = TEMPLATES if world.names == ("records",) else {}
            own = Path(world.template) if world.template else None
            self._formats = {
                form: load_format(form, template=own or templates.get(form))
                for form in world.completions or ("pairwise",)
            }
        elif world.completions:
            self._writer = JudgmentWriter(tokenizer, world.completions)

    def batch(self, step: int, length: int | None) -> list[Example]:
        """As many contexts as the token budget allows, with the responses of the step divided among them."""
        assert length is not None, "generated data has a curriculum"
        world = self._world
        contexts = max(1, min(world.responses_per_step // 2, world.tokens_per_step // length))
        rows: list[Comparison] = []
        for index in range(contexts):
            # Numbers of responses take turns from context to context, and go on from step to step.
            choices = [n for n in world.responses if n == 2 or length >= _MIN_BEST_OF_N_LENGTH] or [2]
            responses = choices[(step + index) % len(choices)]
            plan = WorldPlan(
                world=Rng("world", world.seed, step, index).choice(world.names),
                length=length,
                responses=responses,
                depth="uniform",
                per_group=max(1, world.responses_per_step // (contexts * responses)),
                seed=world.seed,
                texts=world.texts,
            )
            rows += group(plan, step * world.responses_per_step + index, self._tokenizer)
        if self._formats:
            return [example for row in rows for example in self._judge_prompts(row)]
        examples = [example for row in rows if (example := self._example(row)) is not None]
        if not examples:
            raise ConfigError(
                f"step {step + 1}: the simulated judges agree on all {len(rows)} questions, so there is nothing to "
                "prefer; raise data.world.responses_per_step"
            )
        return examples

    def _judge_prompts(self, row: Comparison) -> list[Example]:
        """The judging prompts of a comparison, in every order, in a format that is drawn from its id."""
        format = self._formats[Rng("written", row.id).choice(list(self._formats))]
        return [
            Example(
                f"{row.id}#{'-'.join(map(str, judge['order']))}",
                Encoded(self._tokenizer.generation_ids(judge["prompt"]), ()),
                (),
                context_digest(row),
                source=str(row.metadata["task"]),
                judge=judge,
            )
            for judge in judge_prompt_rows(row, format, tokenizer=self._tokenizer)
        ]

    def _example(self, row: Comparison) -> Example | None:
        """None for a question on which all judges agree."""
        tokens: Encoded | None
        if self._writer is not None:
            write = self._writer.demonstration if self._kind == "demonstration" else self._writer.preference
            tokens = write(row)
            if tokens is None:
                return None
            ranks: tuple[int, ...] = (1, *[2] * (len(tokens.responses) - 1))
        else:
            assert row.ranks is not None, "worlds know the order"
            tokens, ranks = encode(self._tokenizer, row.prompt, row.responses), row.ranks
            if self._kind == "demonstration":
                tokens, ranks = tokens.only(row.best_first()[:1]), (1,)
        return Example(row.id, tokens, ranks, context_digest(row), source=str(row.metadata["task"]))


@dataclass(frozen=True, slots=True)
class _File:
    """One file: the rows to train on, and the counts for the summary."""

    path: str
    weight: float
    comparisons: Sequence[Sequence[Example]]  # the rows of one comparison, which stay together
    counts: Mapping[str, int]


class FileSource:
    """The rows of one file or several, in a new order for every epoch; see `sampling.Mixture`.

    The prompts of a comparison for a judge, one for each order, are in the same step.

    Attributes:
        counts: Rows `read`, `used`, omitted as `bad`, `tied`, `too_long` or `labeled_bad`; rows `without_contrast`,
            which are used or omitted as the settings say; rows with a `margin` or a `probability`. Of trajectories
            also rows omitted as `unlabeled`, and `Example.step_counts` of the rows that are used.
        digest: Digest of all files.
    """

    def __init__(self, files: Sequence[_File], data: DataSettings, seed: int, digest: str) -> None:
        self.counts = {name: sum(file.counts[name] for file in files) for name in files[0].counts}
        self.digest = digest
        self._files = files
        self._per_step = data.per_step
        lengths = [[rows[0].tokens.longest for rows in file.comparisons] for file in files]
        self._mixture = Mixture(lengths, [file.weight for file in files], seed, data.group_by_length)
        self._epoch = lru_cache(maxsize=8)(self._cut_epoch)  # dynamic sampling reads several at once
        self._ends: list[int] = []  # the step after the last one of each epoch, as far as they are known

    def batch(self, step: int, length: int | None) -> list[Example]:
        """The next rows of the epoch's order; the last step of an epoch may have fewer."""
        while not self._ends or self._ends[-1] <= step:
            self.steps(len(self._ends) + 1)
        epoch = bisect_right(self._ends, step)
        within = step - self._ends[epoch]  # from the epoch's end
        return self._epoch(epoch)[within]

    def _cut_epoch(self, number: int) -> list[list[Example]]:
        """The rows of every step of an epoch: as many whole comparisons as `per_step` rows hold."""
        steps: list[list[Example]] = []
        room = 0
        for file, at in self._mixture.epoch(number):
            rows = self._files[file].comparisons[at]
            if len(rows) > room:
                steps.append([])
                room = self._per_step  # a larger comparison has a step of its own
            steps[-1] += rows
            room -= len(rows)
        return steps

    def judge_rows(self) -> list[Mapping[str, Any]]:
        """The columns of all judge prompts; their ids name the file, for errors."""
        return [
            {**row.judge, "id": f"{row.source}/{row.judge['id']}"}
            for row in self.examples()
            if row.judge is not None
        ]

    def steps(self, epochs: int) -> int:
        """Steps of the first epochs, which may differ where comparisons have different numbers of rows."""
        while len(self._ends) < epochs:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + len(self._epoch(len(self._ends))))
        return self._ends[epochs - 1]

    def log_step_sizes(self) -> None:
        """Logs how many rows a step reads if these are not `per_step`."""
        sizes = [len(rows) for rows in self._epoch(0)]
        if sizes[-1] < self._per_step:
            sizes.pop()  # the rest of the epoch
        if {*sizes} - {self._per_step}:
            few, many = min(sizes), max(sizes)
            _logger.info(
                "data.per_step = %d: a step reads %s rows, because the prompts of a comparison stay together",
                self._per_step,
                few if few == many else f"{few} to {many}",
            )

    def examples(self) -> Iterator[Example]:
        """All rows, each once, in file order, whatever their weight."""
        return (row for file in self._files for rows in file.comparisons for row in rows)


def open_source(
    data: DataSettings,
    tokenizer: Tokenizer,
    seed: int,
    *,
    kind: RowKind,
    limit: int,
    reserved: int = 0,
    pairs: bool = False,
    progress: Progress = no_progress,
) -> GeneratedSource | FileSource:
    """Opens the data that the settings name, for one kind of rows, and logs what is omitted.

    The best responses of a world are its demonstrations. `limit` is the model's context window in tokens, of which
    `reserved` are for completions that are sampled; `seed` is that of the order of the rows. With `pairs` a trajectory
    needs steps with different labels.
    """
    if data.world is not None:
        return GeneratedSource(data.world, tokenizer, kind)
    files, digests = [], []
    for file in data.files():
        if kind != "comparison" and file.format is not None:
            raise ConfigError(f"{file.path}: '{file.format}' is a format of comparisons; omit it")
        rows = open_rows(
            file.path, kind, format=file.format, columns=file.columns, on_bad_row=data.on_bad_row
        )
        examples = list(tokenize_rows(rows, tokenizer, progress, data.neutral_steps))
        needed = (2 if pairs else 1) if kind == "trajectory" else 0
        comparisons, counts = _rows_to_use(file.path, examples, rows.skipped, data, limit, reserved, needed)
        prefix = f"{file.path}/" if len(data.files()) > 1 else ""  # ids are unique within a file only
        comparisons = [
            [replace(row, id=prefix + row.id, source=file.path) for row in own] for own in comparisons
        ]
        files.append(_File(file.path, file.weight, comparisons, counts))
        digests.append(digest_of(rows, tokenizer))
    source = FileSource(files, data, seed, "-".join(digests))
    source.log_step_sizes()
    return source


def _rows_to_use(
    path: str,
    rows: Sequence[Example],
    skipped: Skipped,
    data: DataSettings,
    limit: int,
    reserved: int,
    needed: int,
) -> tuple[list[list[Example]], dict[str, int]]:
    """Omits rows as the settings say, and logs how many; returns the others by comparison, and the counts.

    A trajectory needs as many different labels as `needed`, which is 0 for other rows.
    """
    scores = {row.score for row in rows if row.score is not None}
    # 0 and 1, or -1 and 1, are labels; on any other scale it is not known from where on a completion is good.
    are_labels = 1.0 in scores and scores <= {-1.0, 0.0, 1.0}
    labeled_bad = [
        row
        for row in rows
        if row.label is False or (are_labels and row.label is None and row.score in (-1.0, 0.0))
    ]
    tied = [row for row in rows if row.tied]
    if tied and data.on_bad_row == "stop":
        raise DataError(
            f"{path}: '{tied[0].id}' has no gold order: all its ranks are tied; "
            f'data.on_bad_row = "skip" omits such rows ({len(tied)})'
        )
    longest = min(limit, data.max_length or limit) - reserved
    bad = {row.id for row in labeled_bad}
    too_long = [row for row in rows if row.tokens.longest > longest and row.id not in bad]
    if too_long and data.too_long == "stop":
        bound = "the context window" if longest + reserved == limit else "data.max_length"
        leaves = (
            f"{longest + reserved} leaves with rollouts.max_completion_length = {reserved}"
            if reserved
            else str(longest)
        )
        raise DataError(
            f"{path}: '{too_long[0].id}' has {too_long[0].tokens.longest} tokens, more than {bound} of "
            f'{leaves}; data.too_long = "skip" omits such rows ({len(too_long)})'
        )
    unlabeled = [row for row in rows if len({*row.labels}) < needed]
    without_contrast = [row for row in rows if row.contrast is False]
    skips_these = data.without_contrast == "skip"
    omitted = bad | {
        row.id for row in (*tied, *too_long, *unlabeled, *(without_contrast if skips_these else ()))
    }
    kept = [row for row in rows if row.id not in omitted]
    counts = {
        "read": len(rows) + skipped.count,
        "used": len(kept),
        "bad": skipped.count,
        "tied": len(tied),
        "too_long": len(too_long),
        "labeled_bad": len(labeled_bad),
        "without_contrast": len(without_contrast),
        "margin": sum(row.margin is not None for row in kept),
        "probability": sum(row.probability is not None for row in kept),
    }
    if needed:
        of_steps = [row.step_counts for row in kept]
        counts["unlabeled"] = len(unlabeled)
        counts |= {name: sum(own[name] for own in of_steps) for name in rows[0].step_counts}
    skipped.log()
    _logger.info("%s: %d rows read, %d used", path, counts["read"], counts["used"])
    for what, which in (
        ("omitted, all responses tied", tied),
        (f"omitted, longer than {longest} tokens", too_long),
        ("omitted, labeled as bad", labeled_bad),
        ("omitted, no labels of steps that the loss can read", unlabeled),
        (f"{'omitted' if skips_these else 'used'}, all judgments give one score", without_contrast),
    ):
        if which:
            ids = [row.id for row in which[:5]] + ["..."] * (len(which) > 5)
            # A warning is seen in Python, too, where no log is set up.
            level = logging.WARNING if what.startswith("omitted") else logging.INFO
            _logger.log(level, "  %s: %d rows (%s)", what, len(which), ", ".join(ids))
    unknown = sum(row.contrast is None for row in rows)
    if unknown and skips_these:
        _logger.info("  used, scores of the judgments are unknown: %d rows", unknown)
    if scores and not are_labels:
        scored = sum(row.score is not None for row in kept)
        span = f"{min(scores):g} to {max(scores):g}"
        _logger.info("  learned whatever their score, %s: %d rows", span, scored)
    for name in ("margin", "probability"):
        if counts[name]:
            _logger.info("  with a %s: %d rows", name, counts[name])
    if needed:
        _logger.info(
            '  steps: %d with a label, %d of them outcomes; %d neutral (data.neutral_steps = "%s"), %d without a label',
            *(counts[name] for name in ("labeled_steps", "outcomes", "neutral_steps")),
            data.neutral_steps,
            counts["unlabeled_steps"],
        )
    if not kept:
        raise DataError(f"{path}: none of {counts['read']} rows is left to train on; the log has the reasons")
    comparisons: dict[str, list[Example]] = {}
    for row in kept:
        comparisons.setdefault(row.judge["id"] if row.judge else row.id, []).append(row)
    return [*comparisons.values()], counts
