"""Clients of vLLM's classifiers, verl among them: `/classify`, `/pooling`, `/rerank` and `/v1/rerank`."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from longrm.serving import wire


class ClassifyBody(wire.ClientBody):
    """One conversation with its tools, or texts that a chat template rendered, or their token ids.

    Scores are logits, so `use_activation` must not be true. A text that lacks BOS gets it, unless `add_special_tokens`
    is false; it is never added twice. Cached prefixes are shared only between requests of the same `cache_salt`.
    """

    model: str | None = None
    messages: wire.Several[wire.ChatMessage] | None = None
    input: str | wire.Several[str] | wire.Several[int] | wire.Several[wire.Several[int]] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool = True
    cache_salt: wire.Salt = ""
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
    if body.messages is None:
        return [
            wire.ScoreRequest(rendered=text, add_bos=body.add_special_tokens, cache_salt=body.cache_salt)
            for text in wire.texts_or_ids(body.input)
        ]
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


def _list_answer(
    kind: str, item: Callable[[int, float | None], dict[str, Any]]
) -> Callable[[ClassifyBody, Sequence[wire.ScoreResult], str], dict[str, Any]]:
    def answer(body: ClassifyBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
        return {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [item(index, result.scores[0]) for index, result in enumerate(results)],
            "usage": wire.usage(results),
        }

    return answer


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


_TEXT = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\nParis.<|im_end|>\n"
_RERANK = {"query": "Capital of France?", "documents": ["Paris.", "Rome."]}

VLLM = wire.Format(
    "vLLM's clients and verl",
    (
        wire.Route(
            "/classify",
            ClassifyBody,
            _classify_requests,
            _list_answer(
                "classify",
                lambda index, score: {
                    "index": index,
                    "label": "LABEL_0",
                    "probs": [score],
                    "num_classes": 1,
                },
            ),
            {"model": "any", "input": _TEXT, "use_activation": False},
            frozenset({"input", "messages"}),
        ),
        wire.Route(
            "/pooling",
            ClassifyBody,
            _classify_requests,
            _list_answer("pool", lambda index, score: {"index": index, "object": "pooling", "data": [score]}),
            {"model": "any", "input": [_TEXT]},
        ),
        wire.Route(
            "/rerank", RerankBody, _rerank_requests, _rerank_answer, _RERANK, frozenset({"documents"})
        ),
        wire.Route("/v1/rerank", RerankBody, _rerank_requests, _rerank_answer, _RERANK),
    ),
)
