"""`longrm synthesize distill`: the best of a policy's answers, by a reward model, as demonstrations.

The paper's section 6.2: two rollouts a prompt, and training on the better one. A reward model that reads a short part
of the prompt only (`ShortContextModel`) is the baseline that a long-context one must beat.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from longrm import reward_models
from longrm.clients import Completion
from longrm.clients.remote_settings import ModelName, Remote
from longrm.config import Config
from longrm.data.files import find_files
from longrm.reward_models import Compress, JudgeSettings, RewardModel
from longrm.reward_models.trials import points
from longrm.rng import seed_of
from longrm.runs.folder import CACHE
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.input_settings import DocumentSettings, digest_of
from longrm.synthesis.inputs.policy_prompts import PolicyPrompt, policy_prompt, read_policy_prompts
from longrm.synthesis.model_requests import (
    AnswerQuestion,
    AsyncModel,
    BatchedCalls,
    TaskRequest,
    ask,
    check_answered,
)
from longrm.synthesis.models import AskedModel
from longrm.synthesis.pipeline import Provenance, SynthesisRecipe, open_run
from longrm.synthesis.short_context_model import KeptPart, ShortContextModel
from longrm.synthesis.stats import Dropped, InputOutcome, StepCounts
from longrm.types import Outcome, Query, Trial, as_messages
from longrm.worlds.words_tokenizer import load_tokenizer

DistillInput = Document | PolicyPrompt


class DistillSettings(Config):
    """How a policy is asked, and which of its answers are kept.

    Attributes:
        rollouts: Answers drawn for each prompt.
        max_tokens: The most tokens of an answer; one that reaches them is left out.
        temperature: 0 would give the same answer every time.
        seed: Of the draws; every prompt and rollout has its own.
        ties: Where the best scores tie, or all answers are the same: "drop" the prompt, or keep the "first" drawn.
    """

    rollouts: int = Field(2, ge=2, le=10_000)
    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(1.0, gt=0)
    seed: int = 0
    ties: Literal["drop", "first"] = "drop"


class ShortContextSettings(Config):
    """The short-context baseline: the reward model reads a part of the prompt only.

    Attributes:
        tokens: So many tokens of it, the question included.
        part: The "first" ones, the "last" ones, or those at both "ends".
        tokenizer: "words", or a tokenizer's file, folder or Hub id, that counts them.
    """

    tokens: int = Field(ge=1)
    part: KeptPart = "last"
    tokenizer: str = "words"


class DistillRecipe(SynthesisRecipe, DistillSettings):
    """Settings of `longrm synthesize distill`.

    Attributes:
        documents: Whose questions the policy answers; or `prompts`.
        prompts: A file, a folder or a run folder with the prompts that it answers: comparisons, demonstrations, or
            rows with nothing but a `prompt`.
        policy: What answers.
        reward_model: What scores the answers: a folder or Hub id, `openai:URL#NAME`, `baseline:NAME` or
            `compress:MODEL`.
        judge: How a generative reward model, or one that reads within a limit, is asked.
        remote: How a reward model behind HTTP is reached.
        compress: What `compress:MODEL` leaves of a context.
        short_context: Lets the reward model read a part of every prompt only.
    """

    documents: DocumentSettings | None = None
    prompts: str | None = None
    policy: AskedModel
    reward_model: ModelName
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    compress: Compress = Compress()
    short_context: ShortContextSettings | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if (self.documents is None) == (self.prompts is None):
            raise ValueError(
                "a policy answers the questions of `documents` or the prompts of `prompts`: give one"
            )
        if self.prompts is not None and self.policy.model.startswith("simulated:"):
            raise ValueError(
                "a simulated policy knows the questions of `documents` only, and not those of `prompts`"
            )
        if self.reward_model.startswith("simulated:"):
            raise ValueError(
                f"'{self.reward_model}' knows no answers that are yet to be written; take baseline:NAME, "
                "openai:URL#NAME or the folder of a reward model"
            )
        return self

    def read(self) -> Iterator[DistillInput]:
        """Reads what the policy answers, always in the same order."""
        if self.documents is not None:
            return self.documents.read()
        assert self.prompts is not None, "checked by the recipe"
        return read_policy_prompts(Path(self.prompts).expanduser())

    def provenance(self) -> dict[str, str]:
        """What a manifest says of it."""
        if self.documents is not None:
            return self.documents.provenance()
        assert self.prompts is not None, "checked by the recipe"
        digest = digest_of(find_files(Path(self.prompts).expanduser()))
        return {"name": "prompts", "license": "unknown", "path": self.prompts, "sha256": digest}


RECIPE = DistillRecipe


def synthesize(recipe: DistillRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes demonstrations into the run folder `out`, continuing what is there."""
    provenance = Provenance([recipe.provenance()], recipe.seed, {}, {"reward model": recipe.reward_model})
    with open_run("distill", recipe, out, {"policy": recipe.policy}, provenance) as run:
        reward_model = _load_reward_model(recipe, out, partial(run.spending.pay, recipe.reward_model))
        distillation = Distillation(run.models["policy"], reward_model, recipe)
        total = sum(1 for _ in recipe.read())
        return run.write(recipe.read(), distillation.make_rows, total=total, progress=progress)


class Distillation:
    """Turns prompts into demonstrations."""

    def __init__(self, policy: AsyncModel, reward_model: RewardModel, settings: DistillSettings) -> None:
        self._policy, self._reward_model, self._settings = policy, reward_model, settings
        self._score = BatchedCalls(self._judge)

    async def make_rows(self, source: DistillInput) -> InputOutcome:
        """Answers a prompt, scores the answers and keeps the best."""
        prompt = policy_prompt(source) if isinstance(source, Document) else source
        counts = StepCounts()
        rollouts = await ask(self._policy, *rollout_requests(prompt, self._settings))
        answers = distinct_answers(rollouts, counts)
        row = await self._best(prompt, answers)
        if isinstance(row, Dropped):
            counts.drop(row)
            return InputOutcome(prompt.id, (), counts.steps)
        counts.keep("best")
        return InputOutcome(prompt.id, (row,), counts.steps)

    async def _judge(self, queries: list[Query]) -> list[Trial]:
        return await asyncio.to_thread(self._reward_model.judge_in_all_orders, queries)

    async def _best(self, prompt: PolicyPrompt, answers: Sequence[str]) -> dict[str, Any] | Dropped:
        """The row of the best answer. A single answer is the best by the rule for ties: nobody scores it."""
        if not answers:
            return Dropped("best", "no_answer")
        scores: tuple[float, ...] = ()
        if len(answers) > 1:
            responses = tuple(as_messages(answer, "assistant") for answer in answers)
            query = Query(prompt.id, prompt.messages, responses, prompt.context, prompt.question)
            trials = await self._score([query])
            check_answered(self._reward_model.name, trials)
            scores = points(trials[0])
            if not scores:
                return Dropped("best", "unjudged")
        if scores.count(max(scores, default=0.0)) != 1 and self._settings.ties == "drop":
            return Dropped("best", "tie")
        best = scores.index(max(scores)) if scores else 0
        return {
            **prompt.metadata,
            "id": prompt.id,
            "group": prompt.group,
            "prompt": [dict(message) for message in prompt.messages],
            **({"question": prompt.question_text} if prompt.question is not None else {}),
            "completion": answers[best],
            "model": self._policy.name,
            "reward_model": self._reward_model.name,
            "rollout_scores": list(scores),
            "best": best,
        }


def rollout_requests(prompt: PolicyPrompt, settings: DistillSettings) -> list[TaskRequest]:
    """The requests for a prompt's answers, each with a seed of its own."""
    known = prompt.question is not None and prompt.context
    task = AnswerQuestion(prompt.shown_text, prompt.question_text) if known else None
    return [
        TaskRequest(
            prompt.messages,
            settings.max_tokens,
            settings.temperature,
            seed_of("rollout", settings.seed, prompt.id, number),
            task=task,
        )
        for number in range(settings.rollouts)
    ]


def distinct_answers(completions: Sequence[Completion], counts: StepCounts) -> list[str]:
    """The answers that can be compared, each once; why others cannot is counted."""
    found: list[str] = []
    for completion in completions:
        text = completion.text.strip()
        if completion.outcome is not Outcome.ANSWERED:
            counts.drop(Dropped("rollouts", str(completion.outcome)))
        elif not text:
            counts.drop(Dropped("rollouts", "empty"))
        elif text in found:
            counts.drop(Dropped("rollouts", "repeated"))
        else:
            counts.keep("rollouts")
            found.append(text)
    return found


def _load_reward_model(recipe: DistillRecipe, out: Path, pay: Callable[[Completion], None]) -> RewardModel:
    remote = recipe.remote
    if remote.cache is None:  # what was paid for once is not asked for again when the run continues
        remote = remote.model_copy(update={"cache": str(out / CACHE)})
    model = reward_models.load(
        recipe.reward_model, judge=recipe.judge, remote=remote, compress=recipe.compress, on_usage=pay
    )
    part = recipe.short_context
    if part is None:
        return model
    return ShortContextModel(model, load_tokenizer(part.tokenizer), part.tokens, part.part)
