"""Evaluates a model on generated contexts: the grid of lengths, depths and tasks, and progress in tokens."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from longrm.benchmarks import ProbeCell
from longrm.benchmarks.probe import ProbePart, without_tokenizer
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.evaluation.evaluate import Evaluation, evaluate, own_tokenizer, tokens_read
from longrm.evaluation.read_run import Run
from longrm.reward_models import Model, RewardModel, loaded, name_of
from longrm.runs.progress import Progress
from longrm.runs.resumable import Shard
from longrm.worlds.prose.prose_world import reads_prose
from longrm.worlds.words_tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = TypeVar("Part")

COMPARISONS = 128
"""Default number of comparisons per length, depth and task."""

PROSE_TASKS = ("exchange", "joined-facts", "dated-update")
"""Default tasks for a model that reads English; no shallow rule answers them."""

WORDS_TASKS = ("records",)
"""Default tasks for a model that knows only the words of the demo's worlds."""

# Questions per context: a context costs more to read than a question about it, but intervals resample contexts. Short
# contexts: as many questions as divide n and leave 32 contexts, at most 8. From _LONG tokens on, 8 contexts with up to
# 4 questions are enough: 95% intervals covered the truth in 92% to 99% of simulated runs (accuracies of 0.6 to 0.95,
# answers about one context correlated by up to 0.3), against 87% to 99% with 4 contexts.
_MAX_QUESTIONS, _CONTEXTS = 8, 32
_LONG = 4096
_MAX_QUESTIONS_LONG, _CONTEXTS_LONG = 4, 8
# Default lengths: powers of two from _SHORTEST on; lower for a small model so that there are _POINTS of them, but not
# below _LEAST (or _LEAST_PROSE, where a text has room for its facts).
_SHORTEST, _LEAST, _LEAST_PROSE = 1024, 64, 512
_POINTS = 4
_ROOM = 512  # tokens for chat template, judging prompt and responses


def probe(
    model: Model,
    out: str | Path | None = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | str | None" = None,
    lengths: Sequence[int] | int | None = None,
    depths: Sequence[float] | float | None = None,
    tasks: Sequence[str] | str | None = None,
    n: int = COMPARISONS,
    settings: Mapping[str, object] | None = None,
) -> Run:
    """Evaluates a model on generated contexts whose answers are known, as `longrm probe` does.

    Args:
        model: As for `evaluate`.
        out: The run folder, as for `evaluate`.
        tokenizer: Of a transformers model; see `longrm.load`.
        lengths: Context lengths in tokens of the model; by default powers of two up to the model's limit.
        depths: Positions of the evidence, from 0 (start) to 1 (end); by default uniform.
        tasks: Names of worlds; by default those that fit the model's tokenizer.
        n: Comparisons per length, depth and task.
        settings: Further settings of `longrm evaluate` by dotted key.
    """
    given = {"model": name_of(model), "bench": "probe", **(settings or {})}
    resolved, judge = loaded(model, tokenizer, Evaluation.resolve(overrides=given))
    given["model"] = resolved.model
    grid: list[str | None] = []
    for values in (lengths, depths, tasks):
        listed = [values] if isinstance(values, str | int | float) else values
        grid.append(None if listed is None else ",".join(map(str, listed)))
    cells = probe_cells(resolved, grid[0], grid[1], grid[2], n, judge)
    given["probe.cells"] = [cell.model_dump() for cell in cells]
    return evaluate(judge or model, "probe", out, given)


def probe_cells(
    settings: Evaluation,
    lengths: str | None,
    depths: str | None,
    tasks: str | None,
    n: int,
    judge: RewardModel | None = None,
) -> tuple[ProbeCell, ...]:
    """The grid of a probe: one cell, or two if long contexts have more questions each than short ones.

    Args:
        settings: The evaluation, whose model and judge determine the defaults.
        lengths: Such as "8k,32k,131072"; by default powers of two up to the model's context window.
        depths: Such as "0,0.5,1" or "uniform"; by default "uniform".
        tasks: Names of worlds; by default those that fit the model's tokenizer.
        n: Comparisons per length, depth and task.
        judge: The reward model, if the caller has it in memory.
    """
    worlds = _listed(tasks, "--tasks", str) if tasks is not None else _tasks(settings, judge)
    if lengths is not None:
        sizes = tuple(sorted(_listed(lengths, "--lengths", _length)))
    else:
        sizes = default_lengths(settings, worlds, judge)
    places = _listed(depths, "--depths", _depth) if depths is not None else ("uniform",)
    return tuple(
        ProbeCell(lengths=tuple(group), depths=places, worlds=worlds, groups=groups, per_group=per_group)
        for (groups, per_group), group in groupby(sizes, lambda length: contexts_of(n, length))
    )


def contexts_of(n: int, length: int) -> tuple[int, int]:
    """The number of contexts of this length for n comparisons, and the number of questions about each."""
    best = 1
    for questions in range(2, _MAX_QUESTIONS + 1):
        contexts = n // questions
        fits_long = length >= _LONG and questions <= _MAX_QUESTIONS_LONG and contexts >= _CONTEXTS_LONG
        if n % questions == 0 and (contexts >= _CONTEXTS or fits_long):
            best = questions
    return n // best, best


def default_lengths(
    settings: Evaluation, worlds: Sequence[str], judge: RewardModel | None = None
) -> tuple[int, ...]:
    """Powers of two up to the model's context window, less `_ROOM` and what a judge writes (`judge.max_tokens`)."""
    window = tokens_read(settings, judge)
    if window is None:
        raise ConfigError(
            f"the context window of {settings.model} is unknown: give --lengths, such as 1k,4k,16k, or "
            "--set model_args.max_length=TOKENS"
        )
    room = window - _ROOM - settings.judge.max_tokens
    least = _LEAST if without_tokenizer(worlds) == "words" else _LEAST_PROSE
    if room < least:
        raise ConfigError(
            f"{settings.model} reads {window:,} tokens, of which {_ROOM} are for templates and responses and "
            f"{settings.judge.max_tokens:,} for an answer (judge.max_tokens): give --lengths, or lower it"
        )
    longest = 1 << (room.bit_length() - 1)
    first = max(least, min(_SHORTEST, longest >> (_POINTS - 1)))
    return tuple(first << k for k in range((longest // first).bit_length()))


def _tasks(settings: Evaluation, judge: RewardModel | None) -> tuple[str, ...]:
    """Prose if the tokenizer knows it, or is unknown."""
    name: str | Tokenizer | None = settings.probe.tokenizer
    if name is None and (own := own_tokenizer(settings.model, settings.remote, judge)):
        name = own.place
    return PROSE_TASKS if name is None or reads_prose(load_tokenizer(name)) else WORDS_TASKS


def _listed(text: str, option: str, read: Callable[[str], Part]) -> tuple[Part, ...]:
    """The values of an option that takes a list."""
    found = tuple(read(part.strip()) for part in text.split(","))
    if len(set(found)) < len(found):
        raise ConfigError(f"{option} has a value twice: {text}")
    return found


def _length(text: str) -> int:
    number = re.fullmatch(r"([1-9][0-9]*)([kK]?)", text)
    if number is None:
        raise ConfigError(f"--lengths: '{text}' is not a number of tokens, such as 8192 or 8k")
    return int(number[1]) * (1024 if number[2] else 1)


def _depth(text: str) -> float | Literal["uniform"]:
    if text == "uniform":
        return "uniform"
    if not re.fullmatch(r"0|1|[01]?\.[0-9]+", text) or float(text) > 1:
        raise ConfigError(f"--depths: '{text}' is not 'uniform' or a number from 0 (start) to 1 (end)")
    return float(text)


def token_progress(parts: Sequence[ProbePart], shard: Shard | None, report: Progress) -> Progress:
    """Turns progress in comparisons into progress in context tokens, which judging time depends on.

    Each context counts once, however many questions it has.
    """
    ends = list(accumulate(len(part.places) for part in parts))
    tokens = list(accumulate(part.tokens for part in parts))
    shards = shard.count if shard is not None else 1

    def in_tokens(label: str, done: int, total: int, note: str = "") -> None:
        place = min(done * shards, ends[-1])  # the batches of a shard are spread over all parts
        read = float(np.interp(place, [0, *ends], [0, *tokens]))
        report(f"{label}, context tokens", round(read / shards), round(tokens[-1] / shards), note)

    return in_tokens
