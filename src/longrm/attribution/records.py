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
    """How far an attribution can be trusted."""

    shown: bool  # whether all thresholds are met
    reason: str  # the threshold that is not met; empty where all are
    # The linear datamodeling score (Park et al. 2023): Spearman correlation of predicted and true scores on prompts
    # that were not fitted. None for a context with too few sentences.
    lds: float | None
    score: float  # the target's value for the whole prompt
    drop: float  # as in the last of `tops`
    drop_random: float
    head_deviation: float | None  # of the score from that of a random scalar head, in standard deviations
    tops: tuple[TopDrop, ...]  # for one, three and five sentences, if the context has as many others
    # Groups of sentences that say the same: without all of them the score falls by more than twice the sum of the falls
    # without each.
    redundant: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EvidenceFound:
    """How the weights of the evidence's sentences compare with those of the others."""

    auc: float  # area under the ROC curve: how often evidence has the larger weight; ties count half
    recall: float  # share of the k sentences of evidence that are among the k with the largest weights
    share: float  # share of the total absolute weight that is on the evidence; 0 where all weights are 0


@dataclass(frozen=True, slots=True)
class AttributionRecord:
    """A line of `attributions.jsonl`."""

    id: str
    target: Target
    group: str = ""  # shared by comparisons about one document or context
    length: int | None = None  # the length bucket in tokens
    depth: float | None = None  # of the evidence
    right: bool | None = None  # whether the model judged it right; None without gold and at a tie
    sentences: tuple[SentenceWeight, ...] = ()  # all sentences of the context, in reading order
    trust: Trust | None = None  # None where the model could not be asked
    evidence: EvidenceFound | None = None  # where the evidence is known
    tokens_computed: int = field(kw_only=True)  # tokens of prompts that were read, without cached ones
    prompts: int = field(kw_only=True)  # the number of ablated prompts
    detail: str = ""  # why there is no attribution
    digest: str = ""  # of the prompt and responses; empty outside of runs


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
