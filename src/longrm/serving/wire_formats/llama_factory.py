"""LLaMA-Factory with `--reward_model_type api`: whole texts, one per sample."""

import uuid

from longrm.serving.requests import ClientBody, ScoreRequest, Several, WireFormat, WireRoute, all_scores


class EvaluationBody(ClientBody):
    """Texts of prompt and response that a chat template rendered."""

    model: str | None = None
    messages: Several[str]


_TEXT = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\nParis.<|im_end|>\n"

LLAMA_FACTORY = WireFormat(
    "LLaMA-Factory",
    (
        WireRoute(
            "/v1/score/evaluation",
            EvaluationBody,
            lambda body: [ScoreRequest(rendered=text) for text in body.messages],
            lambda body, results, model: {
                "id": f"scoreval-{uuid.uuid4().hex}",
                "object": "score.evaluation",
                "model": model,
                "scores": all_scores(results),
            },
            {"model": "model", "messages": [_TEXT]},
        ),
    ),
)
