"""Language models that judge by the probability of one token, such as A or B, Yes or No."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery, common_prefix, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, DataError
from longrm.judging import format_for, load_formats, load_token_format
from longrm.modeling.loading import LanguageModel
from longrm.modeling.shared_prefix import Packed, next_logprobs
from longrm.reward_models.kinds import JudgeSettings
from longrm.reward_models.packed import PackedRewardModel, Row
from longrm.types import Message, Query, Scale

_PROBE = ({"role": "user", "content": "Question?"},)


class TokenRewardModel(PackedRewardModel):
    """Judges by the log-probabilities of a format's tokens as the first token of the answer, without generating any.

    They are read after the assistant's header and whatever the chat template writes before the content, such as an
    empty thought. Prompts that begin with the same document share its encoding: both orders of a pair, responses that
    are judged alone, and several questions about one document.

    Args:
        language_model: The model, which reads packed sequences, and its tokenizer.
        name: Its name in summaries and reports.
        settings: The format, and optionally a template and its tokens.
    """

    by_criterion = True
    scale: Scale = "logit"

    def __init__(
        self, language_model: LanguageModel, name: str, settings: JudgeSettings | None = None
    ) -> None:
        settings = settings or JudgeSettings()
        super().__init__(language_model, name, settings)
        self.sees_order = settings.format != "pointwise"
        self._formats = load_formats(
            settings.format,
            settings.template,
            lambda name, template: load_token_format(name, template=template, tokens=settings.tokens),
        )
        # The letters of two responses are the first of those of many, so one forward pass reads all.
        self._tokens = max((format.tokens for format in self._formats.values()), key=len)
        try:
            _, self._ids = token_ids(self.tokenizer, _PROBE, self._tokens)
        except DataError as error:
            raise ConfigError(f"{name}: {error}") from None

    def _encode(self, query: Query) -> Sequence[Encoded]:
        items = []
        for messages in format_for(self._formats, len(query.responses)).render(query):
            before, ids = token_ids(self.tokenizer, messages, self._tokens)
            if ids != self._ids or len(before) < 2:
                raise DataError(f"'{query.id}': the token ids of the answer depend on the prompt")
            # The last token of the prompt is the branch: the next token is predicted at it.
            items.append(Encoded(before[:-1], [before[-1:]]))
        return items

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        raise DataError("this model needs messages, not rendered text")

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches values"]:
        return next_logprobs(self._model, packed, self._ids)

    def _verdict(self, query: Query, rows: Sequence[Row]) -> tuple[Row, str]:
        count = len(query.responses)
        format = format_for(self._formats, count)
        if format.alone:
            lines = [f"Response {number}: {format.explain(row)}" for number, row in enumerate(rows, start=1)]
            return format.scores(rows, count), "\n".join(lines)
        return format.scores(rows, count), format.explain(rows[0][:count])

    def _prompt_tokens(self, items: Sequence[Encoded]) -> int:
        return max(item.longest for item in items)


def token_ids(
    tokenizer: Tokenizer, prompt: Sequence[Message], tokens: Sequence[str]
) -> tuple[list[int], list[int]]:
    """The ids of a prompt up to the start of the answer, and the id of each token as that answer.

    A token that is several tokens or unknown to the tokenizer, or two with the same id, is a `DataError`.
    """
    # The template may write the same text before and after every answer, so the answers are what differs.
    item = encode(tokenizer, prompt, [({"role": "assistant", "content": token},) for token in tokens])
    own = [list(ids) for ids in item.responses]
    start = min(common_prefix(own[0], ids) for ids in own[1:])
    end = min(common_prefix(own[0][start:][::-1], ids[start:][::-1]) for ids in own[1:])
    answers = {token: ids[start : len(ids) - end] for token, ids in zip(tokens, own, strict=True)}
    for token, ids in answers.items():
        if len(ids) != 1 or ids == [tokenizer.unk_id]:
            why = "unknown to its tokenizer" if ids == [tokenizer.unk_id] else f"{len(ids)} tokens"
            raise DataError(
                f"the token {token!r} is {why} at the start of the answer; choose other judge.tokens, with a "
                "judge.template that asks for them"
            )
    if len({ids[0] for ids in answers.values()}) < len(answers):
        raise DataError(
            f"the tokenizer maps some of {list(tokens)} to the same id; choose other judge.tokens"
        )
    return [*item.prompt, *own[0][:start]], [ids[0] for ids in answers.values()]
