"""Asks a reward model about comparisons: in every order, for every vote, beside baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Literal, assert_never

from pydantic import Field

from longrm.config import OPERATIONAL, Config
from longrm.data.fields import length_and_depth
from longrm.data.spans import disjoint_spans, edit_context
from longrm.errors import ConfigError
from longrm.reward_models import Baseline, RewardModel
from longrm.reward_models.trials import best, latin_square, together, trial_of
from longrm.runs.records import ContextCheck, JudgmentRecord
from longrm.types import (
    Comparison,
    Judgment,
    Outcome,
    Trial,
    message_text,
    presented_order,
    query_of,
    text_of,
)

_REMOVED = "[The context is not shown.]"


class JudgingSettings(Config):
    """How the comparisons are judged and summed up.

    Attributes:
        seed: Draws the presented orders and the bootstrap.
        orders: In how many orders a model that sees the order is asked. "both": pairs in both, N > 2 responses in the
            N rows of a seeded Latin square. "one": in one drawn order. "auto": both for pairs, one for more.
        votes: Trials per order of a model that samples.
        context_check: Ask once more with the context "removed", or "swapped" for that of another group, to
            see whether the verdict stays; "none" saves the trial.
        baselines: Rules without a model that judge the same comparisons beside it. Random and place are chance by
            construction; compress:MODEL is a model of its own.
        release_rule: Also score as the LongRM release does, mistakes included.
        examples: Comparisons judged right that are kept in full for the report, per length; the first of different
            groups. Every one that was not judged right is kept too, so that `examples.jsonl` may grow as large as
            the data; 0 keeps none. A finished run may be given another number: nothing is judged again.
        resamples: Bootstrap resamples of every interval.
        accuracy_threshold: Accuracy that defines the context boundary; by default (1 + chance) / 2.
    """

    seed: int = Field(0, ge=0)
    orders: Literal["auto", "one", "both"] = "auto"
    votes: int = Field(1, ge=1, le=10_000)
    context_check: Literal["none", "removed", "swapped"] = "none"
    baselines: tuple[str, ...] = ("longest", "shortest", "overlap")
    release_rule: bool = False
    examples: Annotated[int, OPERATIONAL] = Field(3, ge=0)
    resamples: int = Field(2000, ge=100, le=100_000)
    accuracy_threshold: float | None = Field(None, gt=0.0, lt=1.0)


class TrialJudge:
    """Asks one model about batches of comparisons, as the settings say.

    Raises:
        ConfigError: Votes of a model that always answers the same, or an unknown baseline.
    """

    def __init__(self, model: RewardModel, judging: JudgingSettings) -> None:
        if judging.votes > 1 and not model.samples:
            raise ConfigError(
                f"judging.votes = {judging.votes} asks {model.name} for the same answer each time; "
                "give a generative judge a judge.temperature above 0"
            )
        self._model = model
        self._judging = judging
        # A baseline that is the model itself has nothing to be compared with.
        beside = {name: Baseline(name) for name in judging.baselines}
        self._baselines = {name: rule for name, rule in beside.items() if rule.name != model.name}
        self._donor: Comparison | None = None

    def records(self, batch: Sequence[Comparison]) -> list[JudgmentRecord]:
        """Judges a batch; gold ranks are not filled in."""
        orders = [self._orders(comparison) for comparison in batch]
        queries = []  # of each comparison: one a trial, and the context check last
        for (comparison, checked), of_one in zip(self._checked(batch), orders, strict=True):
            asked = [query_of(comparison, order, trial) for trial, order in enumerate(of_one)]
            queries.append(asked if checked is None else [*asked, query_of(checked, of_one[0], len(of_one))])
        judged = iter(self._model.judge([query for asked in queries for query in asked]))
        first = [asked[0] for asked in queries]
        beside = {name: baseline.judge(first) for name, baseline in self._baselines.items()}
        unchecked: ContextCheck = "" if self._judging.context_check == "none" else "impossible"
        return [
            _record(
                comparison,
                orders[row],
                list(islice(judged, len(queries[row]))),
                {name: column[row] for name, column in beside.items()},
                unchecked,
            )
            for row, comparison in enumerate(batch)
        ]

    def passes(self, batch: Sequence[Comparison]) -> None:
        """Takes note of a batch that needs no judging: its contexts may be swapped into the next ones."""
        self._checked(batch)

    def _orders(self, comparison: Comparison) -> tuple[tuple[int, ...], ...]:
        required = self._model.orders(comparison.id)
        if required:
            return required
        first = presented_order(comparison, self._judging.seed)
        match self._judging.orders:
            case "both":
                several = True
            case "one":
                several = False
            case "auto":
                several = len(first) == 2
            case unknown:
                assert_never(unknown)
        orders = latin_square(first) if several and self._model.sees_order else (first,)
        return tuple(order for order in orders for _ in range(self._judging.votes))

    def _checked(self, batch: Sequence[Comparison]) -> list[tuple[Comparison, Comparison | None]]:
        """Every comparison with its twin without the context, where that is asked for and can be made."""
        if self._judging.context_check == "none":
            return [(comparison, None) for comparison in batch]
        pairs = []
        for place, comparison in enumerate(batch):
            donor = self._donor
            if donor is None or donor.group == comparison.group:
                donor = next((c for c in batch[place:] if c.group != comparison.group and c.context), None)
            pairs.append((comparison, self._without_context(comparison, donor)))
            following = batch[place + 1] if place + 1 < len(batch) else None
            if comparison.context and (following is None or following.group != comparison.group):
                self._donor = comparison
        return pairs

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
            case "none":
                return None
            case unknown:
                assert_never(unknown)
        spans = disjoint_spans(comparison.context, comparison.question)
        edits = [(span, text if index == 0 else "") for index, span in enumerate(spans)]
        try:
            return replace(edit_context(comparison, edits), evidence=())
        except ValueError:  # a list of content parts, which is kept as it is
            return None


def _record(
    comparison: Comparison,
    orders: Sequence[tuple[int, ...]],
    judgments: Sequence[Judgment],
    beside: Mapping[str, Judgment],
    unchecked: ContextCheck,
) -> JudgmentRecord:
    """Makes a record of a judgment for each order, and perhaps one of the context check behind them."""
    trials = tuple(trial_of(*pair) for pair in zip(judgments, orders, strict=False))
    checked = [trial_of(judgment, orders[0]) for judgment in judgments[len(orders) :]]
    failed = [trial for trial in checked if trial.outcome is Outcome.ERROR]
    whole = together(trials if not failed else (*trials, *failed))
    place = length_and_depth(comparison)
    cuts = [judgment.cut for judgment in judgments[: len(trials)] if judgment.cut is not None]
    return JudgmentRecord.of(
        whole,
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
        context_check=context_check(trials[0], checked[0]) if checked else unchecked,
        baselines={name: trial_of(one, orders[0]).scores for name, one in beside.items()},
    )


def context_check(with_context: Trial, without: Trial) -> ContextCheck:
    """Whether the verdict stayed when the context was taken away."""
    if Outcome.ANSWERED is not with_context.outcome or Outcome.ANSWERED is not without.outcome:
        return "unanswered"
    return "same" if best(with_context) == best(without) else "changed"
