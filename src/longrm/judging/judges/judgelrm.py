"""JudgeLRM: two scores in tags."""

import re

from longrm.judging.answers import answer_of
from longrm.judging.format import ParsedVerdict
from longrm.judging.judges.named import NamedJudge
from longrm.types import Query

_ANSWER = re.compile(r"<answer>\s*(\d+(?:\.\d+)?)\s*</answer>")


class JudgeLRM(NamedJudge):
    """JudgeLRM (arXiv 2504.00050): a thought, then `<answer>9</answer><answer>8</answer>`, from 0 to 10.

    The prompt is a system message, the question and the answers of assistants 1 and 2. Its authors open the thought in
    the prompt; a server's chat template does not, and the model writes the tag.
    """

    name = "judgelrm"
    scale = "points"
    source = (
        "github.com/NuoJohnChen/JudgeLRM at 1b20721, src/examples/data_preprocess/judgelrm.py (no license)"
    )
    pattern = _ANSWER

    def parse(self, text: str, query: Query) -> ParsedVerdict | None:
        """The last two scores."""
        scores = two_scores(self.answer(text))
        return ParsedVerdict(scores) if scores and max(scores) <= 10 else None


def two_scores(text: str) -> tuple[float, ...]:
    """The last two scores after the thought; empty without two."""
    scores = _ANSWER.findall(answer_of(text))[-2:]
    return tuple(map(float, scores)) if len(scores) == 2 else ()
