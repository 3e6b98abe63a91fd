"""Rubrics: a judge is asked about one criterion at a time, and what it says is weighed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from longrm.data.criteria import read_rubrics
from longrm.errors import ConfigError, DataError
from longrm.reading import file_digest
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import points, trial_of
from longrm.types import Criterion, Judgment, Outcome, Query

ITEM = "item"
"""Names the rubrics that each row of the data holds."""

_NONE: Mapping[str, str] = MappingProxyType({})


class RubricRewardModel(RewardModel):
    """Asks another judge one question a criterion; the score is the weighted mean of the answers.

    All questions about a query begin alike, up to the criterion, so that a model that keeps prefixes reads the prompt
    and the responses once. The weights are divided by the sum of their sizes. A query has an answer where every
    criterion has one; else its outcome is that of the first without, or an error where any ended in one.

    Args:
        inner: The judge.
        rubrics: "item", or a file of criteria.

    Raises:
        ConfigError: The model cannot be asked about one criterion alone.
        DataError: The file cannot be read.
    """

    def __init__(self, inner: RewardModel, rubrics: str) -> None:
        if not inner.by_criterion:
            raise ConfigError(
                f"judge.rubrics asks about one criterion at a time, and {inner.name} answers no questions; name a "
                "judge: a causal language model, tokens:MODEL, or an endpoint"
            )
        self.name = inner.name
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self._inner = inner
        self._criteria = () if rubrics == ITEM else read_rubrics(Path(rubrics))
        digest = {"rubrics": file_digest(Path(rubrics), DataError)} if self._criteria else _NONE
        self.provenance = {**inner.provenance, **digest}

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Asks about all criteria of all queries at once."""
        rubrics = [self._criteria or query.rubrics for query in queries]
        judged = iter(
            self._inner.judge(
                [
                    replace(query, criterion=criterion.text)
                    for query, criteria in zip(queries, rubrics, strict=True)
                    for criterion in criteria
                ]
            )
        )
        return [_weighed(criteria, [next(judged) for _ in criteria]) for criteria in rubrics]

    def keep_prefixes(self, budget: int) -> None:
        """See `RewardModel`."""
        self._inner.keep_prefixes(budget)


def _weighed(criteria: Sequence[Criterion], judgments: Sequence[Judgment]) -> Judgment:
    if not criteria:
        detail = (
            'the row names no criterion in `rubrics`; add some, or name a file of them in place of "item"'
        )
        return Judgment(Outcome.ERROR, detail=detail)
    tokens = [one.prompt_tokens for one in judgments if one.prompt_tokens is not None]
    whole = Judgment(
        Outcome.ANSWERED,
        explanation=_explanation(criteria, judgments),
        prompt_tokens=max(tokens, default=None),
        cached_tokens=sum(one.cached_tokens for one in judgments),
        cut=max((one.cut for one in judgments if one.cut), key=lambda cut: cut.tokens, default=None),
        attempts=max(one.attempts for one in judgments),
    )
    silent = [at for at, one in enumerate(judgments) if one.outcome is not Outcome.ANSWERED]
    if silent:
        at = next((at for at in silent if judgments[at].outcome is Outcome.ERROR), silent[0])
        detail = f"criterion {at + 1} of {len(criteria)}: {judgments[at].detail}"
        return replace(whole, outcome=judgments[at].outcome, detail=detail)
    total = sum(abs(criterion.weight) for criterion in criteria)
    rows = []
    for criterion, judgment in zip(criteria, judgments, strict=True):
        # A negative weight makes -0.0 of 0.
        rows.append(tuple(criterion.weight / total * value + 0.0 for value in _points(judgment)))
    return replace(whole, scores=tuple(map(sum, zip(*rows, strict=True))), criteria=tuple(rows))


def _explanation(criteria: Sequence[Criterion], judgments: Sequence[Judgment]) -> str:
    """Each criterion with its weight and the scores by it, in presented order, over what the judge said to it."""
    return "\n\n".join(
        f"{criterion.text} (weight {criterion.weight:g}): {_told(judgment)}\n{judgment.explanation}".rstrip()
        for criterion, judgment in zip(criteria, judgments, strict=True)
    )


def _told(judgment: Judgment) -> str:
    if judgment.outcome is not Outcome.ANSWERED:
        return judgment.outcome.value.replace("_", " ")
    return ", ".join(f"{value:.4g}" for value in _points(judgment))


def _points(judgment: Judgment) -> tuple[float, ...]:
    return points(trial_of(judgment, tuple(range(len(judgment.scores or judgment.ranking)))))
