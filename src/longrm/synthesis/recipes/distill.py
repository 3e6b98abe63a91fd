"""`longrm synthesize distill`: the best of a policy's answers, by a reward model, as demonstrations.

The paper's section 6.2: two rollouts per prompt, and training on the better one. A reward model that reads only a short
part of the prompt (`ShortContextModel`) is the baseline for a long-context one.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from longrm.clients.remote_settings import ModelName, Remote
from longrm.data.files import find_files
from longrm.data.tokenizing import Tokenizer
from longrm.judging import truncate_context
from longrm.reward_models import JudgeSettings, RewardModel
from longrm.rng import seed_of
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.documents import Document, PolicyPrompt, policy_prompt, read_policy_prompts
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask, batched_scores, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import DocumentRecipe
from longrm.types import Judgment, Outcome, Query, Span, as_messages, message_text, text_of
from longrm.worlds.words_tokenizer import load_tokenizer


class DistillRecipe(DocumentRecipe):
    """Settings of `longrm synthesize distill`.

    Attributes:
        documents: The questions that the policy answers; or with `format = "prompts"`, any prompts.
        policy: The model that answers.
        rollouts: Answers drawn for each prompt.
        temperature: Of the answers; 0 would give the same answer every time.
        reward_model: Scores the answers: a folder or Hub id, `openai:URL#NAME`, `baseline:NAME` or `compress:MODEL`.
        judge: How a generative reward model, or one with a length limit, is asked.
        remote: How a reward model behind HTTP is reached.
        short_context: Only this many tokens of every prompt are read by the reward model, the question included: the
            short-context baseline. They are the last ones.
        tokenizer: Counts these tokens: "words", or a tokenizer's file, folder or Hub id.
    """

    policy: ModelSettings
    rollouts: int = Field(2, ge=2, le=10_000)
    temperature: float = Field(1.0, gt=0)
    reward_model: ModelName
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    short_context: int | None = Field(None, ge=1)
    tokenizer: str = "words"

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
        reward_model = run.load_reward_model(name, recipe.judge, recipe.remote)
        if recipe.short_context is not None:
            tokenizer = load_tokenizer(recipe.tokenizer)
            reward_model = ShortContextModel(reward_model, tokenizer, recipe.short_context)
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


class ShortContextModel(RewardModel):
    """Another reward model that reads only the last `tokens` of every prompt: the short-context baseline.

    The question and the responses stay complete. If the context is not known, all of the prompt except the question
    counts as context. The judgment records what was cut; a prompt that cannot be cut so short is `TOO_LONG`.
    """

    def __init__(self, inner: RewardModel, tokenizer: Tokenizer, tokens: int) -> None:
        self.name = f"last-{tokens}:{inner.name}"
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self._inner, self._tokenizer, self._tokens = inner, tokenizer, tokens

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Cuts every query and returns the other model's judgments."""
        shortened = []
        for query in queries:
            if not query.context:
                texts = [message_text(message) for message in query.prompt]
                spans = tuple(Span(number, 0, len(text)) for number, text in enumerate(texts) if text)
                query = replace(query, context=spans)
            shortened.append(truncate_context(query, self._size, self._tokens, self._tokenizer, "left"))
        judged = iter(self._inner.judge([found[0] for found in shortened if found is not None]))
        judgments = []
        for found in shortened:
            if found is None:
                detail = f"the question and the frame of the prompt have more than {self._tokens} tokens"
                judgments.append(Judgment(Outcome.TOO_LONG, detail=detail))
            else:
                judgment = next(judged)
                judgments.append(replace(judgment, cut=found[1] or judgment.cut))
        return judgments

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders in which the other model must be asked."""
        return self._inner.orders(comparison)

    def _size(self, query: Query) -> int:
        return self._tokenizer.count(text_of(query.prompt))
