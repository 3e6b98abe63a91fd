"""What a reward model attends to in the regions of a context: the results of `attention_scores`, without torch.

The two measures are those of LongRM (arXiv 2510.06915, appendix C), for the rows of attention from which a score or
verdict is read. The code of their source (Context Denoising Training, arXiv 2510.05862) plots other quantities under
the same names; both are here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longrm.data.spans import disjoint_spans
from longrm.types import Comparison, Span

TOP_K = 200
"""Tokens that a head attends to, per row. The paper does not state its number; this is the one of its source's code,
for contexts of 900 to 11,900 tokens."""

SUPPORTING, INTERFERING, IRRELEVANT = "supporting", "interfering", "irrelevant"

Regions = Mapping[str, Sequence[Span]]
"""Spans of a prompt by the name of their region."""


@dataclass(frozen=True, slots=True)
class RegionAttention:
    """The attention that one region gets, one number per layer from the first to the last.

    Attributes:
        tokens: Tokens of the region.
        fr: FR (Eq. 3): the share of these that are among the k tokens to which a head attends most; mean over heads.
        ig: IG (Eq. 4): |attention x gradient of the score by it|; mean over heads and tokens, in units of the score.
        mass: The share of all attention that its tokens get together; mean over heads. The source plots it as FR.
    """

    tokens: int
    fr: tuple[float, ...]
    ig: tuple[float, ...]
    mass: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ResponseAttention:
    """What is attended to where one response is scored, or one verdict written.

    Attributes:
        score: The response's score, or the log-probability of the verdict.
        tokens: Tokens that the scored token sees, itself included; for a verdict, those that its last token sees.
        chance: The FR of every region if a head's k tokens were drawn at random: min(1, k / `tokens`).
        regions: By name; a region without a token is omitted.
    """

    score: float
    tokens: int
    chance: float
    regions: Mapping[str, RegionAttention]


@dataclass(frozen=True, slots=True)
class AttendedComparison:
    """One comparison and what all its responses attend to.

    Attributes:
        id: The comparison's id.
        group: The comparison's group.
        right: Whether a response of the best gold rank has the highest score, and no other one has.
        responses: In the order of the comparison.
        embedding_gradient: For each region, the mean over its tokens of the L1 norm of the gradient of the margin by
            their embeddings, which the source plots as IG; None if it was not computed.
    """

    id: str
    group: str
    right: bool
    responses: tuple[ResponseAttention, ...]
    embedding_gradient: Mapping[str, float] | None = None


def context_regions(comparison: Comparison, interfering: Sequence[Span] = ()) -> dict[str, list[Span]]:
    """Returns a comparison's evidence, the interfering text that is given, and the irrelevant rest of its context."""
    rest = disjoint_spans(comparison.context, comparison.question)
    for span in [*comparison.evidence, *interfering]:
        rest = disjoint_spans(rest, span)
    return {SUPPORTING: list(comparison.evidence), INTERFERING: list(interfering), IRRELEVANT: rest}
