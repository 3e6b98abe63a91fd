"""The rows that training reads: their tokens, their gold order and what is known about them.

Rows that would poison training are faults: no gold order, no token to learn from, or the same tokens ranked apart.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from longrm.data.joining import Encoded, encode
from longrm.data.readers import ComparisonRow, DemonstrationRow
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, located
from longrm.types import Comparison, Demonstration, Response, message_text, text_of

RowKind = Literal["comparison", "demonstration"]

_LARGEST_MARGIN = 1000  # a loss of as much drowns every other row
_UNPARSED = -1  # what a judgment's score is in LongRM's released rows where none could be read from it


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Everything that is known of a row beside its tokens.

    Attributes:
        id: Unique within its file.
        ranks: Gold ranks of the responses, 1 = best; (1,) for a demonstration.
        digest: See `context_digest`.
        contrast: Whether some rejected judgment gives another score than the chosen one; None where the
            row does not say, or its responses are no judgments.
        margin: By how much the score of a better response should exceed that of a worse one, where known.
        probability: How sure the gold order is, from 0.5 to 1, where known.
    """

    id: str
    ranks: tuple[int, ...]
    digest: str
    contrast: bool | None = None
    margin: float | None = None
    probability: float | None = None

    @property
    def tied(self) -> bool:
        """Whether several responses all have the same rank."""
        return len(self.ranks) > 1 and len(set(self.ranks)) == 1


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """A row with its token ids."""

    row: TrainingRow
    tokens: Encoded


def tokenize(row: ComparisonRow | DemonstrationRow, tokenizer: Tokenizer) -> TokenizedRow:
    """Tokenizes a row.

    Rejected judgments that give another score than the chosen one, or none that could be read, come before those
    that give the same; else the responses keep their order.

    Raises:
        DataError: Names file, row and what is wrong with it.
    """
    try:
        if isinstance(row, DemonstrationRow):
            demonstration = row.demonstration
            known = TrainingRow(demonstration.id, (1,), context_digest(demonstration))
            return _with_tokens(known, demonstration, [demonstration.completion], tokenizer)
        return _tokenized_comparison(row.comparison, tokenizer)
    except (FieldError, DataError) as fault:
        raise DataError(located(row.place, fault)) from fault


def context_digest(row: Comparison | Demonstration) -> str:
    """Returns 16 hex digits of a hash of the context, else of the whole prompt."""
    spans = row.context if isinstance(row, Comparison) else ()
    texts = [message_text(row.prompt[span.message])[span.start : span.end] for span in spans]
    text = "\x00".join(texts) if spans else text_of(row.prompt)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tokenized_comparison(comparison: Comparison, tokenizer: Tokenizer) -> TokenizedRow:
    ranks = comparison.ranks
    if ranks is None:
        raise DataError(f"'{comparison.id}' has no gold order to train on: its ranks are unknown")
    contrasts = _contrasts(comparison)
    order = sorted(range(len(ranks)), key=lambda at: contrasts is not None and not contrasts[at])
    known = TrainingRow(
        comparison.id,
        tuple(ranks[at] for at in order),
        context_digest(comparison),
        contrast=None if contrasts is None else any(contrasts[1:]),
        margin=_number(comparison.metadata, "margin"),
        probability=_number(comparison.metadata, "probability"),
    )
    if known.margin is not None and not 0.0 <= known.margin <= _LARGEST_MARGIN:
        raise FieldError(
            "margin",
            f"by how much the better response is better, from 0 to {_LARGEST_MARGIN:,}, got {known.margin}",
        )
    if known.probability is not None and not 0.5 <= known.probability <= 1.0:
        raise FieldError("probability", f"how sure the gold order is, from 0.5 to 1, got {known.probability}")
    return _with_tokens(known, comparison, [comparison.responses[at] for at in order], tokenizer)


def _with_tokens(
    known: TrainingRow, row: Comparison | Demonstration, responses: Sequence[Response], tokenizer: Tokenizer
) -> TokenizedRow:
    tokens = encode(tokenizer, row.prompt, responses, row.tools, written=True)
    answers: list[Sequence[int]] = [
        [ids[at] for at in own] for ids, own in zip(tokens.responses, tokens.written, strict=True)
    ]
    unknown = tokenizer.unk_id
    for number, answer in enumerate(answers, start=1):
        if answer == [tokenizer.eos_id]:
            raise DataError(
                f"response {number} of '{known.id}' has no token but the end: give it some content"
            )
        if unknown is not None and set(answer) <= {unknown, tokenizer.eos_id}:
            raise DataError(
                f"response {number} of '{known.id}' is unknown to the tokenizer, every word of it; take a tokenizer "
                "that knows its language"
            )
    for (rank, answer), (other_rank, other) in combinations(
        zip(known.ranks, tokens.responses, strict=True), 2
    ):
        if rank != other_rank and answer == other:
            raise DataError(
                f"two responses of '{known.id}' have the same tokens but different ranks; remove it"
            )
    return TokenizedRow(known, tokens)


def _contrasts(comparison: Comparison) -> list[bool] | None:
    """Returns for every judgment whether it differs from the chosen one, or is the chosen one itself.

    LongRM's rows hold the score of every judge, and which judges wrote what was chosen and rejected.
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


def _number(metadata: Mapping[str, Any], name: str) -> float | None:
    value = metadata.get(name)
    if value is None:
        return None
    if not is_number(value) or not math.isfinite(value):
        raise FieldError(name, f"needs a number, got {value!r:.40}")
    return float(value)
