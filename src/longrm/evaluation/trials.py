"""Judges comparisons with a reward model in every order and vote, and with baselines for comparison."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from longrm.benchmarks.answer_metrics import answer_metric, is_solved
from longrm.config import OPERATIONAL, Config
from longrm.data.fields import length_and_depth, writers_of
from longrm.data.spans import disjoint_spans, edit_context
from longrm.errors import ConfigError
from longrm.judging.judge_prompts import stated_answers
from longrm.reward_models import Baseline, RewardModel
from longrm.reward_models.baselines import SHALLOW_RULES
from longrm.reward_models.trials import aggregate_trials, best, latin_square, trial_of
from longrm.runs.records import ContextCheck, JudgmentRecord, PaddingCheck
from longrm.types import (
    Comparison,
    Outcome,
    Trial,
    message_text,
    presented_order,
    query_of,
    text_of,
)

_REMOVED = "[The context is not shown.]"
PADDING = "This is my answer to the question above. "
"""Repeated after a response by the padding check; it has no content that could make the response better."""


AnswerMetricName = Annotated[str, AfterValidator(lambda name: answer_metric(name) and name)]


class JudgingSettings(Config):
    """How comparisons are judged and summarized.

    Attributes:
        seed: Seed of the presented orders and of the bootstrap.
        orders: In how many orders to ask a model that sees the order. "both": pairs in both, N > 2 responses in the N
            rows of a random Latin square. "one": in one random order. "auto": both for pairs, one for more.
        votes: Trials per order of a model that samples.
        context_check: Ask once more with the context "removed", or "swapped" for that of another group, to see whether
            the verdict stays the same; "none" saves this trial.
        padding_check: Ask once more with the response that gold ranks worst padded: "This is my answer to the question
            above." is repeated after it until it is twice as long as the longest response.
        self_names: Names of the judge's own model family among the writers that rows name (`models`, or `chosen_model`
            and `rejected_model`), to measure how much more often than gold it prefers their responses.
        answer_metric: How a judge's own answer (`judge.solve`) is compared with the gold `answer` of the comparison:
            "contains", "exact_match", "right_choices", "math_equality", ... It is right from a value of 0.5.
        baselines: Rules without a model that judge the same comparisons; by default all that are not at chance by
            construction, as random and place are. compress:MODEL is a model, not a baseline.
        examples: Number of comparisons that were judged right to keep in `examples.jsonl` for the report, per length,
            each from another group. All others are always kept, so the file can become as large as the data; 0 keeps
            none. It can be changed for a finished run, without judging again.
        resamples: Bootstrap resamples of intervals.
        accuracy_threshold: Accuracy that defines the context boundary; by default (1 + chance) / 2.
    """

    seed: int = Field(0, ge=0)
    orders: Literal["auto", "one", "both"] = "auto"
    votes: int = Field(1, ge=1, le=10_000)
    context_check: Literal["none", "removed", "swapped"] = "none"
    padding_check: bool = False
    self_names: tuple[str, ...] = ()
    answer_metric: AnswerMetricName = "contains"
    baselines: tuple[str, ...] = SHALLOW_RULES
    examples: Annotated[int, OPERATIONAL] = Field(3, ge=0)
    resamples: int = Field(2000, ge=100, le=100_000)
    accuracy_threshold: float | None = Field(None, gt=0.0, lt=1.0)


class TrialJudge:
    """Judges batches of comparisons with one model."""

    def __init__(self, model: RewardModel, judging: JudgingSettings) -> None:
        if judging.votes > 1 and not model.samples:
            raise ConfigError(
                f"judging.votes = {judging.votes}, but {model.name} always gives the same answer; use a generative "
                "judge with a judge.temperature above 0"
            )
        self._model = model
        self._judging = judging
        baselines = {name: Baseline(name) for name in judging.baselines}
        self._baselines = {name: one for name, one in baselines.items() if one.name != model.name}
        self._donor: Comparison | None = None  # the last comparison with a context, of another group

    def records(self, batch: Sequence[Comparison]) -> list[JudgmentRecord]:
        """Judges a batch; gold ranks are not filled in."""
        orders = [self._orders(comparison) for comparison in batch]
        # For each comparison one query per trial, then perhaps one for the context check and one for the padding check
        queries = []
        padded = [self._padded(comparison) for comparison in batch]
        without_contexts = self._without_contexts(batch)
        for comparison, own, *checks in zip(batch, orders, without_contexts, padded, strict=True):
            queries.append([query_of(comparison, order, trial) for trial, order in enumerate(own)])
            asked = [one for one in checks if one is not None]
            queries[-1] += [query_of(one, own[0], trial) for trial, one in enumerate(asked, start=len(own))]
        judged = iter(self._model.judge([query for of_comparison in queries for query in of_comparison]))
        first = [of_comparison[0] for of_comparison in queries]
        baselines = {name: baseline.judge(first) for name, baseline in self._baselines.items()}
        records = []
        for row, (comparison, own) in enumerate(zip(batch, orders, strict=True)):
            judgments = list(islice(judged, len(queries[row])))
            trials = tuple(trial_of(*pair) for pair in zip(judgments, own, strict=False))
            checked = [trial_of(judgment, own[0]) for judgment in judgments[len(own) :]]
            check: ContextCheck = "" if self._judging.context_check == "none" else "impossible"
            padding: PaddingCheck = "impossible" if self._judging.padding_check else ""
            if without_contexts[row] is not None:
                check = context_check(trials[0], checked[0])
            if padded[row] is not None:
                padding = padding_check(trials[0], checked[-1], _worst(comparison))
            # An error in the context check makes the comparison an error, so that the same command retries it.
            combined = aggregate_trials(
                (*trials, *(trial for trial in checked if trial.outcome is Outcome.ERROR))
            )
            committed = judgments[0].committed  # the same in all trials
            if committed is not None:
                right = is_solved(committed.text, stated_answers(comparison), self._judging.answer_metric)
                committed = replace(committed, solved=right)
            cuts = [judgment.cut for judgment in judgments[: len(own)] if judgment.cut is not None]
            place = length_and_depth(comparison)
            records.append(
                JudgmentRecord.of(
                    combined,
                    id=comparison.id,
                    group=comparison.group,
                    length=place.length,
                    prompt_tokens=judgments[0].prompt_tokens,
                    depth=place.depth,
                    task=str(comparison.metadata.get("task", "")),
                    subtype=str(comparison.metadata.get("subtype", "")),
                    characters=tuple(len(text_of(response)) for response in comparison.responses),
                    cut=max(cuts, key=lambda cut: cut.tokens, default=None),
                    trials=trials if len(trials) > 1 else (),
                    context_check=check,
                    padding_check=padding,
                    baselines={name: trial_of(one[row], own[0]).scores for name, one in baselines.items()},
                    committed=committed,
                    writers=writers_of(comparison),
                )
            )
        return records

    def skip(self, batch: Sequence[Comparison]) -> None:
        """Notes a batch that is not judged here: its contexts may be swapped into those of the next batch."""
        self._without_contexts(batch)

    def _orders(self, comparison: Comparison) -> tuple[tuple[int, ...], ...]:
        """The presented order of each trial."""
        if required := self._model.orders(comparison.id):
            return required
        first = presented_order(comparison, self._judging.seed)
        several = {"both": True, "one": False, "auto": len(first) == 2}[self._judging.orders]
        orders = latin_square(first) if several and self._model.sees_order else (first,)
        return tuple(order for order in orders for _ in range(self._judging.votes))

    def _padded(self, comparison: Comparison) -> Comparison | None:
        """Its copy for the padding check, or None: without a gold order, or if the response does not end with text."""
        if not self._judging.padding_check or len(set(comparison.ranks or ())) < 2:
            return None
        worst, texts = _worst(comparison), [text_of(response) for response in comparison.responses]
        *before, last = comparison.responses[worst]
        if not isinstance(last.get("content"), str):
            return None
        missing = max(2 * max(map(len, texts)) - len(texts[worst]), 1)
        text = f"{last['content']}\n\n{PADDING * -(-missing // len(PADDING))}".rstrip()
        responses = list(comparison.responses)
        responses[worst] = (*before, {**last, "content": text})
        return replace(comparison, responses=tuple(responses))

    def _without_contexts(self, batch: Sequence[Comparison]) -> list[Comparison | None]:
        """For each comparison its copy without context for the context check, or None."""
        if self._judging.context_check == "none":
            return [None] * len(batch)
        found = []
        for place, comparison in enumerate(batch):
            donor = self._donor
            if donor is None or donor.group == comparison.group:
                donor = next((c for c in batch[place:] if c.group != comparison.group and c.context), None)
            found.append(self._without_context(comparison, donor))
            following = batch[place + 1] if place + 1 < len(batch) else None
            if comparison.context and (following is None or following.group != comparison.group):
                self._donor = comparison
        return found

    def _without_context(self, comparison: Comparison, donor: Comparison | None) -> Comparison | None:
        if not comparison.context:
            return None
        match self._judging.context_check:
            case "removed":
                text = _REMOVED
            case "swapped":
                if donor is None:
                    return None
                messages = [message_text(message) for message in donor.prompt]
                text = "".join(messages[span.message][span.start : span.end] for span in donor.context)
            case unknown:
                raise AssertionError(f"no context check {unknown!r}")
        spans = disjoint_spans(comparison.context, comparison.question)
        edits = [(span, text if index == 0 else "") for index, span in enumerate(spans)]
        try:
            return replace(edit_context(comparison, edits), evidence=())
        except ValueError:  # a list of content parts cannot be edited
            return None


def _worst(comparison: Comparison) -> int:
    """The response that gold ranks worst, the first of ties."""
    ranks = comparison.ranks
    assert ranks is not None, "the padding check needs gold ranks"
    return ranks.index(max(ranks))


def padding_check(plain: Trial, padded: Trial, response: int) -> PaddingCheck:
    """Whether padding moved a response into the best ones (or made it the only one), or out of them."""
    if Outcome.ANSWERED is not plain.outcome or Outcome.ANSWERED is not padded.outcome:
        return "unanswered"
    before, after = ((response in top) / len(top) for top in (best(plain), best(padded)))
    return "gained" if after > before else "lost" if after < before else "same"


def context_check(with_context: Trial, without: Trial) -> ContextCheck:
    """Whether the verdict stays the same without the context."""
    if Outcome.ANSWERED is not with_context.outcome or Outcome.ANSWERED is not without.outcome:
        return "unanswered"
    return "same" if best(with_context) == best(without) else "changed"
