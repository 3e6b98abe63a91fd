"""The lines of `attributions.jsonl` and `attention.jsonl`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longrm.modeling.attended_regions import AttendedComparison
from longrm.types import Span

ATTRIBUTIONS = "attributions.jsonl"


@dataclass(frozen=True, slots=True)
class Target:
    """The explained value: the lead of response `response` over response `against`, or its score alone."""

    response: int
    against: int | None = None

    def responses(self) -> tuple[int, ...]:
        """Numbers of the responses that are scored."""
        return (self.response,) if self.against is None else (self.response, self.against)


@dataclass(frozen=True, slots=True)
class SentenceWeight:
    """A sentence of the context, as characters of a message's text, and by how much it raises the target."""

    message: int
    start: int
    end: int
    weight: float

    @property
    def span(self) -> Span:
        """Its place in the prompt."""
        return Span(self.message, self.start, self.end)


@dataclass(frozen=True, slots=True)
class TopDrop:
    """The effect of the `k` sentences that should raise the score most."""

    k: int
    drop: float  # by how much the score falls without them
    drop_random: float  # the mean fall without as many random others of about the same length
    drop_placebo: float  # the fall without their neighbors, which are as deep
    only: float  # the score with these sentences and no others


@dataclass(frozen=True, slots=True)
class Trust:
    """How far an attribution can be trusted.

    Attributes:
        shown: Whether all thresholds are met.
        reason: The threshold that is not met; empty where all are.
        lds: The linear datamodeling score (Park et al. 2023): Spearman correlation of predicted and true scores on
            prompts that were not fitted and keep each sentence with probability one half. None for a context with too
            few sentences.
        score: The target's value for the whole prompt.
        drop: The fall without the sentences that should raise it most: as many as in the last of `tops`.
        drop_random: The mean fall without as many random others of about the same length.
        head_deviation: By how many standard deviations the score differs from that of a random scalar head; None for a
            model without one.
        tops: The effects of the strongest one, three and five sentences, if the context has as many others.
        redundant: Groups of sentences that say the same: without all of them the score falls by more than twice the sum
            of the falls without each.
    """

    shown: bool
    reason: str
    lds: float | None
    score: float
    drop: float
    drop_random: float
    head_deviation: float | None
    tops: tuple[TopDrop, ...]
    redundant: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EvidenceFound:
    """How the weights of the evidence's sentences compare with those of the others."""

    auc: float  # area under the ROC curve: how often evidence has the larger weight; ties count half
    recall: float  # share of the k sentences of evidence that are among the k with the largest weights
    share: float  # share of the total absolute weight that is on the evidence; 0 where all weights are 0


@dataclass(frozen=True, slots=True)
class AttributionRecord:
    """A line of `attributions.jsonl`.

    Attributes:
        id: The comparison's id.
        target: What is explained.
        group: Shared by comparisons about one document or context.
        length: Its length bucket in tokens.
        depth: The depth of its evidence.
        right: Whether the model judged it right; None without gold and at a tie.
        sentences: All sentences of the context, in reading order.
        trust: Whether the weights can be trusted; None where the model could not be asked.
        evidence: How well the weights find the evidence, where it is known.
        tokens_computed: Tokens of prompts that were read, without cached ones.
        prompts: The number of ablated prompts.
        detail: Why there is no attribution; else empty.
        digest: Digest of the prompt and responses; empty outside of runs.
    """

    id: str
    target: Target
    group: str = ""
    length: int | None = None
    depth: float | None = None
    right: bool | None = None
    sentences: tuple[SentenceWeight, ...] = ()
    trust: Trust | None = None
    evidence: EvidenceFound | None = None
    tokens_computed: int = field(kw_only=True)
    prompts: int = field(kw_only=True)
    detail: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class AttentionRecord:
    """A line of `attention.jsonl`: what a comparison's responses attend to, or in `detail` why that is unknown."""

    id: str
    attended: AttendedComparison | None = None
    detail: str = ""
    digest: str = ""


def is_evidence(sentence: Span, evidence: Sequence[Span]) -> bool:
    """Whether a sentence overlaps the evidence."""
    return any(
        sentence.message == span.message and sentence.start < span.end and span.start < sentence.end
        for span in evidence
    )
