"""slime with `--rm-url`: one sample per request; the whole answer is its score."""

from typing import Any

from longrm.serving.requests import (
    ChatMessage,
    ClientBody,
    ScoreRequest,
    Several,
    WireFormat,
    WireRoute,
    text_or_messages,
)


class SampleBody(ClientBody):
    """A prompt, as messages or rendered by a chat template, and the response; the label is ignored."""

    prompt: str | Several[ChatMessage]
    response: str
    label: Any = None


_EXAMPLE = {
    "prompt": [{"role": "user", "content": "Capital of France?"}],
    "response": "Paris.",
    "label": "Paris",
}

SLIME = WireFormat(
    "slime",
    (
        WireRoute(
            "/rm",
            SampleBody,
            lambda body: [ScoreRequest(text_or_messages(body.prompt), [body.response])],
            lambda body, results, model: results[0].scores[0],
            _EXAMPLE,
        ),
    ),
)
