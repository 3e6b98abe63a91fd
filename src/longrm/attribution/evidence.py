"""How well an attribution finds the evidence, where the data says where that stands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from longrm.types import Span


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


def evidence_found(
    sentences: Sequence[Span], weights: NDArray[np.float64], evidence: Sequence[Span]
) -> EvidenceFound | None:
    """Compares weights with known evidence; None where none is known, or every sentence is of it."""
    held = np.array([is_evidence(sentence, evidence) for sentence in sentences])
    k = int(held.sum())
    if not 0 < k < held.size:
        return None
    ranks = rankdata(weights)
    auc = (ranks[held].sum() - k * (k + 1) / 2) / (k * (held.size - k))
    top = np.argsort(-weights, kind="stable")[:k]
    recall = float(np.mean([held[at] and weights[at] > 0 for at in top]))
    total = np.abs(weights).sum()
    return EvidenceFound(float(auc), recall, float(np.abs(weights[held]).sum() / total) if total else 0.0)


def is_evidence(sentence: Span, evidence: Sequence[Span]) -> bool:
    """Whether a sentence holds some of the evidence."""
    return any(
        sentence.message == span.message and sentence.start < span.end and span.start < sentence.end
        for span in evidence
    )
