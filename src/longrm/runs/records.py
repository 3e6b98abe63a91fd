"""The records in the logs of a run folder. They hold no timestamps, so equal work gives equal bytes."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat

from longrm.types import Message, Span, Tool, Trial

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number with its 95% interval.

    Attributes:
        value: The number; None where it is undefined (n = 0).
        low: Lower limit; None where it is undefined.
        high: Upper limit; None where it is undefined.
        n: Number of observations; comparisons unless the metric says otherwise.
        groups: Number of independent groups that these are from.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    value: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    n: Count
    groups: Count


UNDEFINED = Estimate(None, None, None, 0, 0)
"""The estimate without any observation."""

FEW_GROUPS = 10
"""With fewer groups no bootstrap interval is wide enough to be trusted."""


@dataclass(frozen=True, slots=True)
class GoldRecord:
    """The gold of one comparison: a line of `gold.jsonl`, separate from the judgments, which must not depend on it.

    Attributes:
        id: The comparison's id.
        ranks: One whole number per response, 1 = best, equal numbers tie; None if unknown.
        digest: Hash of the prompt, its tools and the responses: they must not change when a run continues.
        rubrics: Hash of the row's criteria, which must not change either; empty where it has none.
    """

    id: str
    ranks: tuple[int, ...] | None
    digest: str = ""
    rubrics: str = ""

    def changed_from(self, before: Self) -> str:
        """Names what differs from the logged gold; empty if nothing does."""
        named = (("text", "digest"), ("rubric", "rubrics"), ("gold order", "ranks"))
        return next((words for words, field in named if getattr(self, field) != getattr(before, field)), "")


ContextCheck = Literal["", "same", "changed", "unanswered", "impossible"]
"""Not checked; verdict the same or changed; no answer with or without the context; no context to remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgmentRecord(Trial):
    """One judged comparison: a line of `judgments.jsonl`, with the gold ranks of `gold.jsonl`.

    The inherited fields are those of all trials together: answered if every order was answered at least once; the score
    of a response is its mean over orders of its mean over answered votes. `order` is the first presented order.

    Attributes:
        id: The comparison's id.
        group: The context that it shares with others; intervals cluster on it.
        ranks: Gold ranks in the comparison's own order, 1 = best, equal numbers tie; None if unknown.
        length: The length bucket in tokens.
        prompt_tokens: Measured tokens of the prompt; `tokens` in the log. None where the model counts none.
        depth: Where the evidence is, 0 = start of the context, 1 = end; None if unknown.
        task: What kind of comparison it is; empty if unknown.
        subtype: Its kind within the task; empty if unknown.
        characters: The length of each response's text, in the comparison's own order.
        trials: Every trial, by order and then by vote. A comparison with a single trial is that trial: the log then
            holds the record's own fields alone.
        context_check: Whether the verdict changed when the context was removed; empty if not checked.
        baselines: Scores of the baselines on the same comparison, by name.
    """

    id: str
    group: str
    ranks: tuple[int, ...] | None = None
    length: int | None = None
    prompt_tokens: Annotated[int | None, Field(validation_alias="tokens")] = None
    depth: float | None = None
    task: str = ""
    subtype: str = ""
    characters: tuple[int, ...] = ()
    trials: tuple[Trial, ...] = ()
    context_check: ContextCheck = ""
    baselines: dict[str, tuple[float, ...]] = field(default_factory=dict)

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


# The log's fields, in its order. They stay as they are: a continued run ends with the bytes of an uninterrupted one.
TRIAL_FIELDS = (
    "order",
    "outcome",
    "scores",
    "ranking",
    "explanation",
    "detail",
    "attempts",
    "contradicted",
    "criteria",
)
JUDGMENT_FIELDS = {
    "id": "id",
    "group": "group",
    "outcome": "outcome",
    "ranks": "ranks",
    "order": "order",
    "scores": "scores",
    "ranking": "ranking",
    "length": "length",
    "tokens": "prompt_tokens",
    "depth": "depth",
    "task": "task",
    "subtype": "subtype",
    "characters": "characters",
    "explanation": "explanation",
    "detail": "detail",
    "attempts": "attempts",
    "contradicted": "contradicted",
    "criteria": "criteria",
    "cut": "cut",
    "trials": "trials",
    "context_check": "context_check",
    "baselines": "baselines",
}


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
    """One optimizer step of a training run (`steps.jsonl`).

    Attributes:
        step: Counts from 1.
        loss: The objective's mean over the batch.
        accuracy: Share of gold-ordered response pairs that the model orders correctly; None where the objective has no
            pairs.
        grad_norm: Norm of the gradient before clipping.
        learning_rate: The learning rate of this step.
        length: Longest prompt of the step, in tokens.
        tokens: Tokens the model read in this step, each shared prefix counted once.
        losses: Further terms that the objective reports.
    """

    step: Count
    loss: FiniteFloat
    accuracy: FiniteFloat | None
    grad_norm: FiniteFloat
    learning_rate: FiniteFloat
    length: Count
    tokens: Count
    losses: dict[str, FiniteFloat] = field(default_factory=dict)


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
    """A metric of the model after a step (`evaluations.jsonl`).

    Attributes:
        step: Step after which the weights were evaluated.
        metric: Name of the metric.
        value: Its value, higher is better; None where it is undefined.
    """

    step: Count
    metric: str
    value: FiniteFloat | None = None


@dataclass(frozen=True, slots=True)
class ReferenceRecord:
    """Summed log-probabilities of an example's responses under the initial model (`reference.jsonl`).

    The responses are those that the loss reads, in the same order.
    """

    id: str
    logprobs: tuple[FiniteFloat, ...]
