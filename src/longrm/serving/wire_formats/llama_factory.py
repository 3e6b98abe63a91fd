"""LLaMA-Factory with `--reward_model_type api`: whole texts, one per sample."""

import uuid

from longrm.serving import wire


class EvaluationBody(wire.ClientBody):
    """Texts of prompt and response that a chat template rendered."""

    model: str | None = None
    messages: wire.Several[str]


LLAMA_FACTORY = (
    wire.Route(
        "/v1/score/evaluation",
        EvaluationBody,
        lambda body: wire.rendered_requests(body.messages),
        lambda body, results, model: {
            "id": f"scoreval-{uuid.uuid4().hex}",
            "object": "score.evaluation",
            "model": model,
            "scores": wire.all_scores(results),
        },
        {"model": "model", "messages": [wire.RENDERED_EXAMPLE]},
    ),
)
