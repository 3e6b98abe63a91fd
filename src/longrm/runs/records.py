"""The records in the logs of a run folder. They hold no timestamps, so equal work gives equal bytes."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat

from longrm.types import Cut, Message, Outcome, Span, Tool, Trial

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number with its 95% interval."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    value: FiniteFloat | None  # the number; None where it is undefined (n = 0)
    low: FiniteFloat | None  # lower limit; None where it is undefined
    high: FiniteFloat | None  # upper limit; None where it is undefined
    n: Count  # number of observations; comparisons unless the metric counts something else
    groups: Count  # number of independent groups that these are from


UNDEFINED = Estimate(None, None, None, 0, 0)
"""The estimate without any observation."""

FEW_GROUPS = 10
"""With fewer groups no bootstrap interval is wide enough to be trusted."""


@dataclass(frozen=True, slots=True)
class GoldRecord:
    """The gold of one comparison: a line of `gold.jsonl`, separate from the judgments, which must not depend on it."""

    id: str  # the comparison's id
    # One whole number per response, 1 = best, equal numbers tie; None if unknown
    ranks: tuple[int, ...] | None
    # Hash of the prompt, its tools and the responses: they must not change when a run continues
    digest: str = ""
    rubrics: str = ""  # hash of the row's criteria, which must not change either; empty where it has none
    answers: str = ""  # the same of its gold answers; empty too if the judge does not answer first

    def changed_from(self, before: Self) -> str:
        """Names what differs from the logged gold; empty if nothing does."""
        named = (
            ("text", "digest"),
            ("rubric", "rubrics"),
            ("gold answer", "answers"),
            ("gold order", "ranks"),
        )
        return next((words for words, field in named if getattr(self, field) != getattr(before, field)), "")


ContextCheck = Literal["", "same", "changed", "unanswered", "impossible"]
"""Not checked; verdict the same or changed; no answer with or without the context; no context to remove."""


PaddingCheck = Literal["", "same", "gained", "lost", "unanswered", "impossible"]
"""Not checked; the padded response is best as before, gained or lost it; no answer; nothing to pad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgmentRecord(Trial):
    """One judged comparison: a line of `judgments.jsonl`, with the gold ranks of `gold.jsonl`.

    The inherited fields are those of all trials together: answered if every order was answered at least once; the score
    of a response is its mean over orders of its mean over answered votes. `order` is the first presented order.
    """

    id: str  # the comparison's id
    group: str  # the context that it shares with others; intervals cluster on it
    # Gold ranks in the comparison's own order, 1 = best, equal numbers tie; None if unknown
    ranks: tuple[int, ...] | None = None
    length: int | None = None  # the length bucket in tokens
    # Measured tokens of the prompt; `tokens` in the log. None where the model counts none.
    prompt_tokens: Annotated[int | None, Field(validation_alias="tokens")] = None
    depth: float | None = None  # where the evidence is, 0 = start of the context, 1 = end; None if unknown
    task: str = ""  # what kind of comparison it is; empty if unknown
    subtype: str = ""  # its kind within the task; empty if unknown
    characters: tuple[int, ...] = ()  # the length of each response's text, in the comparison's own order
    # Every trial, by order and then by vote. With a single trial its fields are the record's own, and this is not
    # written to the log.
    trials: tuple[Trial, ...] = ()
    # Whether the verdict changed when the context was removed; empty if not checked
    context_check: ContextCheck = ""
    padding_check: PaddingCheck = ""  # whether the worst response became the best when it was padded
    # Scores of the baselines on the same comparison, by name
    baselines: dict[str, tuple[float, ...]] = field(default_factory=dict)
    writers: tuple[str, ...] = ()  # who wrote each response, in the comparison's own order; empty if unknown

    def __post_init__(self) -> None:
        if len(self.trials) < 2:
            own = Trial(**{name: getattr(self, name) for name in TRIAL_FIELDS})
            object.__setattr__(self, "trials", (own,))
        per_response = [self.ranks or (), self.order, self.scores, self.characters, *self.baselines.values()]
        for trial in self.trials:
            per_response += [trial.order, trial.scores, trial.ranking, *trial.criteria]
            for order in (trial.order, trial.ranking):
                if sorted(order) != list(range(len(order))):
                    raise ValueError(f"{self.id}: {list(order)} is not an order of {len(order)} responses")
        sizes = {len(entries) for entries in per_response if entries}
        if len(sizes) > 1:
            raise ValueError(
                f"{self.id}: order, scores, ranking and ranks have different lengths: {sorted(sizes)}"
            )

    @classmethod
    def of(cls, combined: Trial, **rest: Any) -> Self:
        """A record whose own fields are those of a trial, or of several together."""
        return cls(**{name: getattr(combined, name) for name in TRIAL_FIELDS}, **rest)


# The fields in the order of the log. It stays as it is: a continued run ends with the bytes of an uninterrupted one.
# fmt: off
TRIAL_FIELDS = (
    "order", "outcome", "scores", "ranking", "explanation", "detail", "attempts", "contradicted", "criteria",
)
JUDGMENT_FIELDS = (
    "id", "group", "outcome", "ranks", "order", "scores", "ranking", "length", "prompt_tokens", "depth", "task",
    "subtype", "characters", "explanation", "detail", "attempts", "contradicted", "criteria", "cut", "trials",
    "context_check", "baselines", "committed", "padding_check",
    "writers",
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """One trajectory with the scores of its steps: a line of `trajectories.jsonl`."""

    id: str
    group: str  # the task that it shares with others; intervals cluster on it
    outcome: Outcome
    # One number per step, higher is better; None for a step that a record leaves out. Empty unless answered
    scores: tuple[FiniteFloat | None, ...] = ()
    labels: tuple[FiniteFloat | None, ...] = ()  # gold: 1 right, 0 neutral, -1 wrong, None unknown
    success: bool | None = None  # gold: whether the trajectory reached its goal; None if unknown
    task: str = ""
    length: int | None = None  # the length bucket of the whole trajectory, in tokens
    tokens: tuple[Count, ...] = ()  # measured tokens up to each step
    characters: tuple[Count, ...] = ()  # of each step's last message
    agents: tuple[str, ...] = ()  # who wrote each step, where several agents do
    wrong_agent: str = ""  # gold: whose step was the decisive mistake
    explanation: str = ""  # the text of a generative model
    detail: str = ""  # why there are no scores
    cut: Cut | None = None  # the messages that were omitted to make it fit
    digest: str = ""  # hash of texts and gold, which must not change when a run continues


@dataclass(frozen=True, slots=True)
class ExampleRecord:
    """A comparison in full, for the report (`examples.jsonl`): all misjudged ones and a sample of the others."""

    id: str
    prompt: tuple[Message, ...]
    responses: tuple[tuple[Message, ...], ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None
    evidence: tuple[Span, ...] = ()
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of a training run (`steps.jsonl`)."""

    step: Count  # counts from 1
    loss: FiniteFloat  # the objective's mean over the batch
    # Share of gold-ordered response pairs that the model orders correctly; None where the objective has no pairs
    accuracy: FiniteFloat | None
    grad_norm: FiniteFloat  # norm of the gradient before clipping
    learning_rate: FiniteFloat  # the learning rate of this step
    length: Count  # longest prompt of the step, in tokens
    tokens: Count  # tokens the model read in this step, each shared prefix counted once
    losses: dict[str, FiniteFloat] = field(default_factory=dict)  # further terms that the objective reports


@dataclass(frozen=True, slots=True)
class TimingRecord:
    """How long one optimizer step took (`timing.jsonl`), separate from `StepRecord` because it is not reproducible."""

    step: Count
    tokens: Count
    seconds: Annotated[FiniteFloat, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """Digests of the contexts that one optimizer step read (`contexts.jsonl`)."""

    step: Count
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """A metric of the model after a step (`evaluations.jsonl`)."""

    step: Count  # step after which the weights were evaluated
    metric: str  # name of the metric
    value: FiniteFloat | None = None  # its value, higher is better; None where it is undefined


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The judgments that a training by reinforcement sampled for one prompt (`rollouts.jsonl`).

    All lists have one entry for every judgment. `old_logprobs` are only there if several steps use the judgments, and
    `reference_logprobs` only if the loss has a divergence; each has one number for every token.
    """

    step: Count  # the first optimizer step that uses them, from 1
    id: str  # the comparison and the presented order
    gold: str
    length: Count  # tokens of the prompt
    tokens: tuple[tuple[int, ...], ...]  # with the end token
    texts: tuple[str, ...]
    outcomes: tuple[str, ...]  # "answered", or "unparsed" if there is no verdict
    rewards: tuple[FiniteFloat, ...]
    advantages: tuple[FiniteFloat, ...]
    terms: tuple[
        dict[str, FiniteFloat], ...
    ]  # the terms of every reward, unweighted; those omitted are absent
    entropies: tuple[FiniteFloat, ...]  # mean entropy of the tokens' distributions, in nats
    verdicts: tuple[str, ...] = ()  # as the format asks for them; empty without one
    old_logprobs: tuple[tuple[FiniteFloat, ...], ...] = ()
    reference_logprobs: tuple[tuple[FiniteFloat, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutHead:
    """The fields of a `RolloutRecord` by which one is found in a log that may be larger than memory."""

    step: Count
    id: str
    rewards: tuple[FiniteFloat, ...]


@dataclass(frozen=True, slots=True)
class ReferenceRecord:
    """Summed log-probabilities of an example's responses under the initial model (`reference.jsonl`).

    The responses are those that the loss reads, in the same order.
    """

    id: str
    logprobs: tuple[FiniteFloat, ...]
