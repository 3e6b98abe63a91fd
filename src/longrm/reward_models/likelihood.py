"""Language models whose score is the log-probability of the response."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError, ModelError
from longrm.modeling.loading import LanguageModel
from longrm.modeling.shared_prefix import Packed, TransformersModel, check_embedded, response_logprobs
from longrm.reward_models.kinds import JudgeSettings
from longrm.reward_models.packed import PackedRewardModel
from longrm.types import Query


class LikelihoodRewardModel(PackedRewardModel):
    """The log-probability of each response given the prompt, both rendered by the model's chat template.

    The score is L(y) = sum_t log p(y_t | x, y_<t), whose differences are the log-odds of generating one response rather
    than the other, or its mean over tokens (SimPO's reward without beta; Meng et al. 2024, equation 3). With a
    reference it is L(y) - L_ref(y), the implicit reward of a model trained by DPO, divided by beta (Rafailov et al.
    2023, equation 5). RewardBench uses the same formula (Lambert et al. 2024, section 4) on other tokens: it prepends
    BOS, appends EOS and includes the assistant's header.

    The tokens that count are those of preference training, here and in TRL: all that follow the prompt. These are the
    content, the token that closes the turn (without it a response would never be less likely than its continuation),
    and what the template writes around them, including an empty thought. In a trajectory the turns of the assistant
    count, and results of tools do not.

    Log-probabilities are computed in fp32, only at the tokens of the responses.

    Args:
        language_model: The model, which reads packed sequences, and its tokenizer.
        name: Its name in summaries and reports.
        settings: `likelihood` selects the sum or the mean.
        reference: The model that training started from.

    Raises:
        ModelError: The vocabularies of the two models differ.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        name: str,
        settings: JudgeSettings | None = None,
        reference: LanguageModel | None = None,
    ) -> None:
        settings = settings or JudgeSettings()
        super().__init__(language_model, name, settings)
        self._mean = settings.likelihood == "mean"
        self._reference = reference
        self.scale = "none" if self._mean or reference is not None else "logit"
        if reference is not None:
            self._take_reference(language_model, reference)

    def _take_reference(self, trained: LanguageModel, reference: LanguageModel) -> None:
        # Both models read the tokens of the trained one. `_items` checks that the reference's tokenizer agrees.
        self.provenance = {
            **self.provenance,
            **{f"reference_{name}": value for name, value in reference.provenance.items()},
        }
        self._limit = min(self._limit, int(reference.model.config.max_position_embeddings))
        self._reference_tokenizer = replace(trained.tokenizer, backend=reference.tokenizer.backend)
        ours, theirs = (
            one.tokenizer.backend.get_vocab(with_added_tokens=False) for one in (trained, reference)
        )
        if ours != theirs:
            raise ModelError(self._different_tokens("their vocabularies differ"))

    def _items(self, query: Query) -> Sequence[Encoded]:
        item = self._encoded(self._tokenizer, query)
        if self._reference is not None:
            if self._encoded(self._reference_tokenizer, query) != item:
                raise ModelError(self._different_tokens(f"the token ids of '{query.id}' differ"))
            for ids in (item.prompt, *item.responses):
                check_embedded(ids, self._reference.model)
        return [item]

    def _encoded(self, tokenizer: Tokenizer, query: Query) -> Encoded:
        return encode(tokenizer, query.prompt, query.responses, query.tools, written=True)

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        if not query.split:
            raise DataError("the start of the response is not known; send prompt and response separately")
        if self._reference is not None:
            for ids in (query.encoded.prompt, *query.encoded.responses):
                check_embedded(ids, self._reference.model)
        return super()._given(query)

    def _models(self) -> list[TransformersModel]:
        return [*super()._models(), *([] if self._reference is None else [self._reference.model])]

    def _different_tokens(self, difference: str) -> str:
        return (
            f"{self.name}: model and reference have different tokenizers ({difference}); the reference must be the "
            "model that training started from"
        )

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        written = [own for item in items for own in item.written]
        values = self._likelihoods(self._model, packed, written)
        if self._reference is not None:
            model = self._reference.model
            values = values - self._likelihoods(model, packed.to(model.device), written).to(values.device)
        return values[:, None]

    def _likelihoods(
        self, model: object, packed: Packed, written: Sequence[Sequence[int]]
    ) -> Float[Tensor, " branches"]:
        reduce = torch.mean if self._mean else torch.sum
        return torch.stack([reduce(logprobs) for logprobs in response_logprobs(model, packed, written)])
