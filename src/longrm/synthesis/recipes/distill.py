"""`longrm synthesize distill`: the best of a policy's answers, by a reward model, as demonstrations.

The paper's section 6.2: two rollouts per prompt, and training on the better one. Its short-context baseline is a reward
model with `judge.max_length` and `judge.cut`.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from longrm import reward_models
from longrm.clients.remote_settings import ModelName, Remote
from longrm.data.files import find_files
from longrm.reward_models import JudgeSettings, RewardModel
from longrm.rng import seed_of
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.documents import Document, PolicyPrompt, policy_prompt, read_policy_prompts
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask, batched_scores, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import DocumentRecipe
from longrm.types import Query, as_messages


class DistillRecipe(DocumentRecipe):
    """Settings of `longrm synthesize distill`.

    Attributes:
        documents: The questions that the policy answers; or with `format = "prompts"`, any prompts.
        policy: The model that answers.
        rollouts: Answers drawn for each prompt.
        temperature: Of the answers; 0 would give the same answer every time.
        reward_model: Scores the answers: a folder or Hub id, `openai:URL#NAME`, `baseline:NAME` or `compress:MODEL`.
        model_args: How the reward model is loaded, and what it reads.
        judge: How a generative reward model is asked.
        remote: How a reward model behind HTTP is reached.
    """

    policy: ModelSettings
    rollouts: int = Field(2, ge=2, le=10_000)
    temperature: float = Field(1.0, gt=0)
    reward_model: ModelName
    model_args: reward_models.ModelSettings = reward_models.ModelSettings()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()

    @model_validator(mode="after")
    def _knows_its_questions(self) -> Self:
        if self.documents.format == "prompts" and self.policy.model.startswith("simulated:"):
            raise ValueError('a simulated policy cannot answer documents.format = "prompts"')
        if self.reward_model.startswith("simulated:"):
            raise ValueError(
                f"'{self.reward_model}' knows no answers that are not written yet; use baseline:NAME, openai:URL#NAME "
                "or the folder of a reward model"
            )
        return self

    def read(self) -> Iterator[Document | PolicyPrompt]:
        """Reads what the policy answers, always in the same order."""
        if self.documents.format == "prompts":
            return read_policy_prompts(self.documents.place)
        return self.documents.read()


RECIPE = DistillRecipe


def synthesize(recipe: DistillRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes demonstrations into the run folder `out`, continuing what is there."""
    documents, models = recipe.documents, {"policy": recipe.policy}
    sources = [documents.provenance(find_files(documents.place) if documents.format == "prompts" else None)]
    name = recipe.reward_model
    with open_run("distill", recipe, out, models, sources, {}, name) as run:
        reward_model = run.load_reward_model(name, recipe.model_args, recipe.judge, recipe.remote)
        make = partial(make_rows, recipe, run.models["policy"], reward_model, batched_scores(reward_model))
        total = sum(1 for _ in recipe.read())
        return run.write(recipe.read(), make, total=total, progress=progress)


async def make_rows(
    recipe: DistillRecipe,
    policy: AsyncModel,
    reward_model: RewardModel,
    score: Callable[[Query], Awaitable[tuple[float, ...]]],
    source: Document | PolicyPrompt,
) -> InputOutcome:
    """Answers a prompt, scores the answers and keeps the best."""
    prompt = policy_prompt(source) if isinstance(source, Document) else source
    known = prompt.question is not None and prompt.context
    parts = (
        {"document": prompt.id, "shown": prompt.shown_text, "question": prompt.question_text} if known else {}
    )
    requests = [
        TaskRequest(
            prompt.messages,
            recipe.max_tokens,
            recipe.temperature,
            seed_of("rollout", recipe.seed, prompt.id, number),
            task="answer" if known else "",
            parts=parts,
        )
        for number in range(recipe.rollouts)
    ]
    steps = Steps()
    answers: list[str] = []
    for completion in await ask(policy, *requests):
        text = completion.text.strip()
        reason = failure_of(completion) or ("empty" if not text else "repeated" if text in answers else "")
        steps.reply("rollouts", reason, completion.text)
        if not reason:
            answers.append(text)
    if len(answers) < 2:  # nothing to compare
        steps["best", "tie" if answers else "no_answer"] += 1
        return InputOutcome(prompt.id, (), steps)

    responses = tuple(as_messages(answer, "assistant") for answer in answers)
    scores = await score(Query(prompt.id, prompt.messages, responses, prompt.context, prompt.question))
    reason = "unjudged" if not scores else "tie" if scores.count(max(scores)) > 1 else ""
    steps["best", reason or KEPT] += 1
    if reason:
        return InputOutcome(prompt.id, (), steps)
    best = scores.index(max(scores))
    row = {
        **prompt.metadata,
        "id": prompt.id,
        "group": prompt.group,
        "prompt": [dict(message) for message in prompt.messages],
        **({"question": prompt.question_text} if prompt.question is not None else {}),
        "completion": answers[best],
        "model": policy.name,
        "reward_model": reward_model.name,
        "rollout_scores": list(scores),
        "best": best,
    }
    return InputOutcome(prompt.id, (row,), steps)
