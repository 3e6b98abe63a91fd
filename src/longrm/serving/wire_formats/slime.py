"""slime with `--rm-url`: one sample per request; the whole answer is its score."""

from typing import Any

from longrm.serving import wire


class SampleBody(wire.ClientBody):
    """A prompt, as messages or rendered by a chat template, and the response; the label is ignored."""

    prompt: str | wire.Several[wire.ChatMessage]
    response: str
    label: Any = None


SLIME = (
    wire.Route(
        "/rm",
        SampleBody,
        lambda body: [wire.ScoreRequest(wire.text_or_messages(body.prompt), [body.response])],
        lambda body, results, model: results[0].scores[0],
        {
            "prompt": [{"role": "user", "content": "Capital of France?"}],
            "response": "Paris.",
            "label": "Paris",
        },
    ),
)
