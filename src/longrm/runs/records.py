"""The lines of the logs in a run folder. No clock is read into them, so equal work gives equal bytes."""

from dataclasses import dataclass, field

from longrm.types import Message, Outcome, Span


@dataclass(frozen=True, slots=True)
class JudgmentRecord:
    """One judged comparison, with all that the metrics need (`judgments.jsonl`).

    Attributes:
        id: The comparison's id.
        group: The context that it shares with others; intervals cluster on it.
        outcome: What became of the query.
        ranks: Gold ranks in the comparison's own order, 1 = best, equal numbers tie; None if unknown.
        order: The presented order: entry k is the index of the response shown at position k.
        scores: One score a response in the comparison's own order; empty if there is none.
        ranking: Judged order, best first, as indices of the comparison; empty unless the judge gave an order.
        length: The length bucket in tokens.
        tokens: Measured tokens of the prompt; None where the model counts none.
        depth: Where the evidence stands, 0 = start of the context, 1 = end; None if unknown.
        task: What kind of comparison it is; empty if unknown.
        explanation: What the model wrote, if it writes.
        detail: Why there is no answer, in one line.
    """

    id: str
    group: str
    outcome: Outcome
    ranks: tuple[int, ...] | None
    order: tuple[int, ...]
    scores: tuple[float, ...] = ()
    ranking: tuple[int, ...] = ()
    length: int | None = None
    tokens: int | None = None
    depth: float | None = None
    task: str = ""
    explanation: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ExampleRecord:
    """A comparison in full, kept for the report's browser (`examples.jsonl`): a sample of the run."""

    id: str
    prompt: tuple[Message, ...]
    responses: tuple[tuple[Message, ...], ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None
    evidence: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of a training run (`steps.jsonl`).

    Attributes:
        step: Counts from 1.
        loss: The objective's value, mean over the step's comparisons.
        accuracy: Share of gold-ordered response pairs whose scores are in that order.
        grad_norm: Norm of the gradient before clipping.
        learning_rate: As used in this step.
        length: Longest prompt of the step, in tokens.
        tokens: Tokens the model read in this step, each shared prefix counted once.
    """

    step: int
    loss: float
    accuracy: float
    grad_norm: float
    learning_rate: float
    length: int
    tokens: int
    losses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimingRecord:
    """How long one optimizer step took (`timing.jsonl`); apart from `StepRecord`, for clocks never repeat."""

    step: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """Digests of the contexts that one optimizer step read (`contexts.jsonl`)."""

    step: int
    digests: tuple[str, ...]
