"""The route `POST /v1/scores` on vLLM's engine: a prompt and its responses in, raw logits out.

vLLM loads `ScoresPlugin` by its entry point in `vllm.endpoint_plugins` if VLLM_PLUGINS names it. The token ids are
those that longrm reads: the whole conversation in the model's own chat template, with BOS if the template has it.
"""

import asyncio
import math
import time
import uuid
from argparse import Namespace
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import JSONResponse, Response
from vllm import PoolingParams
from vllm.inputs import TokensPrompt
from vllm.outputs import ClassificationOutput

from longrm.data.joining import Encoded, TokenQuery, encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError, ModelError
from longrm.serving.rendered_texts import QueryMaker
from longrm.serving.wire import Failure, ScoreRequest, ScoreResult
from longrm.serving.wire_formats.longrm_scores import NATIVE, ScoreBody

_Result = TypeVar("_Result")

(_ROUTE,) = NATIVE


class PromptScorer:
    """Scores prompts with a vLLM engine: one request of the engine for each response.

    Args:
        engine: vLLM's `EngineClient`.
        tokenizer: The model's tokenizer, as longrm loads it.
        name: The model's name in answers.
    """

    def __init__(self, engine: Any, tokenizer: Tokenizer, name: str) -> None:
        self.name = name
        self._engine, self._tokenizer = engine, tokenizer
        self._queries = QueryMaker(tokenizer)
        self._limit = int(engine.model_config.max_model_len)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Scores the responses to one prompt.

        Raises:
            HTTPException: 400 for a request that cannot be rendered, is too long or asks for a cut; 500 for a model
                with more than one label.
        """
        begun = time.monotonic()
        encoded = await asyncio.to_thread(self._encode, request)
        # vLLM caches the blocks of a prompt as soon as it starts to read it: the responses share them.
        found = await _together(self._score_ids([*encoded.prompt, *own]) for own in encoded.responses)
        scores, cached = zip(*found, strict=True)
        return ScoreResult(
            scores,
            prompt_tokens=len(encoded.prompt),
            # Of a text that vLLM has read before, its count includes tokens of the response.
            cached_tokens=min(*cached, len(encoded.prompt)),
            total_tokens=encoded.size,
            seconds=time.monotonic() - begun,
            failure=Failure("unscored", "a score is not finite") if None in scores else None,
        )

    def _encode(self, request: ScoreRequest) -> Encoded:
        if request.cut is not None:
            raise HTTPException(400, "cut is not supported here; omit it, or use longrm serve")
        try:
            query = self._queries.query(request)
            if isinstance(query, TokenQuery):
                encoded = query.encoded
            else:
                encoded = encode(self._tokenizer, query.prompt, query.responses)
        except DataError as error:
            raise HTTPException(400, str(error)) from None
        if encoded.longest > self._limit:
            raise HTTPException(
                400,
                f"{encoded.longest:,} tokens, of which {len(encoded.prompt):,} are the prompt's, exceed the limit of "
                f"{self._limit:,}",
            )
        return encoded

    async def _score_ids(self, ids: Sequence[int]) -> tuple[float | None, int]:
        """The raw logit of a text, None if it is not finite, and the number of its tokens that were cached."""
        outputs = self._engine.encode(
            TokensPrompt(prompt_token_ids=list(ids)),
            PoolingParams(task="classify", use_activation=False),
            f"scores-{uuid.uuid4().hex}",
        )
        last = None
        async for last in outputs:
            if last.error is not None:
                raise last.error.to_exception()
        assert last is not None, "the engine ends a request with an output"
        values = ClassificationOutput.from_base(last.outputs).probs
        if len(values) != 1:
            raise HTTPException(500, f"the model has {len(values)} labels, a scalar head has one")
        return (values[0] if math.isfinite(values[0]) else None), last.num_cached_tokens


class ScoresPlugin:
    """What vLLM loads: an `EndpointPlugin` of `vllm.plugins.endpoint_plugins.interface`."""

    name = "longrm"
    required_tasks = ("classify",)

    def attach_router(self, app: FastAPI) -> None:
        """Adds the route."""
        app.add_api_route(_ROUTE.path, _scores, methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Loads the tokenizer of the engine's model.

        Raises:
            ModelError: It cannot be loaded, or vLLM has a `--chat-template`.
        """
        if getattr(args, "chat_template", None) is not None:
            raise ModelError("longrm uses the model's own chat template: omit --chat-template")
        config = engine_client.model_config
        source = config.tokenizer
        if config.tokenizer_revision is not None:
            source = f"{source}@{config.tokenizer_revision}"
        names = getattr(args, "served_model_name", None) or [args.model]
        tokenizer = await asyncio.to_thread(Tokenizer.load, source)
        state.longrm_scorer = PromptScorer(engine_client, tokenizer, names[0])


async def _scores(body: ScoreBody, request: Request) -> Response:
    """Scores the responses to a prompt, or to each of several; cancels the work if the client goes away."""
    scorer: PromptScorer = request.app.state.longrm_scorer
    working = asyncio.create_task(_together(map(scorer.score, _ROUTE.requests(body))))
    leaving = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=499)
        return JSONResponse(_ROUTE.answer(body, working.result(), scorer.name))
    finally:
        working.cancel()
        leaving.cancel()


async def _together(works: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of all; if one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
