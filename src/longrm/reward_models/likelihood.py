"""Language models that judge by how likely they are to write each response, over one encoded prompt."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, DataError, ModelError
from longrm.modeling.loading import LanguageModel, load_language_model
from longrm.modeling.shared_prefix import Packed, TransformersModel, check_embedded, response_logprobs
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.packed import PackedRewardModel
from longrm.types import Query


class LikelihoodRewardModel(PackedRewardModel):
    """The log-probability of each response given the prompt, both as the model's own chat template renders them.

    The score is L(y) = sum_t log p(y_t | x, y_<t), a difference of which is the log-odds that the model writes the one
    response and not the other, or its mean over tokens (SimPO's reward without beta; Meng et al. 2024, equation 3).
    Against a reference it is L(y) - L_ref(y), the implicit reward of a model trained by DPO over its beta (Rafailov et
    al. 2023, equation 5). RewardBench evaluates such models with the same formula (Lambert et al. 2024, section 4) on
    other tokens: it prepends BOS, appends EOS and counts the assistant's header.

    The tokens that count are those that training by preferences counts, here and in TRL: all that follow the prompt.
    These are the content, the token that closes the turn, for without it a response would never be less likely than
    one that goes on, and what the template writes behind it. A thought that the template writes before the content,
    even an empty one, counts too. Of a trajectory the turns of the assistant count, each likewise; results of tools do
    not.

    Log-probabilities are computed in fp32, at the tokens of the responses alone.

    Args:
        language_model: The model, which reads packed sequences, and its tokenizer.
        name: How summaries and reports call it.
        settings: `likelihood` says whether log-probabilities are summed or averaged.
        reference: The model that the trained one started from, likewise.

    Raises:
        ModelError: The vocabularies of both models differ.
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
        """Has both models read the same tokens: those of the trained one, which the reference must know as such."""
        self.provenance = {
            **self.provenance,
            **{f"reference_{name}": said for name, said in reference.provenance.items()},
        }
        self._limit = min(self._limit, int(reference.model.config.max_position_embeddings))
        self._theirs = replace(trained.tokenizer, backend=reference.tokenizer.backend)
        ours, theirs = (
            one.tokenizer.backend.get_vocab(with_added_tokens=False) for one in (trained, reference)
        )
        if ours != theirs:
            raise ModelError(self._tokenized_apart("their vocabularies differ"))

    def _items(self, query: Query) -> Sequence[Encoded]:
        item = self._encoded(self._tokenizer, query)
        if self._reference is not None:
            if self._encoded(self._theirs, query) != item:
                raise ModelError(self._tokenized_apart(f"the token ids of '{query.id}' differ"))
            for ids in (item.prompt, *item.responses):
                check_embedded(ids, self._reference.model)
        return [item]

    def _encoded(self, tokenizer: Tokenizer, query: Query) -> Encoded:
        return encode(tokenizer, query.prompt, query.responses, query.tools, written=True)

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        if not query.split:
            raise DataError("it is not known where the response begins: send prompt and response apart")
        if self._reference is not None:
            for ids in (query.encoded.prompt, *query.encoded.responses):
                check_embedded(ids, self._reference.model)
        return super()._given(query)

    def _models(self) -> list[TransformersModel]:
        return [*super()._models(), *([] if self._reference is None else [self._reference.model])]

    def _tokenized_apart(self, what: str) -> str:
        return (
            f"{self.name}: the tokenizers of model and reference are not the same ({what}), so their log-probabilities "
            "are not of the same tokens; name the model that the trained one started from"
        )

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        written = [own for item in items for own in item.written]
        values = self._of(self._model, packed, written)
        if self._reference is not None:
            model = self._reference.model
            values = values - self._of(model, packed.to(model.device), written).to(values.device)
        return values[:, None]

    def _of(
        self, model: object, packed: Packed, written: Sequence[Sequence[int]]
    ) -> Float[Tensor, " branches"]:
        return self._reduced(response_logprobs(model, packed, written))

    def _reduced(self, logprobs: Sequence[Float[Tensor, " R"]]) -> Float[Tensor, " branches"]:
        reduce = torch.mean if self._mean else torch.sum
        return torch.stack([reduce(own) for own in logprobs])


def load_likelihood(name: str, request: LoadRequest) -> LikelihoodRewardModel:
    """Loads `likelihood:MODEL` or `likelihood:MODEL#REFERENCE`, each a folder or Hub id.

    Raises:
        ConfigError: Nothing stands before or behind the #.
        ModelError: One cannot be loaded, its architecture is not supported, or their vocabularies differ.
    """
    path, marked, reference = name.partition("#")
    if not path or (marked and not reference):
        lacks = "reference behind #; name it, or leave # away" if path else "model before #"
        raise ConfigError(f"'likelihood:{name}' lacks the {lacks}")
    judge = request.judge
    load = partial(load_language_model, dtype=judge.dtype, device=judge.device, packed=True)
    return LikelihoodRewardModel(
        load(path), f"likelihood:{name}", judge, load(reference) if reference else None
    )
