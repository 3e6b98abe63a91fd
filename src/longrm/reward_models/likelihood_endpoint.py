"""Language models behind HTTP that judge by how likely they are to write each response: the server echoes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longrm.clients import Completion, Echo
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import COMPLETIONS
from longrm.data.joining import Encoded, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, DataError, ModelError
from longrm.judging import fit, too_long
from longrm.reward_models.generative import WORST_FIRST, connect
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query


class LikelihoodEndpoint(RewardModel):
    """The log-probability of each response given the prompt, as `LikelihoodRewardModel` counts it.

    A server tells it of a text that it is sent by `/completions` with `echo` and `logprobs`, as vLLM does. The text is
    what the chat template of `remote.tokenizer` makes of prompt and response; the server must read as many tokens.

    Args:
        client: Sends to `/completions`.
        settings: As `LikelihoodRewardModel` takes them; `max_length` is what the server reads.
        tokenizer: The model's, with its chat template.
    """

    def __init__(self, client: OpenAIClient, settings: JudgeSettings, tokenizer: Tokenizer) -> None:
        self.name = f"likelihood:{client.name}"
        self._client, self._settings, self._tokenizer = client, settings, tokenizer
        self.scale = "none" if settings.likelihood == "mean" else "logit"

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Asks about all responses of all queries; the server may share what they begin with.

        Raises:
            ModelError: The server cannot be reached, or tells no log-probabilities.
            RunError: The budget of the client is spent.
        """
        opened = [self._open(query) for query in queries]
        echoes = [echo for one in opened if not isinstance(one, Judgment) for echo in one.echoes]
        self._client.on_progress = self.on_progress
        told = iter(self._client.write(echoes))
        return [
            one if isinstance(one, Judgment) else self._judgment(one, [next(told) for _ in one.echoes])
            for one in opened
        ]

    def _open(self, query: Query) -> "_Echoes | Judgment":
        limit, policy = self._settings.max_length, self._settings.cut
        try:
            item, cut = self._encode(query), None
            if limit is not None and item.longest > limit:
                fitted = fit(query, lambda one: self._encode(one).longest, limit, self._tokenizer, policy)
                if fitted is None:
                    return too_long(query, policy, item.longest, limit, len(item.prompt))
                query, cut = fitted
                item = self._encode(query)
            opening, texts = self._tokenizer.continuations(query.prompt, query.responses, query.tools)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        sizes = [len(item.prompt) + len(own) for own in item.responses]
        wholes = [opening + text for text in texts]
        written = item.written
        echoes = [Echo(text, size, -own[0]) for text, size, own in zip(wholes, sizes, written, strict=True)]
        return _Echoes(echoes, written, len(item.prompt), cut)

    def _encode(self, query: Query) -> Encoded:
        return encode(self._tokenizer, query.prompt, query.responses, query.tools, written=True)

    def _judgment(self, opened: "_Echoes", told: Sequence[Completion]) -> Judgment:
        failed = [one for one in told if one.outcome is not Outcome.ANSWERED]
        if failed:
            worst = min(failed, key=lambda one: WORST_FIRST.index(one.outcome))
            return Judgment(
                worst.outcome, detail=worst.detail, prompt_tokens=opened.prompt_tokens, cut=opened.cut
            )
        scores = []
        for one, own in zip(told, opened.written, strict=True):
            if one.logprobs is None:
                raise ModelError(
                    f"{self.name}: the server tells no log-probabilities of a text (completions with echo and "
                    "logprobs); serve the model by vLLM, or name its folder: likelihood:MODEL"
                )
            total = math.fsum(one.logprobs[place][1] for place in own)
            scores.append(total / len(own) if self._settings.likelihood == "mean" else total)
        return Judgment(Outcome.ANSWERED, tuple(scores), prompt_tokens=opened.prompt_tokens, cut=opened.cut)


@dataclass(frozen=True, slots=True)
class _Echoes:
    """What is asked about a query.

    Attributes:
        echoes: One for each response.
        written: The places of the tokens that count in each, counted from its end.
        prompt_tokens: Tokens that all responses continue.
        cut: What was cut out of the context.
    """

    echoes: Sequence[Echo]
    written: Sequence[Sequence[int]]
    prompt_tokens: int
    cut: Cut | None


def load_likelihood_endpoint(address: str, request: LoadRequest) -> LikelihoodEndpoint:
    """Loads `likelihood:openai:URL#NAME`, without its `openai:`.

    Raises:
        ConfigError: The address is none, or the settings cannot go together.
        ModelError: The tokenizer cannot be loaded.
    """
    client, tokenizer = connect(address, request, COMPLETIONS)
    if tokenizer is None or tokenizer.chat_template is None:
        has = "name it in remote.tokenizer" if tokenizer is None else "that of remote.tokenizer has none"
        raise ConfigError(
            f"likelihood:{client.name} needs the model's tokenizer with its chat template: {has}"
        )
    if request.judge.cut != "refuse" and request.judge.max_length is None:
        raise ConfigError(
            f'judge.cut = "{request.judge.cut}" needs to know the tokens that {client.name} reads; name them in '
            "judge.max_length"
        )
    return LikelihoodEndpoint(client, request.judge, tokenizer)
