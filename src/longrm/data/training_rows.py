"""The rows that training reads, as tokens: their gold order and what is known about them.

Rows that would poison training are errors: no gold order, no token to learn from, or equal tokens with different ranks.

Rows are tokenized at every start and kept in memory, four bytes a token; there is no cache on the disk. A processor
tokenizes 740,000 tokens of long prompts per second (Qwen2.5's tokenizer). An H100 at half of its peak trains an 8B
model on 7,700, so one pass over the data takes a hundred times as long.
"""

import hashlib
import json
import math
import os
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import tokenizers

from longrm.column_names import Columns
from longrm.data.fields import why_no_gold
from longrm.data.files import rows_digest
from longrm.data.joining import Encoded, encode, encode_steps, join_steps
from longrm.data.readers import (
    ComparisonReader,
    ComparisonRow,
    DemonstrationReader,
    DemonstrationRow,
    OnBadRow,
    read,
    read_demonstrations,
)
from longrm.data.tokenizing import Tokenizer
from longrm.data.trajectories import TrajectoryReader, TrajectoryRow, read_trajectories
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, located, short
from longrm.runs.progress import Progress, no_progress
from longrm.types import Comparison, Demonstration, Response, Trajectory, message_text, text_of

RowKind = Literal["comparison", "demonstration", "judge_prompt", "trajectory"]
Rows = ComparisonReader | DemonstrationReader | TrajectoryReader

NeutralSteps = Literal["skip", "right", "wrong"]
"""Whether steps with the label 0 are omitted, or trained as right or as wrong ones."""

_LARGEST_MARGIN = 1000  # the loss of a larger one would drown all other rows
_UNPARSED = -1  # the score in LongRM's released rows of a judgment from which none could be read


@dataclass(frozen=True, slots=True)
class Example:
    """A row of training data as token ids: a comparison, a demonstration, a judge prompt or a trajectory.

    The responses of a demonstration are its one completion, and those of a trajectory end at its labeled steps.

    Attributes:
        id: Unique within its file.
        tokens: The prompt and the responses; a judge prompt has none until judgments are sampled for it.
        ranks: Gold ranks of the responses, 1 = best, of a trajectory by their labels; (1,) for a demonstration, empty
            for a judge prompt.
        digest: See `context_digest`; for the log of what was trained on.
        source: Its file or world.
        margin: By how much the score of a better response should exceed that of a worse one, if known.
        probability: The probability that the gold order is right, from 0.5 to 1, if known.
        judge: The columns of a judge prompt, which reward the judgments that are sampled for it.
        contrast: Whether some rejected judgment gives another score than the chosen one; None if the row does not say,
            or its responses are no judgments.
        label: Whether the row of a demonstration says that its completion is good; None if it does not say.
        score: The score that the row gives the completion of a demonstration, if any.
        labels: Of a trajectory, the probability that each labeled step is right: 1 or 0, or in between.
        step_counts: The steps of a trajectory by how they are used: labeled, neutral, unlabeled.
    """

    id: str
    tokens: Encoded
    ranks: tuple[int, ...]
    digest: str
    source: str = ""
    margin: float | None = None
    probability: float | None = None
    judge: Mapping[str, Any] | None = None
    contrast: bool | None = None
    label: bool | None = None
    score: float | None = None
    labels: tuple[float, ...] = ()
    step_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        return self.tokens.size

    @property
    def tied(self) -> bool:
        """Whether several responses all have the same rank; steps of a trajectory may."""
        return not self.labels and len(self.ranks) > 1 and len(set(self.ranks)) == 1

    def with_judgments(self, judgments: Sequence[Sequence[int]]) -> "Example":
        """The same judge prompt with judgments, given by their tokens, as its responses."""
        return replace(self, tokens=replace(self.tokens, responses=judgments), ranks=(1,) * len(judgments))


def open_rows(
    path: str | Path,
    kind: RowKind,
    *,
    format: str | None = None,
    columns: Columns | None = None,
    on_bad_row: OnBadRow = "stop",
) -> Rows:
    """Opens the rows of a file or folder for one kind of training; the arguments are those of `longrm.data.read`."""
    if kind == "comparison":
        return read(path, format=format, on_bad_row=on_bad_row, columns=columns)
    if kind == "trajectory":
        return read_trajectories(path, on_bad_row=on_bad_row, columns=columns)
    form: Literal["demonstrations", "judge_prompts"] = (
        "judge_prompts" if kind == "judge_prompt" else "demonstrations"
    )
    return read_demonstrations(path, format=form, on_bad_row=on_bad_row, columns=columns)


def tokenize_rows(
    rows: Rows, tokenizer: Tokenizer, progress: Progress = no_progress, neutral_steps: NeutralSteps = "skip"
) -> Iterator[Example]:
    """Tokenizes rows in order; one that cannot be trained on is a bad row, which the reader skips or raises.

    Progress is called with the number of rows tokenized. Nothing to train on is a `DataError`.
    """
    found = False
    for number, result in enumerate(_in_parallel(rows, tokenizer, neutral_steps), start=1):
        try:
            yield result.result()
            found = True
        except DataError as error:
            rows.skip(error)
        progress("tokenizing", number, 0)
    if not found:
        raise DataError(f"{rows.path}: no row to train on{rows.skipped.first()}")


def _in_parallel(rows: Rows, tokenizer: Tokenizer, neutral_steps: NeutralSteps) -> Iterator[Future[Example]]:
    """Tokenizes rows on all processors: the `tokenizers` library works outside Python's lock."""
    workers = os.cpu_count() or 1
    waiting: deque[Future[Example]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for row in rows:
            waiting.append(pool.submit(tokenize, row, tokenizer, neutral_steps))
            if len(waiting) == 2 * workers:  # a row is large: no more of them are held at once
                yield waiting.popleft()
        yield from waiting


def digest_of(rows: Rows, tokenizer: Tokenizer) -> str:
    """A digest of the files and of everything else that the tokens depend on."""
    files = [(file.name, rows_digest(file)) for file in rows.files]
    parts = [
        *(tokenizers.__version__, files, rows.format, rows.on_bad_row, sorted(rows.columns.items())),
        *(tokenizer.backend.to_str(), tokenizer.chat_template, sorted(tokenizer.special_tokens.items())),
        tokenizer.config.get("add_bos_token"),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def tokenize(
    row: ComparisonRow | DemonstrationRow | TrajectoryRow,
    tokenizer: Tokenizer,
    neutral_steps: NeutralSteps = "skip",
) -> Example:
    """Tokenizes a row; errors name file and row.

    Rejected judgments that give another score than the chosen one, or no readable score, come before those that give
    the same score. All other responses keep their order.
    """
    source: Comparison | Demonstration
    known: dict[str, Any] = {}
    ranks: tuple[int, ...] = (1,)
    try:
        if isinstance(row, TrajectoryRow):
            return _steps(row.trajectory, tokenizer, neutral_steps)
        if isinstance(row, DemonstrationRow):
            source = row.demonstration
            if not source.completion:
                tokens = _compact(Encoded(tokenizer.generation_ids(source.prompt), ()))
                return Example(source.id, tokens, (), context_digest(source), judge=source.metadata)
            responses: list[Response] = [source.completion]
            known = {"label": source.label, "score": source.score}
        else:
            source = row.comparison
            contrasts = _contrasts(source)
            if source.ranks is None:
                raise DataError(
                    f"'{source.id}' has no gold order to train on: {why_no_gold(source.metadata)}"
                )
            order = sorted(
                range(len(source.ranks)), key=lambda at: contrasts is not None and not contrasts[at]
            )
            responses = [source.responses[at] for at in order]
            ranks = tuple(source.ranks[at] for at in order)
            known = {
                "contrast": None if contrasts is None else any(contrasts[1:]),
                "margin": _number(source, "margin", 0, _LARGEST_MARGIN),
                "probability": _number(source, "probability", 0.5, 1),
            }
        tokens = encode(tokenizer, source.prompt, responses, source.tools, completion_tokens=True)
        _check_learnable(source.id, ranks, tokens, tokenizer)
        return Example(source.id, _compact(tokens), ranks, context_digest(source), **known)
    except (FieldError, DataError) as error:
        raise DataError(located(row.place, error)) from error


def _steps(source: Trajectory, tokenizer: Tokenizer, neutral_steps: NeutralSteps) -> Example:
    """A trajectory up to each step to train on: those with a label, or, if only its outcome is known, the last.

    What follows the last of them is not read. Without any, the example has no tokens.
    """
    labels: Sequence[float | None] = source.labels
    if not labels:
        if source.success is None:
            raise DataError(f"'{source.id}' has neither labels of steps nor success, one of which is needed")
        labels = [*[None] * (len(source.steps) - 1), 1.0 if source.success else -1.0]
    counts = {
        "neutral_steps": labels.count(0.0),
        "unlabeled_steps": labels.count(None) if source.labels else 0,
        "outcomes": int(not source.labels),
    }
    neutral = {"skip": None, "right": 1.0, "wrong": -1.0}[neutral_steps]
    labels = [neutral if label == 0 else label for label in labels]
    kept = [at for at, label in enumerate(labels) if label is not None]
    targets = tuple((1.0 + label) / 2.0 for label in labels if label is not None)
    tokens = Encoded((), ())
    if kept:
        query = source.query()
        items = encode_steps(tokenizer, replace(query, responses=tuple(query.responses[at] for at in kept)))
        for at, item in zip(kept, items, strict=True):
            ids = [*item.prompt, *item.responses[0]]
            own = [ids[place] for place in item.completion_tokens[0]]
            _check_readable(f"step {at + 1} of '{source.id}'", own, tokenizer)
        tokens = _compact(join_steps(items))
    order = sorted(set(targets), reverse=True)
    return Example(
        source.id,
        tokens,
        tuple(order.index(target) + 1 for target in targets),
        context_digest(source),
        labels=targets,
        step_counts={"labeled_steps": len(kept), **counts},
    )


def _compact(tokens: Encoded) -> Encoded:
    """The same ids in arrays: a list of ints takes 36 bytes a token."""
    return replace(
        tokens, prompt=array("I", tokens.prompt), responses=[array("I", ids) for ids in tokens.responses]
    )


def context_digest(row: Comparison | Demonstration | Trajectory) -> str:
    """16 hex digits of a hash of the context; of the whole prompt if the context is unknown."""
    spans = row.context if isinstance(row, Comparison) else ()
    texts = [message_text(row.prompt[span.message])[span.start : span.end] for span in spans]
    text = "\x00".join(texts) if spans else text_of(row.prompt)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_learnable(name: str, ranks: Sequence[int], tokens: Encoded, tokenizer: Tokenizer) -> None:
    unknown = tokenizer.unk_id
    for number, (ids, own) in enumerate(
        zip(tokens.responses, tokens.completion_tokens, strict=True), start=1
    ):
        _check_readable(f"response {number} of '{name}'", [ids[at] for at in own], tokenizer)
    ranked = zip(ranks, tokens.responses, strict=True)
    for (rank, ids), (other_rank, other_ids) in combinations(ranked, 2):
        if rank != other_rank and ids == other_ids:
            advice = "use a tokenizer that knows their words" if unknown in ids else "remove the comparison"
            raise DataError(f"two responses of '{name}' have the same tokens but different ranks; {advice}")


def _check_readable(which: str, answer: Sequence[int], tokenizer: Tokenizer) -> None:
    unknown, end = tokenizer.unk_id, tokenizer.eos_id
    if answer == [end]:
        raise DataError(f"{which} has no token but the end: give it some content")
    if unknown is not None and set(answer) <= {unknown, end}:
        raise DataError(
            f"every word of {which} is unknown to the tokenizer; use a tokenizer that knows its language"
        )


def _contrasts(comparison: Comparison) -> list[bool] | None:
    """For every judgment, whether it differs from the chosen one, or is the chosen one itself.

    LongRM's rows have the score of every judge, and which judges wrote the chosen and the rejected judgments.
    """
    scores, chosen, rejected = (
        comparison.metadata.get(name) for name in ("scores", "chosen_model", "reject_models")
    )
    if comparison.role != "judgment" or not isinstance(scores, Mapping) or not isinstance(rejected, list):
        return None
    given = [scores.get(judge) for judge in (chosen, *rejected) if isinstance(judge, str)]
    if len(given) != len(comparison.responses) or None in given:
        return None
    return [True, *(score == _UNPARSED or score != given[0] for score in given[1:])]


def _number(comparison: Comparison, name: str, low: float, high: float) -> float | None:
    value = comparison.metadata.get(name)
    if value is None:
        return None
    if not is_number(value) or not math.isfinite(value) or not low <= value <= high:
        raise FieldError(name, f"must be a number from {low} to {high}, got {short(value)}")
    return float(value)
