"""What an attribution says, as it lies in a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longrm.types import Span

ATTRIBUTIONS = "attributions.jsonl"


@dataclass(frozen=True, slots=True)
class Target:
    """What is explained: by how much the score of one response leads that of another, or one score alone.

    Attributes:
        response: Number of the response, from 0.
        against: Number of the other one; None for the score alone.
    """

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
        """Where it stands in the prompt."""
        return Span(self.message, self.start, self.end)


@dataclass(frozen=True, slots=True)
class TopDrop:
    """What happens to the score without the `k` sentences that are said to raise it most.

    Attributes:
        k: How many these are.
        drop: By how much the score falls without them.
        drop_random: The mean fall without as many others of about the same length, drawn at random.
        drop_placebo: The fall without their neighbors, which stand as deep.
        only: The score with these sentences and no others.
    """

    k: int
    drop: float
    drop_random: float
    drop_placebo: float
    only: float


@dataclass(frozen=True, slots=True)
class Trust:
    """How far an attribution may be trusted.

    Attributes:
        shown: Whether all thresholds are met.
        reason: The threshold that is not; empty where all are.
        lds: Spearman correlation of predicted and true scores on prompts that were not fitted, which keep each sentence
            with probability one half: the linear datamodeling score (Park et al. 2023). None where the context has too
            few sentences for that.
        score: The target's value for the whole prompt.
        drop: By how much it falls without the sentences that are said to raise it most: as many as the last of `tops`.
        drop_random: Its mean fall without as many others of about the same length, drawn at random.
        head_deviation: How many standard deviations the score is away from that of a random scalar head; None where
            a model has none.
        tops: The same and more for one, three and five sentences, as far as there are as many others beside them.
        redundant: Sentences that say the same, two or more: leaving out all lowers the score by more than twice what
            each alone does.
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
    """How the weights of the evidence's sentences compare with those of all others.

    Attributes:
        auc: How often a sentence of the evidence has a larger weight than another one, ties counted half: the area
            under the ROC curve; 0.5 by chance.
        recall: The share of the evidence's k sentences that are among the k with the largest weights.
        share: The share of all weight, taken without signs, that lies on the evidence; 0 where all weights are 0.
    """

    auc: float
    recall: float
    share: float


@dataclass(frozen=True, slots=True)
class AttributionRecord:
    """A line of `attributions.jsonl`.

    Attributes:
        id: The comparison's.
        group: The document or context that it shares with others.
        target: What is explained.
        length: Its length bucket in tokens.
        depth: Where its evidence stands.
        right: Whether the model judged it right; None where gold is unknown, or where it judged both alike.
        sentences: All sentences of the context, in reading order.
        trust: Whether to believe it; None where the model could not be asked.
        evidence: How well the weights find the evidence, where that is known.
        tokens_computed: Tokens of prompts that were read; what was kept of earlier ones is not counted.
        prompts: How many ablated prompts were scored.
        detail: Why there is no attribution; else empty.
        digest: Of the comparison's prompt and responses, as the gold of an evaluation has it; empty outside of runs.
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


def is_evidence(sentence: Span, evidence: Sequence[Span]) -> bool:
    """Whether a sentence holds some of the evidence."""
    return any(
        sentence.message == span.message and sentence.start < span.end and span.start < sentence.end
        for span in evidence
    )
