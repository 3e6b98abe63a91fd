"""Rewards a judge for its verdicts: prompts of `longrm synthesize judge-prompts` and completions in, rewards out."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longrm.benchmarks.answer_metrics import answer_metric
from longrm.errors import ConfigError, DataError, nearest
from longrm.judging import JUDGING_FORMATS, JudgingFormat, ParsedVerdict
from longrm.judging.answers import answer_of
from longrm.judging.judge_prompts import committed_answer, stated_confidence, verdict_text
from longrm.reading import FieldError, is_number, reading, short
from longrm.reward_models.trials import to_scores
from longrm.types import Judgment, Message, Outcome, Query, as_messages, text_of

_COLUMNS = ("gold", "order", "id", "format")


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A completion as the terms see it."""

    format: JudgingFormat
    order: tuple[int, ...]  # entry k is the index in the comparison of the response at position k
    gold: tuple[float, ...]  # one number for each presented response, higher is better
    answers: tuple[str, ...]  # gold answers of the question, for `solved`
    text: str  # the completion without its thoughts
    tokens: int | None  # of the completion; None if unknown
    points: tuple[float, ...]  # the verdict, as `gold`; empty if unparsed
    contradicted: bool = False  # whether the explanation argues for another verdict

    @property
    def winner(self) -> int | None:
        """The index in the comparison of the response judged best; None for ties and without a verdict."""
        pairs = zip(self.order, self.points, strict=False)  # no points if unparsed
        best = [index for index, value in pairs if value == max(self.points)]
        return best[0] if len(best) == 1 else None


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """The reward of one completion."""

    reward: float  # the sum of weight x term over the terms that apply
    terms: dict[str, float]  # the terms that apply by name, without weights
    outcome: Outcome  # `answered` or `unparsed`
    verdict: str  # as the format asks for it; empty if unparsed


# ---- Terms ----

Term = Callable[[JudgedRow, Sequence[JudgedRow], "VerdictReward"], float | None]
"""A term of a completion, given all completions about its comparison in the batch; None if it does not apply."""


def correct(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """The share of pairs of responses that gold orders which the verdict orders alike; pairwise 1 or 0.

    Pairwise and listwise the pairs are those of the prompt. Pointwise a pair is this response with that of another
    completion; without any the term is omitted. A tie is never right, nor is a pair with an unparsed verdict.
    """
    pairs = [(judged.gold, judged.points)]
    if judged.format.pointwise:
        pairs = [
            ((*judged.gold, *other.gold), (*judged.points, *other.points))
            for other in others
            if other.order != judged.order
        ]
    right = [
        len(values) == len(gold) and values[better] > values[worse]  # an unparsed verdict has no values
        for gold, values in pairs
        for better in range(len(gold))
        for worse in range(len(gold))
        if gold[better] > gold[worse]
    ]
    return sum(right) / len(right) if right else None


def form(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """1 if a verdict in double square brackets ends the completion, else 0.

    If the row has the column `answer`, an answer in tags must come before it. 0, too, if the explanation argues for
    another verdict: naming the other response by chance is then no better than not to explain.
    """
    marks = [*judged.format.marker.finditer(judged.text)]
    ends = bool(judged.points and marks) and marks[-1].end() == len(judged.text.rstrip())
    ends = ends and not judged.contradicted
    return float(ends and (not judged.answers or committed_answer(judged.text, judged.format) is not None))


def consistent(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """The share of completions about the same responses in another order that have the same winner; 0 if it is wrong.

    The winner must be right as in J1 (arXiv 2505.10320), or always choosing the longer response would be rewarded. A
    tie has no winner, and neither has an unparsed verdict. Omitted without completions in another order, and pointwise,
    where there is no order.
    """
    best = {
        index for index, value in zip(judged.order, judged.gold, strict=True) if value == max(judged.gold)
    }
    same = [
        judged.winner in best and other.winner == judged.winner
        for other in others
        if other.order != judged.order
        and sorted(other.order) == sorted(judged.order)
        and len(judged.order) > 1
    ]
    return sum(same) / len(same) if same else None


def brief(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

    0 up to `max_tokens - soft_tokens` tokens, then linear down to -1 at `max_tokens`, and -1 beyond.
    """
    if judged.tokens is None:
        raise DataError(
            "the term 'brief' needs the number of tokens of each completion (TRL's column 'completion_ids')"
        )
    over = judged.tokens - (reward.max_tokens - reward.soft_tokens)
    return -min(1.0, over / reward.soft_tokens) if over > 0 else 0.0


def calibrated(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """Minus the Brier score of the stated confidence: -(confidence - correct)^2, from -1 to 0.

    RLCR's reward (arXiv 2507.16806) is this plus `correct`. -1, the worst value, without a confidence or a verdict.
    Omitted where `correct` is.
    """
    confidence = stated_confidence(judged.text)
    if not judged.points or confidence is None:
        return -1.0
    right = correct(judged, others, reward)
    return None if right is None else -((confidence - right) ** 2)


def solved(judged: JudgedRow, others: Sequence[JudgedRow], reward: "VerdictReward") -> float | None:
    """The judge's own answer, between <answer> and </answer> before the verdict, rated by `metric`.

    The best over all gold answers in the column `answer`; 0 without an answer. Omitted if the row has no gold answer.
    It does not depend on the verdict.
    """
    if not judged.answers:
        return None
    answer = committed_answer(judged.text, judged.format)
    return 0.0 if answer is None else max(reward.metric(answer, gold) for gold in judged.answers)


TERMS: dict[str, Term] = {
    "correct": correct,
    "format": form,
    "consistent": consistent,
    "brief": brief,
    "calibrated": calibrated,
    "solved": solved,
}
"""The registry of terms: a new one is a function here and an entry."""

# ---- The reward ----


class VerdictReward:
    """Rewards completions of judging prompts for their verdicts; see `verdict_reward` for the arguments.

    Raises:
        ConfigError: An unknown term or metric, a weight that is not finite, no weight, or a missing option.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        max_tokens: int | None = None,
        soft_tokens: int | None = None,
        metric: str = "exact_match",
    ) -> None:
        for name, weight in weights.items():
            if name not in TERMS:
                raise ConfigError(f"no reward term '{name}'; {nearest(name, TERMS)}")
            if not is_number(weight) or not 0 <= weight < math.inf:
                raise ConfigError(f"the weight of '{name}' must be a number from 0 up, got {short(weight)}")
        self.weights = {name: float(weight) for name, weight in weights.items() if weight}
        if not self.weights:
            raise ConfigError(
                f"no reward term has a weight; give one to any of {', '.join(TERMS)}, as in correct=1.0"
            )
        if "brief" in self.weights and (
            max_tokens is None or soft_tokens is None or not 0 < soft_tokens <= max_tokens
        ):
            raise ConfigError(
                "the term 'brief' requires max_tokens and soft_tokens, 0 < soft_tokens <= max_tokens"
            )
        self.max_tokens, self.soft_tokens, self.metric = (
            max_tokens or 0,
            soft_tokens or 0,
            answer_metric(metric),
        )
        self._formats = {name: make() for name, make in JUDGING_FORMATS.items()}
        self.__name__ = "verdict"  # in TRL's logs

    def __call__(
        self,
        prompts: Sequence[str | Sequence[Message]],
        completions: Sequence[str | Sequence[Message]],
        **columns: Any,
    ) -> list[float | None]:
        """Rewards completions; the signature is that of TRL's `reward_funcs`.

        Args:
            prompts: The prompt of every completion; not read.
            completions: Each text or messages.
            columns: Columns of `longrm synthesize judge-prompts`: `gold`, `order`, `id`, `format` and, for `solved`,
                `answer`; and what TRL passes: `completion_ids`, for `brief`, and `log_metric`, which receives
                `summary` ("verdict/correct").

        Returns:
            One reward per completion; None if no term applies.

        Raises:
            DataError: A column is missing, or has a value that is not a gold verdict.
        """
        ids = columns.get("completion_ids")
        for name in _COLUMNS:
            if name not in columns:
                raise DataError(f"no column '{name}'; make rows by `longrm synthesize judge-prompts`")
        known = {name: columns[name] for name in (*_COLUMNS, "answer") if name in columns}
        rows = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
        texts = [text_of(as_messages(completion, "assistant")) for completion in completions]
        tokens = [None] * len(texts) if ids is None else [len(one) for one in ids]
        scores = self.judge(rows, texts, tokens)
        if (log_metric := columns.get("log_metric")) is not None and scores:
            for name, value in summary(scores, self.weights).items():
                log_metric(f"{self.__name__}/{name}", value)
        return [score.reward if score.terms else None for score in scores]

    def judge(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], tokens: Sequence[int | None]
    ) -> list[VerdictScore]:
        """Rewards completions, thoughts included; terms that need others of the same comparison use these.

        Completions of one prompt repeat the columns of its row.
        """
        judged = [self._read(*one) for one in zip(rows, texts, tokens, strict=True)]
        by_comparison: dict[tuple[str, str], list[JudgedRow]] = defaultdict(list)
        for row, one in zip(rows, judged, strict=True):
            by_comparison[row["id"], row["format"]].append(one)
        scores = []
        for row, one in zip(rows, judged, strict=True):
            others = by_comparison[row["id"], row["format"]]
            found = {name: TERMS[name](one, others, self) for name in self.weights}
            terms = {name: value for name, value in found.items() if value is not None}
            scores.append(
                VerdictScore(
                    sum(self.weights[name] * value for name, value in terms.items()),
                    terms,
                    Outcome.ANSWERED if one.points else Outcome.UNPARSED,
                    verdict_text(one.format, one.points) if one.points else "",
                )
            )
        return scores

    def _read(self, row: Mapping[str, Any], text: str, tokens: int | None) -> JudgedRow:
        """Parses a completion and the gold of its row."""
        if row["format"] not in self._formats:
            raise DataError(f"row '{row['id']}': no judging format {short(row['format'])}")
        format, order = self._formats[row["format"]], tuple(row["order"])
        with reading(f"row '{row['id']}'", DataError):
            gold = _gold(format, row["gold"], len(order))
        # The parser reads nothing of the query but the number of its responses.
        verdict = format.parse(text, Query(row["id"], (), ((),) * len(order)))
        return JudgedRow(
            format,
            order,
            gold,
            () if row.get("answer") is None else tuple(row["answer"]),  # verl passes numpy arrays
            answer_of(text),
            tokens,
            () if verdict is None else _points(verdict),
            bool(verdict and verdict.contradicted),
        )


def _gold(format: JudgingFormat, gold: str, responses: int) -> tuple[float, ...]:
    """The column `gold` as one number per presented response, higher is better."""
    if format.pointwise:
        return (-float(gold),)  # a rank, 1 is the best
    verdict = format.read(gold, "", responses)
    if verdict is None:
        raise FieldError("gold", f"{short(gold)} is no {format.name} verdict on {responses} responses")
    return _points(verdict)


def _points(verdict: ParsedVerdict) -> tuple[float, ...]:
    return to_scores(Judgment(Outcome.ANSWERED, verdict.values, verdict.ranking))


def summary(scores: Sequence[VerdictScore], names: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Means of terms over the completions to which they apply, how many omit each, and the share unparsed."""
    found: dict[str, float] = {}
    for name in names:
        values = [score.terms[name] for score in scores if name in score.terms]
        if values:
            found[name] = sum(values) / len(values)
        found[f"omitted_{name}"] = len(scores) - len(values)
    found["unparsed"] = sum(score.outcome is Outcome.UNPARSED for score in scores) / len(scores)
    return found


def verdict_reward(
    *,
    max_tokens: int | None = None,
    soft_tokens: int | None = None,
    metric: str = "exact_match",
    **weights: float,
) -> VerdictReward:
    """Makes the reward that TRL takes as `reward_funcs`, to train a judge; for other trainers see `examples/trainers/`.

    Prompts are rows of `longrm synthesize judge-prompts`. `longrm.verdict_reward(correct=1.0, format=0.1)` weighs two
    terms; docs/judge_training.md describes all of them.

    Args:
        max_tokens: With the term `brief`: the tokens of a completion from which on it is -1.
        soft_tokens: With the term `brief`: over how many tokens before `max_tokens` it falls from 0.
        metric: With the term `solved`: the answer metric that rates the judge's own answer.
        weights: The weights of the terms correct, format, consistent, brief, calibrated and solved.
    """
    return VerdictReward(weights, max_tokens=max_tokens, soft_tokens=soft_tokens, metric=metric)
