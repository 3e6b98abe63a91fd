"""Generation on this machine: requests are answered in batches, and their shared prefixes are read once.

Requests are sorted by prompt, so that both orders of a pair, votes, reminders and questions about one document follow
each other: what a prompt shares with its batch or with the batch before is not read again (`group_sampling`).

A batch changes logits by rounding only. Where the two most likely tokens are closer than that (in fp32 about 1e-4 of a
logit, in bf16 often), a text may depend on the other requests of its batch, as in every server that batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from longrm.clients import Completion, Request, TextGenerator
from longrm.data.joining import common_prefix
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging.answers import opened_thought, thinking_tags
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import autocast_body, cache_bytes, concerns_one_query
from longrm.modeling.folders import recurrent_layers, unsupported
from longrm.modeling.group_sampling import Continuation, GroupSampler, Sample, write_tokens
from longrm.modeling.loading import LanguageModel, load_language_model
from longrm.modeling.recurrent import can_continue
from longrm.modeling.shared_prefix import attention_of, check_embedded, evaluation_mode
from longrm.types import Message, Outcome

_TOGETHER = 64
"""Requests that are answered at once: more gain little, and all wait for the longest answer."""


class LocalTextGenerator(TextGenerator):
    """A transformers language model in this process.

    Temperature 0 takes the most likely token; else tokens are drawn from softmax(logits / temperature) with the
    request's seed. The sampling settings of `generation_config.json` (top-k, top-p, penalties) are not applied. The
    text omits special tokens, except those that mark thinking, and includes a thought that the chat template opens.

    Architectures whose attention cannot be replaced exactly, or whose recurrent layers cannot begin from given states,
    answer one request at a time.
    """

    keeps_prompt = True

    def __init__(self, language_model: LanguageModel, name: str) -> None:
        self.name = name
        self.tokenizer: Tokenizer = language_model.tokenizer
        self.provenance = language_model.provenance
        self._model = language_model.model
        self.limit: int | None = getattr(self._model.config, "max_position_embeddings", None)
        self._ends = end_tokens(language_model)
        self._sampler: GroupSampler | None = None
        config = self._model.config
        recurrent = bool(recurrent_layers(config))
        replaced = can_continue(self._model) if recurrent else self._model._supports_attention_backend
        if replaced and not any(unsupported(config)):
            self._sampler = GroupSampler(self._model, self._ends, fp32_head=False)
        # Tokens of a batch, and what a request takes in addition, in tokens; unknown before the first batch.
        self._room = self._own = 0

    @classmethod
    def load(cls, model: str, *, dtype: str = "auto", device: str = "auto") -> Self:
        """Loads a folder or Hub id, as `load_language_model` does."""
        return cls(load_language_model(model, dtype=dtype, device=device), model)

    def tokens(self, messages: Sequence[Message]) -> int:
        """Returns the number of tokens of a prompt, including the assistant's header."""
        return len(self.tokenizer.generation_ids(messages))

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers requests in batches, sorted by prompt so that those which begin alike follow each other.

        A request is `TOO_LONG` if its prompt and `max_tokens` together exceed the limit, an `ERROR` if the chat
        template refuses its messages or memory runs out, and `UNPARSED` if the model computes NaN.
        """
        completions: dict[int, Completion] = {}
        prompts: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            try:
                ids = self.tokenizer.generation_ids(request.messages)
                check_embedded(ids, self._model)
            except DataError as error:
                completions[index] = Completion(Outcome.ERROR, detail=str(error))
                continue
            needed = len(ids) + request.max_tokens
            if self.limit is not None and needed > self.limit:
                detail = (
                    f"{needed:,} > {self.limit:,} tokens: {len(ids):,} of the prompt and up to {request.max_tokens:,} "
                    "of the answer"
                )
                completions[index] = Completion(Outcome.TOO_LONG, detail=detail, prompt_tokens=len(ids))
            else:
                prompts[index] = ids
        # Without a sampler, transformers' own cache is used.
        own = self._model.config._attn_implementation if self._sampler is None else SHARED_PREFIX
        with evaluation_mode(self._model), attention_of(self._model, own):
            for batch in self._batches(prompts, requests):

                def report(written: float, done: int = len(completions)) -> None:
                    self.on_progress((done + written) / len(requests))

                own = [requests[index] for index in batch]
                answers = self._answers([prompts[index] for index in batch], own, report)
                completions.update(zip(batch, answers, strict=True))
        return [completions[index] for index in range(len(requests))]

    def _batches(self, prompts: Mapping[int, list[int]], requests: Sequence[Request]) -> Iterator[list[int]]:
        """The requests that are answered at once, by their numbers: those whose keys and values fit into memory."""
        if not self._room and self._sampler is not None and prompts:
            token, own = self._sampler.memory()
            self._room, self._own = cache_bytes(self._model) // token, -(-own // token)
        batch: list[int] = []
        room = 0
        for index in sorted(prompts, key=prompts.__getitem__):
            whole = len(prompts[index]) + requests[index].max_tokens + self._own
            needed = whole - (common_prefix(prompts[batch[-1]], prompts[index]) if batch else 0)
            if batch and (len(batch) == _TOGETHER or needed > room):
                yield batch
                batch = []
            if not batch:
                room, needed = self._room, whole
            batch.append(index)
            room -= needed
        if batch:
            yield batch

    def _answers(
        self, prompts: Sequence[list[int]], requests: Sequence[Request], on_step: Callable[[float], None]
    ) -> list[Completion]:
        """Answers a batch; without memory for all of it, each half of it."""
        continuations = [
            Continuation(prompt, request.max_tokens, request.seed, request.temperature)
            for prompt, request in zip(prompts, requests, strict=True)
        ]
        try:
            samples = self._write(continuations, on_step)
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
            samples = None  # outside this block, as the error keeps the tensors of its frames
        if samples is not None:
            return [self._completion(*one) for one in zip(continuations, requests, samples, strict=True)]
        if self._sampler is not None:
            self._sampler.forget()
        half = len(continuations) // 2
        if half:
            first = self._answers(prompts[:half], requests[:half], on_step)
            second = self._answers(prompts[half:], requests[half:], lambda done: on_step(half + done))
            return first + second
        detail = (
            f"out of memory with {len(prompts[0]):,} tokens of the prompt and up to {requests[0].max_tokens:,} of the "
            "answer; lower model_args.max_length, set model_args.cut, or use a larger device"
        )
        return [Completion(Outcome.ERROR, detail=detail, prompt_tokens=len(prompts[0]))]

    def _completion(self, continuation: Continuation, request: Request, sample: Sample) -> Completion:
        tokens, written = len(continuation.prompt), len(sample.tokens)
        if not sample.finite:
            detail = f"the logits of answer token {written + 1} are not finite"
            return Completion(Outcome.UNPARSED, detail=detail, prompt_tokens=tokens)
        opening = self.tokenizer.render(request.messages, add_generation_prompt=True)
        return Completion(
            Outcome.ANSWERED if sample.ended else Outcome.TRUNCATED,
            text=written_text(self.tokenizer, opening, sample.tokens[: written - sample.ended]),
            detail="" if sample.ended else f"no end after {request.max_tokens} tokens",
            prompt_tokens=tokens,
            completion_tokens=written,
        )

    @torch.inference_mode()
    def _write(self, continuations: Sequence[Continuation], on_step: Callable[[float], None]) -> list[Sample]:
        if self._sampler is not None:
            return self._sampler.write(continuations, on_step)
        cache = DynamicCache(config=self._model.config)

        def read(live: Sequence[int], tokens: Sequence[int]) -> Float[Tensor, "1 V"]:
            with autocast_body(self._model):
                output = self._model(
                    input_ids=torch.tensor([list(tokens)], device=self._model.device),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            logits: Tensor = output.logits[0].float()
            return logits

        return write_tokens(continuations, read([0], continuations[0].prompt), self._ends, read, on_step)


def end_tokens(language_model: LanguageModel) -> set[int]:
    """The tokens that end a text: those of the generation config, and that of the tokenizer."""
    ends = language_model.model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return {*ends, language_model.tokenizer.eos_id} - {None}


def written_text(tokenizer: Tokenizer, prompt: str, written: Sequence[int]) -> str:
    """The text of generated tokens, which begins with the thought that the prompt opens, if it opens one."""
    text = tokenizer.decode(written, special=False)
    with_special = tokenizer.decode(written)
    if len(thinking_tags(with_special)) > len(thinking_tags(text)):  # tags that are special tokens
        text = with_special
    return opened_thought(prompt) + text
