"""Judges behind HTTP that tell the log-probabilities of their answer's first token."""

import math
from dataclasses import replace
from pathlib import Path

from longrm.clients import Completion, Request
from longrm.clients.openai import OpenAIClient
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.judging import JudgingFormat, ParsedVerdict, TokenFormat, load_token_format
from longrm.reward_models.generative import Conversation, GenerativeRewardModel, connect
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.kinds import LoadRequest
from longrm.types import Outcome

_MOST = 20  # the most that OpenAI tells; vLLM does, unless it is started with more
_WRITTEN = (Outcome.ANSWERED, Outcome.TRUNCATED)


class TokenEndpoint(GenerativeRewardModel):
    """Judges by the log-probabilities of a format's tokens, which a server tells of the likeliest 20 only.

    An entry is a token of the format where it says the same but for white space around it; the likeliest counts. A
    token that is not among them is taken to be as likely as the last of them, which is the most that it can be: the
    verdict stays, and the score says less than the model does. With no such token among them there is no verdict.
    """

    def __init__(
        self, client: OpenAIClient, settings: JudgeSettings, *, tokenizer: Tokenizer | None = None
    ) -> None:
        asked = settings.model_copy(update={"max_tokens": 1, "retries": 0, "temperature": 0.0})
        super().__init__(client, asked, tokenizer=tokenizer)
        self.name = f"tokens:{client.name}"
        self.scale = "logit"

    def _load_format(self, name: str, template: Path | None) -> JudgingFormat:
        return load_token_format(name, template=template, tokens=self._settings.tokens)

    def _request(self, one: Conversation, attempt: int) -> Request:
        return replace(super()._request(one, attempt), top=_MOST)

    def _read(self, one: Conversation, completion: Completion) -> bool:
        counted = completion.prompt_tokens
        one.prompt_tokens = self._writer.tokens(one.messages) if counted is None else counted
        one.attempts, one.completion = 1, completion
        if completion.outcome in _WRITTEN:
            assert isinstance(one.format, TokenFormat), "the formats are made here"
            self._take(one, one.format, completion)
        return False

    def _take(self, one: Conversation, format: TokenFormat, completion: Completion) -> None:
        told = completion.logprobs
        if told is None:
            raise ModelError(
                f"{self.name}: the server tells no log-probabilities of tokens (logprobs, top_logprobs); ask it for a "
                f"verdict in words (--model {self._writer.name}), or serve the model by vLLM, SGLang or llama.cpp"
            )
        responses = 1 if format.alone else len(one.query.responses)
        tokens = format.tokens if format.alone else format.tokens[:responses]
        found = [
            max((value for text, value in told if text.strip() == token.strip()), default=None)
            for token in tokens
        ]
        if all(value is None for value in found):
            said = repr(told[0][0]) if told else "nothing"
            detail = (
                f"none of the tokens {list(tokens)} is among the likeliest {len(told)}; the model says {said}"
            )
            one.completion = replace(completion, outcome=Outcome.UNPARSED, detail=detail)
            return
        least = min((value for _, value in told if math.isfinite(value)), default=-math.inf)
        row = [least if value is None else value for value in found]
        one.texts.append(format.explain(row))
        one.verdict = ParsedVerdict(format.scores([row], responses))


def load_token_endpoint(address: str, request: LoadRequest) -> TokenEndpoint:
    """Loads `tokens:openai:URL#NAME`, without its `openai:`.

    Raises:
        ConfigError: The address is none, or the settings cannot go together.
        ModelError: The tokenizer cannot be loaded.
    """
    client, tokenizer = connect(address, request)
    return TokenEndpoint(client, request.judge, tokenizer=tokenizer)
