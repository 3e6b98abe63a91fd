"""Generation on this machine, which reads what prompts have in common once.

A prompt is read in blocks of fixed size. Blocks with which the last prompt began, too, are still in the cache and not
read again: both orders of a pair, votes, and questions about one document share them. Block boundaries are multiples of
the block size whatever was cached, so the model is called with the same tensors with and without a hit, and a hit
changes no text.

Shapes: V tokens of the vocabulary.
"""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from longrm.clients import Completion, Request, Writer
from longrm.data.joining import common_prefix
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging.answers import opened_thought, thinking_tags
from longrm.modeling.attention import CONTINUATION
from longrm.modeling.device_memory import autocast_body, concerns_one_query
from longrm.modeling.loading import LanguageModel, load_language_model
from longrm.modeling.shared_prefix import check_embedded
from longrm.types import Message, Outcome

_BLOCK = 512
"""Tokens of a block: enough to keep a device busy, and few to read again where two prompts part."""


class LocalWriter(Writer):
    """A transformers language model in this process, which answers requests one at a time.

    Temperature 0 takes the most likely token; else tokens are drawn from softmax(logits / temperature) with the
    request's seed. The sampling settings of `generation_config.json` (top-k, top-p, penalties) are not applied.
    Generation ends at any end token of the generation config or the tokenizer. The text omits special tokens, except
    those that mark thinking, and begins with the thought that the chat template opens in the prompt, if any.

    Architectures that cannot be read in blocks exactly (state-space layers) read every prompt in one piece.
    """

    keeps_prompt = True

    def __init__(self, language_model: LanguageModel, name: str) -> None:
        self.name = name
        self.tokenizer: Tokenizer = language_model.tokenizer
        self.provenance = language_model.provenance
        self._model = language_model.model
        self.limit: int | None = getattr(self._model.config, "max_position_embeddings", None)
        self._ends = end_tokens(language_model)
        self._in_blocks = self._model.config._attn_implementation == CONTINUATION
        # The tokens of full blocks whose keys and values are at the start of the cache.
        self._cached: list[int] = []
        self._cache = self._new_cache()

    @classmethod
    def load(cls, model: str, *, dtype: str = "auto", device: str = "auto") -> Self:
        """Loads a folder or Hub id, as `load_language_model` does."""
        return cls(load_language_model(model, dtype=dtype, device=device), model)

    def tokens(self, messages: Sequence[Message]) -> int:
        """Returns the number of tokens of a prompt, including the assistant's header."""
        return len(self.tokenizer.generation_ids(messages))

    def write(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers every request on its own, sorted by prompt so that those which begin alike follow each other.

        A request is `TOO_LONG` if its prompt and `max_tokens` together exceed the limit, an `ERROR` if the chat
        template refuses its messages or memory runs out, and `UNPARSED` if the model computes NaN.
        """
        completions: dict[int, Completion] = {}
        prompts: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            try:
                ids = self.tokenizer.generation_ids(request.messages)
                check_embedded(ids, self._model)
                prompts[index] = ids
            except DataError as error:
                completions[index] = Completion(Outcome.ERROR, detail=str(error))
        for index in sorted(prompts, key=prompts.__getitem__):
            completions[index] = self._answer(prompts[index], requests[index])
            self.on_progress(len(completions) / len(requests))
        return [completions[index] for index in range(len(requests))]

    def _answer(self, prompt: list[int], request: Request) -> Completion:
        needed = len(prompt) + request.max_tokens
        if self.limit is not None and needed > self.limit:
            detail = (
                f"{needed:,} > {self.limit:,} tokens: {len(prompt):,} of the prompt and up to {request.max_tokens:,} "
                "of the answer"
            )
            return Completion(Outcome.TOO_LONG, detail=detail, prompt_tokens=len(prompt))
        try:
            written = self._continue(prompt, request)
        except FloatingPointError as error:
            return Completion(Outcome.UNPARSED, detail=str(error), prompt_tokens=len(prompt))
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
            self._cached, self._cache = [], self._new_cache()  # frees memory
            detail = (
                f"out of memory with {len(prompt):,} tokens of the prompt and up to {request.max_tokens:,} of the "
                "answer; lower judge.max_length, set judge.cut, or use a larger device"
            )
            return Completion(Outcome.ERROR, detail=detail, prompt_tokens=len(prompt))
        ended = written[-1] in self._ends
        opening = self.tokenizer.render(request.messages, add_generation_prompt=True)
        return Completion(
            Outcome.ANSWERED if ended else Outcome.TRUNCATED,
            text=written_text(self.tokenizer, opening, written[:-1] if ended else written),
            detail="" if ended else f"no end after {request.max_tokens} tokens",
            prompt_tokens=len(prompt),
            completion_tokens=len(written),
        )

    @torch.inference_mode()
    def _continue(self, prompt: list[int], request: Request) -> list[int]:
        """Generates tokens, including the end token; raises `FloatingPointError` if the logits are not finite."""
        generator = torch.Generator().manual_seed(request.seed)
        logits = self._read(prompt)
        written: list[int] = []
        while True:
            # Single logits may be minus infinity: those of tokens that never occur.
            if not torch.isfinite(logits.max()):
                raise FloatingPointError(f"the logits of answer token {len(written) + 1} are not finite")
            written.append(_draw(logits, request.temperature, generator))
            if written[-1] in self._ends or len(written) == request.max_tokens:
                return written
            logits = self._forward(written[-1:])

    def _read(self, prompt: list[int]) -> Float[Tensor, " V"]:
        """Reads all blocks of a prompt that are not cached; returns the logits after its last token."""
        block = _BLOCK if self._in_blocks else len(prompt)
        # prompt[:-1], as the last token must be read for its logits even if all of the prompt is cached.
        start = common_prefix(self._cached, prompt[:-1]) // block * block
        self._cached = []  # until the prompt is read to its end
        if start:
            self._cache.crop(start - self._cache.get_seq_length())
        else:
            self._cache = self._new_cache()
        for begin in range(start, len(prompt), block):
            logits = self._forward(prompt[begin : begin + block])
        if self._in_blocks:
            self._cached = prompt[: len(prompt) // block * block]
        return logits

    def _new_cache(self) -> DynamicCache:
        # With the config, layers with a window drop earlier tokens, and the cache cannot be cropped to a shared prefix.
        return DynamicCache(config=None if self._in_blocks else self._model.config)

    def _forward(self, ids: list[int]) -> Float[Tensor, " V"]:
        """Reads tokens into the cache; returns the fp32 logits after the last."""
        with autocast_body(self._model):
            output = self._model(
                input_ids=torch.tensor([ids], device=self._model.device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Tensor = output.logits[0, -1].float()
        return logits


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


def _draw(logits: Float[Tensor, " V"], temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # On the CPU, so that a seed means the same on every device.
    probabilities = torch.softmax((logits - logits.max()).cpu() / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))
