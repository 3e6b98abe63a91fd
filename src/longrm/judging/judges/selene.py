"""Selene: reasoning, then `**Result:**` and the verdict."""

import re

from longrm.judging.judges.named import FivePoints, NamedJudge

_SOURCE = "github.com/atla-ai/selene-mini at 1425d20, prompt-templates/"


class Selene(NamedJudge):
    """Selene 1 (arXiv 2501.17195), pairwise: `**Reasoning:** ...`, then `**Result:** A`.

    The prompt is one user message with a rubric.
    """

    name = "selene"
    source = f"{_SOURCE}pairwise.yaml (Apache-2.0)"
    pattern = re.compile(r"\*\*Result:\*\*\s*(?:Response\s+)?([AB])[\s.*]*$", re.MULTILINE)


class SeleneAbsolute(FivePoints):
    """Selene 1, absolute scoring of one response: `**Reasoning:** ...`, then `**Result:** 4`."""

    name = "selene-absolute"
    source = f"{_SOURCE}absolute-scoring.yaml (Apache-2.0)"
    pattern = re.compile(r"\*\*Result:\*\*\s*([1-5])[\s.*]*$", re.MULTILINE)
