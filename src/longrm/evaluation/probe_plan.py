"""What `longrm probe` asks: a grid in few words, what suits a model by default, and its progress in tokens."""

import re
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Literal

import numpy as np

from longrm.benchmarks import ProbeCell
from longrm.benchmarks.probe import ProbePart, without_tokenizer
from longrm.errors import ConfigError
from longrm.evaluation.evaluation_run import Evaluation, own_tokenizer, tokens_read
from longrm.evaluation.runner import Shard
from longrm.runs.progress import Progress
from longrm.worlds.prose.prose_world import reads_prose
from longrm.worlds.words_tokenizer import load_tokenizer

COMPARISONS = 128
"""Of each length, depth and task, by default."""

PROSE_TASKS = ("single-fact", "two-hops", "latest-update")
"""What a model that reads English is asked by default."""

WORDS_TASKS = ("records",)
"""What a model that knows the words of the demo's worlds alone is asked by default."""

_MOST_QUESTIONS = 8  # about one context
_CONTEXTS = 32  # or more, where there are as many comparisons: intervals cluster on contexts
_LONG = 4096  # tokens from which reading a context costs so much that few contexts share many questions
_MOST_QUESTIONS_LONG, _CONTEXTS_LONG = 4, 8
_SHORTEST = (
    1024  # tokens of the first default length; less for a model that reads little, but not less than these
)
_LEAST, _LEAST_PROSE = 64, 512
_POINTS = 4  # default lengths, unless that takes shorter ones than these
_ROOM = 512  # tokens for chat template, judging prompt and responses


def probe_cells(
    settings: Evaluation, lengths: str | None, depths: str | None, tasks: str | None, n: int
) -> tuple[ProbeCell, ...]:
    """The grid of a probe: one cell, or two where long contexts have more questions each than short ones.

    Args:
        settings: The evaluation, whose model and judge tell what is not given.
        lengths: Such as "8k,32k,131072"; by default powers of two up to what the model reads.
        depths: Such as "0,0.5,1" or "uniform"; by default those of `probe.depth`.
        tasks: Names of worlds; by default what suits the model's tokenizer.
        n: Comparisons of each length, depth and task.

    Raises:
        ConfigError: Something else than lengths or depths is given, or lengths are not and nothing tells what the
            model reads.
        ModelError: There is no such model.
    """
    worlds = _listed(tasks, "--tasks", "single-fact,two-hops") if tasks is not None else _tasks(settings)
    taken = _lengths(lengths) if lengths is not None else default_lengths(settings, worlds)
    placed = _depths(depths) if depths is not None else ()
    return tuple(
        ProbeCell(lengths=tuple(group), depths=placed, worlds=worlds, groups=groups, per_group=per_group)
        for (groups, per_group), group in groupby(taken, lambda length: contexts_of(n, length))
    )


def contexts_of(n: int, length: int) -> tuple[int, int]:
    """How many contexts of this length `n` comparisons are about, and how many questions each has.

    A context costs more to read than a question about it, but intervals resample contexts and need enough of them. So
    each context has as many questions as divide n and leave 32 contexts, 8 at most. Where contexts are long and n is
    small, 8 contexts do with up to 4 questions each: there 95% intervals covered the truth in 92% to 99% of
    simulated runs (accuracies of 0.6 to 0.95, answers about one context correlated by up to 0.3), with 4 contexts in
    87% to 99%.
    """
    fitting = [
        questions
        for questions in range(1, _MOST_QUESTIONS + 1)
        if n % questions == 0
        and (
            n // questions >= _CONTEXTS
            or (length >= _LONG and questions <= _MOST_QUESTIONS_LONG and n // questions >= _CONTEXTS_LONG)
        )
    ]
    per_group = max(fitting, default=1)
    return n // per_group, per_group


def default_lengths(settings: Evaluation, worlds: Sequence[str]) -> tuple[int, ...]:
    """Powers of two from 1,024, lower for a model that reads little, up to what it reads beside its answer.

    Prose has room for its facts from 512 on, the worlds of the words tokenizer from 64.

    512 tokens are left for templates and responses, and `judge.max_tokens` for what a judge writes.

    Raises:
        ConfigError: Nothing tells what the model reads, or it reads too little.
    """
    reads = tokens_read(settings)
    if reads is None:
        raise ConfigError(
            f"nothing tells how many tokens {settings.model} reads: give --lengths, such as 1k,4k,16k, or "
            "--set judge.max_length=TOKENS"
        )
    room = reads - _ROOM - settings.judge.max_tokens
    least = _LEAST if without_tokenizer(worlds) == "words" else _LEAST_PROSE
    if room < least:
        raise ConfigError(
            f"{settings.model} reads {reads:,} tokens, of which {_ROOM} are left for templates and responses and "
            f"{settings.judge.max_tokens:,} for an answer (judge.max_tokens): give --lengths, or lower it"
        )
    longest = 1 << (room.bit_length() - 1)
    length = max(least, min(_SHORTEST, longest >> (_POINTS - 1)))
    found = []
    while length <= longest:
        found.append(length)
        length *= 2
    return tuple(found)


def _tasks(settings: Evaluation) -> tuple[str, ...]:
    """Prose for a tokenizer that knows it, and where none is known."""
    name = settings.probe.tokenizer
    if name is None and (own := own_tokenizer(settings.model, settings.remote)):
        name = own.place
    return PROSE_TASKS if name is None or reads_prose(load_tokenizer(name)) else WORDS_TASKS


def _lengths(text: str) -> tuple[int, ...]:
    found = []
    for part in _listed(text, "--lengths", "8k,32k,128k"):
        number = re.fullmatch(r"([1-9][0-9]{0,8})([kK]?)", part)
        if number is None:
            raise ConfigError(f"--lengths needs tokens such as 8k,32k,128k (8k is 8192), got '{part[:40]}'")
        found.append(int(number[1]) * (1024 if number[2] else 1))
    if len({*found}) < len(found):
        raise ConfigError(f"--lengths names a length twice: {text[:80]}")
    return tuple(sorted(found))


def _depths(text: str) -> tuple[float | Literal["uniform"], ...]:
    found: list[float | Literal["uniform"]] = []
    for part in _listed(text, "--depths", "0,0.5,1"):
        if part == "uniform":
            found.append("uniform")
        elif re.fullmatch(r"0|1|[01]?\.[0-9]{1,9}", part) and float(part) <= 1:
            found.append(float(part))
        else:
            raise ConfigError(
                f"--depths needs numbers from 0 (start) to 1 (end) or uniform, such as 0,0.5,1; got '{part[:40]}'"
            )
    if len({*found}) < len(found):
        raise ConfigError(f"--depths names a depth twice: {text[:80]}")
    return tuple(found)


def _listed(text: str, option: str, example: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise ConfigError(f"{option} needs a list with commas, such as {example}; got '{text[:80]}'")
    return parts


def token_progress(parts: Sequence[ProbePart], shard: Shard | None, report: Progress) -> Progress:
    """Turns progress in comparisons into progress in context tokens, which judging time depends on.

    Each context counts once, however many questions it has.

    Args:
        parts: What is asked, in order.
        shard: Which part of it is judged; None for all.
        report: Receives the progress in tokens.
    """
    ends = list(accumulate(len(part.places) for part in parts))
    tokens = list(accumulate(part.tokens for part in parts))
    shards = shard.count if shard is not None else 1

    def in_tokens(label: str, done: int, total: int, note: str = "") -> None:
        place = min(done * shards, ends[-1])  # the batches of a shard are spread over all parts
        read = float(np.interp(place, [0, *ends], [0, *tokens]))
        report(f"{label}, context tokens", round(read / shards), round(tokens[-1] / shards), note)

    return in_tokens
