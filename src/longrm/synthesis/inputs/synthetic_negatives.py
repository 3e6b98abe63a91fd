"""Synthetic candidates: the gold answer, and synthetic negatives, which are worse than it by construction.

They fill the tiers that models leave empty, at no cost and offline. Their model is called "gold", and the perturbation
says what was done: a reader, and the data card, can tell them from what models wrote.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from longrm.rng import Draws
from longrm.synthesis.inputs.candidate_ranking import NO_MODEL
from longrm.synthesis.inputs.candidates import CandidateAnswer, SynthesisInput
from longrm.synthesis.inputs.documents import Document

REPLACED, ELSEWHERE = "replace_sentences", "answer_another_question"
_SENTENCE = re.compile(r"\S.*?(?:[.!?。！？][\"'”’)\]]*(?=\s|$)|(?<=[。！？])|$)", re.MULTILINE)
# Shares of the sentences that are kept: they land in the middle of the second and third tier.
_KEPT = (0.75, 0.4)


def synthetic_candidates(document: Document, others: Sequence[str], seed: int) -> list[CandidateAnswer]:
    """The gold answer, it with a quarter and with 60% of its sentences replaced, and an answer to another question.

    Sentences are replaced one by one, by those of other answers about the same text, so that length tells little.
    Shares are rounded to whole sentences. Where the gold answer has one sentence only, or the others have too few,
    nothing is replaced.
    """
    if not document.answer.strip():
        return []
    draws = Draws("degraded", seed, document.id)
    candidates = [CandidateAnswer(document.id, NO_MODEL, document.answer.strip())]
    own = sentences(document.answer)
    foreign = sorted({text for other in others for text in sentences(other)} - {*own})
    for share in _KEPT:
        kept = round(share * len(own))
        if 0 < kept < len(own) and len(foreign) >= len(own) - kept:
            places, mixed = list(range(len(own))), list(own)
            draws.shuffle(places)
            for place, text in zip(places[: len(own) - kept], draws.order(foreign), strict=False):
                mixed[place] = text
            what = {"kept_sentences": kept, "of_sentences": len(own)}
            candidates.append(
                CandidateAnswer(document.id, NO_MODEL, " ".join(mixed), REPLACED, metadata=what)
            )
    elsewhere = sorted({other.strip() for other in others if other.strip()} - {document.answer.strip()})
    if elsewhere:
        candidates.append(CandidateAnswer(document.id, NO_MODEL, draws.one(elsewhere), ELSEWHERE))
    return candidates


def with_synthetic(inputs: Iterable[SynthesisInput], seed: int) -> Iterator[SynthesisInput]:
    """Adds these candidates to every document; questions about one text follow each other, and are held together."""
    for _, group in groupby(inputs, key=lambda one: one.document.text):
        of_text = list(group)
        for one in of_text:
            others = [other.document.answer for other in of_text if other.id != one.id]
            made = synthetic_candidates(one.document, others, seed)
            yield SynthesisInput(one.document, (*one.candidates, *made))


def sentences(text: str) -> list[str]:
    """The sentences of an answer, without the white space between them."""
    return [found.strip() for found in _SENTENCE.findall(text) if found.strip()]
