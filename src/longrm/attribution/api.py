"""The Python API of attributions: `longrm.attribute`."""

from collections.abc import Sequence
from dataclasses import replace

from longrm.attribution.ablation import Removal, check_plain
from longrm.attribution.attribute import MASKS, target_of
from longrm.attribution.attribute import attribute as attribute_query
from longrm.attribution.records import AttributionRecord
from longrm.data.spans import context_in
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.reward_models.protocol import Chat, are_prompts, query_of
from longrm.reward_models.trials import to_scores
from longrm.types import Tool


def attribute(
    model: RewardModel,
    prompt: Chat,
    responses: Sequence[Chat],
    *,
    tools: Sequence[Tool] = (),
    context: str | None = None,
    removal: Removal = "filler",
    masks: int = MASKS,
    seed: int = 0,
) -> AttributionRecord:
    """Finds the sentences of a prompt that moved the lead of the best response, as `longrm attribute` does.

    Args:
        model: Any reward model.
        prompt: The user's text, or messages.
        responses: At least two responses, each text or messages.
        tools: The tools that the prompt offers.
        context: The verbatim part of the prompt that is context; by default all of it.
        removal: What replaces a removed sentence: "filler" of as many tokens, or nothing ("deletion").
        masks: Prompts to which the weights of sentences are fitted.
        seed: Draws the prompts.

    Returns:
        All sentences with their weights, and `trust`: whether they can be relied on.

    Raises:
        DataError: As `RewardModel.score`; or there are several prompts, no two different responses, or the context is
            in a message whose content is a list.
    """
    if are_prompts(prompt):
        raise DataError("attribute takes one prompt: a text, or messages")
    query = query_of(0, prompt, responses, tools)
    if context is not None:
        query = replace(query, context=context_in(query.prompt, context))
    if all(one == query.responses[0] for one in query.responses):
        raise DataError("all responses are equal: there is no lead to explain")
    check_plain(query)
    (trial,) = model.judge_in_all_orders([query])
    values = to_scores(trial)
    if not values:
        raise DataError(f"{model.name} gave no scores ({trial.outcome}): {trial.detail}")
    return attribute_query(model, query, target_of(values, None), removal, masks=masks, seed=seed)
