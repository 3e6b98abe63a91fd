"""The rows that training reads: their tokens, their gold order and what is known about them.

Rows that would poison training are errors: no gold order, no token to learn from, or equal tokens with different ranks.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from longrm.data.fields import why_no_gold
from longrm.data.joining import Encoded, encode
from longrm.data.readers import ComparisonRow, DemonstrationRow
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, located, short
from longrm.types import Comparison, Demonstration, Response, message_text, text_of

RowKind = Literal["comparison", "demonstration", "judge_prompt"]

_LARGEST_MARGIN = 1000  # the loss of a larger one would drown all other rows
_UNPARSED = -1  # the score in LongRM's released rows of a judgment from which none could be read


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """All that is known of a row besides its tokens.

    Attributes:
        id: Unique within its file.
        ranks: Gold ranks of the responses, 1 = best; (1,) for a demonstration, empty for a judge prompt.
        digest: See `context_digest`.
        contrast: Whether some rejected judgment gives another score than the chosen one; None if the row does not say,
            or its responses are no judgments.
        margin: By how much the score of a better response should exceed that of a worse one, if known.
        probability: The probability that the gold order is right, from 0.5 to 1, if known.
        judge: The columns of a judge prompt, which reward the judgments that are sampled for it.
        label: Whether the row of a demonstration says that its completion is good; None if it does not say.
        score: The score that the row gives the completion of a demonstration, if any.
    """

    id: str
    ranks: tuple[int, ...]
    digest: str
    contrast: bool | None = None
    margin: float | None = None
    probability: float | None = None
    judge: Mapping[str, Any] | None = None
    label: bool | None = None
    score: float | None = None

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
    """Tokenizes a row; errors name file and row.

    Rejected judgments that give another score than the chosen one, or no readable score, come before those that give
    the same score. All other responses keep their order.
    """
    source: Comparison | Demonstration
    responses: list[Response]
    try:
        if isinstance(row, DemonstrationRow):
            source = row.demonstration
            if not source.completion:
                known = TrainingRow(source.id, (), context_digest(source), judge=source.metadata)
                return TokenizedRow(known, Encoded(tokenizer.generation_ids(source.prompt), ()))
            responses = [source.completion]
            known = TrainingRow(
                source.id, (1,), context_digest(source), label=source.label, score=source.score
            )
        else:
            source = row.comparison
            ranks, contrasts = source.ranks, _contrasts(source)
            if ranks is None:
                raise DataError(
                    f"'{source.id}' has no gold order to train on: {why_no_gold(source.metadata)}"
                )
            order = sorted(range(len(ranks)), key=lambda at: contrasts is not None and not contrasts[at])
            responses = [source.responses[at] for at in order]
            known = TrainingRow(
                source.id,
                tuple(ranks[at] for at in order),
                context_digest(source),
                None if contrasts is None else any(contrasts[1:]),
                _number(source, "margin", 0, _LARGEST_MARGIN),
                _number(source, "probability", 0.5, 1),
            )
        tokens = encode(tokenizer, source.prompt, responses, source.tools, completion_tokens=True)
        _check_learnable(known, tokens, tokenizer)
        return TokenizedRow(known, tokens)
    except (FieldError, DataError) as error:
        raise DataError(located(row.place, error)) from error


def context_digest(row: Comparison | Demonstration) -> str:
    """16 hex digits of a hash of the context; of the whole prompt if the context is unknown."""
    spans = row.context if isinstance(row, Comparison) else ()
    texts = [message_text(row.prompt[span.message])[span.start : span.end] for span in spans]
    text = "\x00".join(texts) if spans else text_of(row.prompt)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_learnable(known: TrainingRow, tokens: Encoded, tokenizer: Tokenizer) -> None:
    unknown, end = tokenizer.unk_id, tokenizer.eos_id
    for number, (ids, own) in enumerate(
        zip(tokens.responses, tokens.completion_tokens, strict=True), start=1
    ):
        answer = [ids[at] for at in own]
        if answer == [end]:
            raise DataError(
                f"response {number} of '{known.id}' has no token but the end: give it some content"
            )
        if unknown is not None and set(answer) <= {unknown, end}:
            raise DataError(
                f"every word of response {number} of '{known.id}' is unknown to the tokenizer; use a tokenizer that "
                "knows its language"
            )
    ranked = zip(known.ranks, tokens.responses, strict=True)
    for (rank, ids), (other_rank, other_ids) in combinations(ranked, 2):
        if rank != other_rank and ids == other_ids:
            advice = "use a tokenizer that knows their words" if unknown in ids else "remove the comparison"
            raise DataError(
                f"two responses of '{known.id}' have the same tokens but different ranks; {advice}"
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
