"""OpenRLHF with `--reward.remote_url`: the whole text of each sample, and its prompt.

OpenRLHF keeps special tokens when it decodes (openrlhf/utils/agent.py and trainer/ppo_utils/samples_generator.py at
3c3be62), so `query` ends in EOS.
"""

from collections.abc import Sequence
from typing import Any

from longrm.serving import wire


class RewardBody(wire.ClientBody):
    """Rendered prompts, and the same prompts with their responses; labels are ignored."""

    query: wire.Several[str]
    prompts: wire.Several[str] | None = None
    labels: wire.Several[Any] | None = None


def _requests(body: RewardBody) -> list[wire.ScoreRequest]:
    prompts = [""] * len(body.query) if body.prompts is None else body.prompts
    if len(prompts) != len(body.query):
        raise wire.Failure("invalid", f"{len(body.query)} items in query, but {len(prompts)} in prompts")
    return [
        # A text that was decoded from tokens may not begin with its prompt, character by character.
        wire.ScoreRequest(prompt, [text.removeprefix(prompt)], strip_end=True)
        if prompt and text.startswith(prompt) and len(text) > len(prompt)
        else wire.ScoreRequest(rendered=text)
        for prompt, text in zip(prompts, body.query, strict=True)
    ]


def _answer(body: RewardBody, results: Sequence[wire.ScoreResult], model: str) -> dict[str, Any]:
    scores = wire.all_scores(results)
    # Floats, like everything else that OpenRLHF logs.
    tokens = {
        "total_tokens": [float(result.total_tokens) for result in results],
        "cached_tokens": [float(result.cached_tokens) for result in results],
    }
    return {"rewards": scores, "scores": scores, "extra_logs": tokens}


_PROMPT = "<|im_start|>user\nCapital of France?<|im_end|>\n<|im_start|>assistant\n"

OPENRLHF = (
    wire.Route(
        "/get_reward",
        RewardBody,
        _requests,
        _answer,
        {"query": [f"{_PROMPT}Paris.<|im_end|>"], "prompts": [_PROMPT], "labels": ["Paris"]},
    ),
)
