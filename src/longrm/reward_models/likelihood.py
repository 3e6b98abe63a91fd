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
from longrm.modeling.shared_prefix import Packed, TransformersModel, response_logprobs
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
        reference: The model that training started from, with the same vocabulary.
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
        if reference is None:
            return
        added = {f"reference_{key}": value for key, value in reference.provenance.items()}
        self.provenance = {**self.provenance, **added}
        self.limit = min(self.limit, int(reference.model.config.max_position_embeddings))
        # Both models read the tokens of the trained one. `_encode` checks that the reference's tokenizer, with the chat
        # template of the trained model, gives the same ids.
        self._reference_tokenizer = replace(self.tokenizer, backend=reference.tokenizer.backend)
        backends = self.tokenizer.backend, reference.tokenizer.backend
        ours, theirs = (backend.get_vocab(with_added_tokens=False) for backend in backends)
        if ours != theirs:
            raise self._different_tokens("their vocabularies differ")

    def _encode(self, query: Query) -> Sequence[Encoded]:
        def encoded(tokenizer: Tokenizer) -> Encoded:
            return encode(tokenizer, query.prompt, query.responses, query.tools, written=True)

        item = encoded(self.tokenizer)
        if self._reference is not None and encoded(self._reference_tokenizer) != item:
            raise self._different_tokens(f"the token ids of '{query.id}' differ")
        return [item]

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        if not query.split:
            raise DataError("the start of the response is not known; send prompt and response separately")
        return super()._given(query)

    def _models(self) -> list[TransformersModel]:
        return [*super()._models(), *([] if self._reference is None else [self._reference.model])]

    def _different_tokens(self, difference: str) -> ModelError:
        return ModelError(
            f"{self.name}: model and reference have different tokenizers ({difference}); the reference must be the "
            "model that training started from"
        )

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        written = [own for item in items for own in item.written]
        reduce = torch.mean if self._mean else torch.sum

        def likelihoods(model: TransformersModel) -> Float[Tensor, " branches"]:
            logprobs = response_logprobs(model, packed.to(model.device), written)
            return torch.stack([reduce(values) for values in logprobs])

        values = likelihoods(self._model)
        if self._reference is not None:
            values = values - likelihoods(self._reference.model).to(values.device)
        return values[:, None]
