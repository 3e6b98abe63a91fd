"""Clients of SGLang's reward models: `/classify` with `text` or `input_ids`, and `/v1/embeddings`."""

import uuid
from collections.abc import Sequence
from typing import Any

from longrm.serving import wire


class TextBody(wire.ClientBody):
    """Texts that a chat template rendered, or their token ids."""

    text: str | wire.Several[str] | None = None
    input_ids: wire.Several[int] | wire.Several[wire.Several[int]] | None = None


class EmbeddingBody(wire.ClientBody):
    """Texts that a chat template rendered, or their token ids; the embedding of a text is its score."""

    model: str | None = None
    input: str | wire.Several[str] | wire.Several[int] | wire.Several[wire.Several[int]]


def _classify_requests(body: TextBody) -> list[wire.ScoreRequest]:
    if (body.text is None) == (body.input_ids is None):
        raise wire.Failure("invalid", "the body must have either text or input_ids")
    return wire.rendered_requests(body.input_ids if body.text is None else body.text)


def _classify_answer(body: TextBody, results: Sequence[wire.ScoreResult], model: str) -> Any:
    request = uuid.uuid4().hex
    answers = [
        {
            "embedding": list(result.scores),
            "meta_info": {
                "id": f"{request}-{index}",
                "finish_reason": {"type": "length", "length": 0},
                "prompt_tokens": result.total_tokens,
                "cached_tokens": result.cached_tokens,
                "e2e_latency": result.seconds,
            },
        }
        for index, result in enumerate(results)
    ]
    return answers[0] if wire.is_single(body.input_ids if body.text is None else body.text) else answers


def _embedding_answer(body: EmbeddingBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": list(result.scores)}
            for index, result in enumerate(results)
        ],
        "usage": wire.usage(results),
    }


SGLANG = (
    wire.Route(
        "/classify",
        TextBody,
        _classify_requests,
        _classify_answer,
        {"text": [wire.RENDERED_EXAMPLE]},
        frozenset({"text", "input_ids"}),
    ),
    wire.Route(
        "/v1/embeddings",
        EmbeddingBody,
        lambda body: wire.rendered_requests(body.input),
        _embedding_answer,
        {"model": "any", "input": wire.RENDERED_EXAMPLE},
    ),
)
