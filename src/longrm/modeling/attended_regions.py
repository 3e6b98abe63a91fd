"""What a reward model attends to in the regions of a context; the tensors are those of `attention_scores`.

The two measures are those of LongRM (arXiv 2510.06915, appendix C), for the rows of attention that a score or verdict
is read from. Beside them stands what the code of their source (Context Denoising Training, arXiv 2510.05862) plots
under the same names. Nothing here imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longrm.data.spans import disjoint_spans
from longrm.types import Comparison, Span

TOP_K = 200
"""Tokens that a head attends to, of each row. The paper does not tell its number; this is the one of its source's code,
for contexts of 900 to 11,900 tokens."""

SUPPORTING, INTERFERING, IRRELEVANT = "supporting", "interfering", "irrelevant"

Regions = Mapping[str, Sequence[Span]]
"""Spans of a prompt by the name of their region."""


@dataclass(frozen=True, slots=True)
class RegionAttention:
    """What one region gets of the attention of the tokens that are read: a number a layer, from the first to the last.

    Attributes:
        tokens: Tokens of the region.
        fr: FR (Eq. 3): which share of these is among the k tokens that a head attends to most; the mean over heads.
        ig: IG (Eq. 4): attention times the score's gradient by it, without its sign; the mean over heads and tokens. In
            the unit of what is read.
        mass: The share of all attention that its tokens have together, the mean over heads; the source plots it as FR.
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
        tokens: Tokens that the scored token sees, itself included; of a verdict's, those that the last one sees.
        chance: The FR of every region if a head's k tokens were drawn at random: k / `tokens`, 1 at most.
        regions: By name; a region without a token is left out.
    """

    score: float
    tokens: int
    chance: float
    regions: Mapping[str, RegionAttention]


@dataclass(frozen=True, slots=True)
class AttendedComparison:
    """One comparison and what all its responses attend to.

    Attributes:
        id: The comparison's.
        group: The document that it shares with others.
        right: Whether a response of the best gold rank has the highest score, and no other one has.
        responses: In the order of the comparison.
        embedding_gradient: For each region the mean over its tokens of the L1 norm of the margin's gradient by their
            embeddings, which the source plots as IG; None where it was not asked for.
    """

    id: str
    group: str
    right: bool
    responses: tuple[ResponseAttention, ...]
    embedding_gradient: Mapping[str, float] | None = None


def context_regions(comparison: Comparison, interfering: Sequence[Span] = ()) -> dict[str, list[Span]]:
    """The regions of a comparison's context: supporting text is its evidence, irrelevant text all that is neither.

    Args:
        comparison: The comparison; where it names no context, nothing is irrelevant.
        interfering: Text that misleads, such as that which the wrong response came from.
    """
    named = [*comparison.evidence, *interfering]
    rest = disjoint_spans(comparison.context, comparison.question)
    for span in named:
        rest = disjoint_spans(rest, span)
    return {SUPPORTING: list(comparison.evidence), INTERFERING: list(interfering), IRRELEVANT: rest}
