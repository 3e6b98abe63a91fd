"""Reward models whose scores are known functions of the sentences that a context holds."""

from longrm.reward_models import RewardModel
from longrm.types import Judgment, Outcome, text_of


class Known(RewardModel):
    """Scores the first response by a function of the set of its sentences that a prompt holds, and the others 0."""

    name = "known"

    def __init__(self, sentences, score):
        self._sentences, self._score = sentences, score
        self.asked = []

    def judge(self, queries):
        judged = []
        for query in queries:
            text = text_of(query.prompt)
            self.asked.append(text)
            held = {at for at, sentence in enumerate(self._sentences) if sentence.strip() in text}
            scores = (self._score(held), *(0.0 for _ in query.responses[1:]))
            judged.append(Judgment(Outcome.ANSWERED, scores, prompt_tokens=len(text.split())))
        return judged
