"""NVIDIA's generative reward models, whose chat template has a role for each of two responses."""

import json
import re
from itertools import islice

from longrm.errors import DataError
from longrm.judging.format import ParsedVerdict
from longrm.judging.judges.named import NamedJudge
from longrm.judging.prompts import response_text
from longrm.reading import is_number
from longrm.types import Message, Query, message_text, tool_calls_text

_N = r"([1-6](?:\.\d+)?)"
_SCORES = re.compile(rf"\[The Begin of Individual Scores\]\s*\\boxed\{{\s*{_N}\s*,\s*{_N}\s*\}}")
_RANKING = re.compile(rf"\[The Begin of Ranking Score\]\s*\\boxed\{{\s*{_N}\s*\}}")
_MIDDLE = 3.5  # of a ranking from 1, response 1 is much better, to 6, response 2 is


class NemotronGenRM(NamedJudge):
    """Llama-3.3-Nemotron-Super-49B-GenRM (arXiv 2505.11475) and Qwen3-Nemotron-235B-A22B-GenRM.

    The messages are the conversation, which ends with the user's turn, and one message each with the roles `response_1`
    and `response_2`. The answer has two scores for helpfulness from 1 to 5 and a ranking from 1 to 6: as JSON (235B) or
    in boxes under headings (49B). The ranking decides between equal scores, as in NVIDIA's training: it is added to one
    score and subtracted from the other, as its distance from the middle. Votes average both.
    """

    name = "nemotron-genrm"
    scale = "points"
    source = (
        "github.com/NVIDIA-NeMo/Gym at 0880a8d, resources_servers/genrm_compare, and github.com/NVIDIA-NeMo/RL at "
        "0cf0ebc, nemo_rl/environments/genrm_environment.py (Apache-2.0)"
    )
    pattern = _SCORES
    needs_template = False
    criteria = False

    def render(self, query: Query) -> list[tuple[Message, ...]]:
        """The conversation and the two responses.

        Raises:
            DataError: Not two responses, or a conversation that the chat template cannot show.
        """
        self.check_count(query)
        roles = [message.get("role") for message in query.prompt]
        if (
            query.tools
            or {*roles} - {"system", "user", "assistant"}
            or any(map(tool_calls_text, query.prompt))
        ):
            raise DataError(f"comparison '{query.id}': {self.name} judges conversations without tools only")
        if not roles or roles[-1] != "user":
            raise DataError(
                f"comparison '{query.id}': {self.name} needs a prompt that ends with a user's turn"
            )
        history = [{"role": one["role"], "content": message_text(one)} for one in query.prompt]
        responses = [
            {"role": f"response_{number}", "content": response_text(response, query)}
            for number, response in enumerate(query.responses, start=1)
        ]
        return [(*history, *responses)]

    def parse(self, text: str, query: Query) -> ParsedVerdict | None:
        """The last two scores with their ranking; None if one of the three is missing or out of range."""
        answer = self.answer(text)
        numbers = _in_json(answer)
        if numbers is None and (scores := _SCORES.findall(answer)) and (rankings := _RANKING.findall(answer)):
            numbers = [float(number) for number in (*scores[-1], rankings[-1])]
        if numbers is None:
            return None
        first, second, ranking = numbers
        if not (1 <= first <= 5 and 1 <= second <= 5 and 1 <= ranking <= 6):
            return None
        lead = _MIDDLE - ranking
        contradicted = (first - second) * lead < 0
        if first == second:
            first, second = first + lead, second - lead
        return ParsedVerdict((float(first), float(second)), (), contradicted)


def _in_json(answer: str) -> list[float] | None:
    starts = [found.start() for found in re.finditer(r"\{", answer)]
    # The limit keeps a text full of brackets from taking quadratic time.
    for start in islice(reversed(starts), 50):
        try:
            fields, _ = json.JSONDecoder().raw_decode(answer, start)
        except (ValueError, RecursionError):
            continue
        numbers = [fields.get(key) for key in ("score_1", "score_2", "ranking")]
        if all(map(is_number, numbers)):
            return numbers
    return None
