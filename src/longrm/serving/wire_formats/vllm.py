"""Clients of vLLM's classifiers, verl among them: `/classify`, `/pooling`, `/rerank` and `/v1/rerank`."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from longrm.serving import wire


class ClassifyBody(wire.ClientBody):
    """One conversation with its tools, or texts that a chat template rendered, or their token ids.

    Scores are logits, so `use_activation` must not be true. A text that lacks BOS gets it, unless `add_special_tokens`
    is false; it is never added twice. Cached prefixes are shared only between requests of the same `cache_salt`. The
    task `token_classify` of `/pooling` scores every turn of the assistant, as vLLM's process reward models do every
    step: `data` has a row for each.
    """

    model: str | None = None
    messages: wire.Several[wire.ChatMessage] | None = None
    input: str | wire.Several[str] | wire.Several[int] | wire.Several[wire.Several[int]] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool = True
    cache_salt: wire.Salt = ""
    task: str | None = None
    tools: wire.Several[dict[str, Any]] | None = None


class RerankBody(wire.ClientBody):
    """A prompt and the responses to it."""

    model: str | None = None
    query: str
    documents: wire.Several[str]
    top_n: int = 0
    use_activation: bool | None = None


def _check_activation(wanted: bool | None) -> None:
    if wanted:
        raise wire.Failure(
            "invalid", "scores are raw logits: send use_activation false and apply your own function"
        )


def _classify_requests(body: ClassifyBody) -> list[wire.ScoreRequest]:
    _check_activation(body.use_activation)
    if (body.messages is None) == (body.input is None):
        raise wire.Failure("invalid", "the body must have either messages or input")
    if body.task == "token_classify" and body.messages is None:
        raise wire.Failure("invalid", "the task token_classify needs messages")
    if body.messages is None:
        return wire.rendered_requests(body.input, add_bos=body.add_special_tokens, cache_salt=body.cache_salt)
    if body.task == "token_classify":
        options: dict[str, Any] = {"cache_salt": body.cache_salt, "tools": wire.tools_in(body.tools)}
        return [wire.steps_request(wire.messages_in(body.messages), **options)]
    *prompt, last = wire.messages_in(body.messages) or [{}]
    if not prompt or last.get("role") != "assistant":
        raise wire.Failure(
            "invalid",
            "messages must end with a message of the assistant, which is scored, after at least one other",
        )
    return [wire.ScoreRequest(prompt, [(last,)], cache_salt=body.cache_salt, tools=wire.tools_in(body.tools))]


def _rerank_requests(body: RerankBody) -> list[wire.ScoreRequest]:
    _check_activation(body.use_activation)
    return [wire.ScoreRequest(body.query, body.documents)]


def _list_answer(kind: str, results: Sequence[wire.ScoreResult], model: str, data: Any) -> dict[str, Any]:
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": wire.usage(results),
    }


def _classify_answer(body: ClassifyBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
    data = [
        {"index": index, "label": "LABEL_0", "probs": [result.scores[0]], "num_classes": 1}
        for index, result in enumerate(results)
    ]
    return _list_answer("classify", results, model, data)


def _pooling_answer(body: ClassifyBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
    data = [
        {
            "index": index,
            "object": "pooling",
            "data": [[score] for score in result.scores]
            if body.task == "token_classify"
            else [result.scores[0]],
        }
        for index, result in enumerate(results)
    ]
    return _list_answer("pool", results, model, data)


def _rerank_answer(body: RerankBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
    (result,) = results
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": model,
        "usage": wire.usage(results),
        "results": [
            {
                "index": index,
                "document": {"text": body.documents[index]},
                "relevance_score": result.scores[index],
            }
            for index in result.order[: body.top_n or None]
        ],
    }


_RERANK = {"query": "Capital of France?", "documents": ["Paris.", "Rome."]}

VLLM = (
    wire.Route(
        "/classify",
        ClassifyBody,
        _classify_requests,
        _classify_answer,
        {"model": "any", "input": wire.RENDERED_EXAMPLE, "use_activation": False},
        frozenset({"input", "messages"}),
    ),
    wire.Route(
        "/pooling",
        ClassifyBody,
        _classify_requests,
        _pooling_answer,
        {"model": "any", "input": [wire.RENDERED_EXAMPLE]},
    ),
    wire.Route("/rerank", RerankBody, _rerank_requests, _rerank_answer, _RERANK),
    wire.Route("/v1/rerank", RerankBody, _rerank_requests, _rerank_answer, _RERANK),
)
