"""A reward model as the function that trainers call: prompts and completions in, one reward per completion out."""

import hashlib
import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from longrm.data.chunking import words_of
from longrm.data.criteria import criteria_of, read_rubrics
from longrm.data.fields import tools_of
from longrm.data.trajectories import split_steps
from longrm.errors import ConfigError, DataError, RunError
from longrm.jsonl import json_text
from longrm.judging.answers import answer_of
from longrm.reading import is_number, is_text, reading, short, short_name
from longrm.reward_models.kinds import load
from longrm.reward_models.protocol import RewardModel, answer_to, messages_of_chat
from longrm.reward_models.trials import as_share, to_scores
from longrm.types import (
    Criterion,
    Message,
    Outcome,
    Query,
    Response,
    Scale,
    Tool,
    Trajectory,
    Trial,
    are_ratings,
    text_of,
)

_logger = logging.getLogger(__name__)


class _Reward(NamedTuple):
    outcome: Outcome
    score: Any  # a number, a list of one for each turn, or None
    detail: str
    judged: bool = True  # false if the completion never reached the model


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    prompt: tuple[Message, ...]
    completion: Response
    tools: tuple[Tool, ...]
    rubrics: tuple[Criterion, ...]
    reward: "Future[_Reward]" = field(default_factory=Future)


class RewardFunction:
    """Scores completions for a trainer; `reward_function` makes one.

    Completions of one prompt are scored as one comparison, wherever they are in the batch, so the prompt is encoded
    once. Several threads may call at once, for trainers that pass one completion per call: completions that arrive
    while the model is busy are scored together when it is free.

    With rubrics, the reward follows ACE-RL (arXiv 2509.04903): the mean of a checklist term and, where a target length
    is known, a length term, both from 0 to 1. That it is the mean is known from a secondary source only.

    Attributes:
        model: The reward model.
        unscored: The number of completions so far by outcome, except "answered".
        __name__: The name in the trainer's logs: by default the model's name without folders and `http://`; `long`
            for a model in `runs/long/model`.
    """

    def __init__(
        self,
        model: RewardModel,
        rubrics: str | None = None,
        length: int | Literal["item"] | None = None,
        *,
        per_step: bool = False,
    ) -> None:
        if per_step and rubrics is not None:
            raise ConfigError("per_step does not support rubrics")
        if rubrics is None and length is not None:
            raise ConfigError(
                "length is only valid with rubrics: other scores have no scale in common with it"
            )
        if length not in (None, "item") and not (isinstance(length, int) and length > 0):
            raise ConfigError(f"length must be 'item' or a number of words above 0, got {length!r}")
        rates = model.by_criterion and not model.sees_order and model.scale in ("points", "logit")
        if rubrics is not None and not rates:
            raise ConfigError(
                "rubrics requires a language model that rates each response on its own (a causal language model, "
                f"tokens:MODEL or openai:URL#NAME, with judge.format = 'pointwise'), which {model.name} is not"
            )
        if rubrics is not None:
            # Here, because it imports bm25s, which nothing else here needs.
            from longrm.reward_models.wrappers import RubricRewardModel

            model = RubricRewardModel(model, "item")
        self.model = model
        self._per_step = per_step
        self._from_rows = rubrics == "item"
        self._rubrics = () if rubrics is None or self._from_rows else read_rubrics(Path(rubrics))
        self._checklist, self._length = rubrics is not None, length
        self.unscored: Counter[str] = Counter()
        # URLs keep host, port and path: two servers must not share a name.
        self.__name__ = re.sub(
            r"https?://([^#+]*)|[^:#+/]*/+(?=[^:#+/])", r"\1", short_name(model.name)
        ).rstrip("/")
        self._waiting: list[_Row] = []
        # The first lock guards the list, the second the model.
        self._arrival, self._turn = threading.Lock(), threading.Lock()

    def __call__(
        self,
        prompts: Sequence[str | Sequence[Message]],
        completions: Sequence[str | Sequence[Message]],
        **columns: Any,
    ) -> list[Any]:
        """Scores completions; the signature is that of TRL's `reward_funcs`.

        Args:
            prompts: The prompt of every completion, each text or messages; completions of one group repeat it.
            completions: Each text or messages.
            columns: Other columns of the trainer. `tools` has the tools of every prompt; `rubrics` and `target_words`
                the criteria and the length, if these are "item"; `log_metric`, if TRL passes it, receives the share of
                completions without a score, and with rubrics the mean of each term. All others are ignored.

        Returns:
            One number per completion, higher is better; with `per_step` a list with one for each turn of the assistant.
            None if there is no score: too long for the model, no verdict,
            a score that is not finite, out of memory, or a lone surrogate in the text. TRL excludes such completions
            from their group.

        Raises:
            DataError: The columns differ in length, are not lists, or contain something other than text or messages.
            RunError: No completion of the call has a score, and some ended in an error, for example because the server
                is gone: training would continue without rewards.
        """
        if isinstance(prompts, str) or isinstance(completions, str):
            raise DataError(
                "prompts and completions must be lists with one text or one list of messages each"
            )
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts for {len(completions)} completions")
        with reading("the column 'tools'", DataError):
            tools = [tools_of(given) for given in _column(columns, "tools", len(prompts))]
        rubrics = [self._rubrics] * len(prompts)
        if self._from_rows:
            if columns.get("rubrics") is None:
                raise DataError("no column 'rubrics'; make rows by `longrm synthesize rubrics`")
            with reading("the column 'rubrics'", DataError):
                given = _column(columns, "rubrics", len(prompts))
                rubrics = [criteria_of([] if one is None else one, "rubrics") for one in given]
        targets: Sequence[float | None] = [None if self._length == "item" else self._length] * len(prompts)
        if self._length == "item":
            targets = _column(columns, "target_words", len(prompts))
            wrong = next(
                (one for one in targets if one is not None and not (is_number(one) and one > 0)), None
            )
            if wrong is not None:
                raise DataError(f"the column 'target_words' must have numbers above 0, got {short(wrong)}")
        rows = [
            _Row(
                asked := messages_of_chat(prompt, "user"),
                answer_to(asked, completion),
                offered,
                criteria,
            )
            for prompt, completion, offered, criteria in zip(
                prompts, completions, tools, rubrics, strict=True
            )
        ]
        with self._arrival:
            self._waiting += rows
        with self._turn:
            # The thread that gets the model scores all rows that wait. Another one may have scored this call's rows.
            with self._arrival:
                batch, self._waiting = self._waiting, []
            self._score(batch)
        rewards = [row.reward.result() for row in rows]
        self._report(rewards, columns.get("log_metric"))
        scores = [reward.score for reward in rewards]
        if not self._checklist:
            return scores
        terms = [
            None if target is None else length_term(len(words_of(answer_of(text_of(row.completion)))), target)
            for row, target in zip(rows, targets, strict=True)
        ]
        if (log_metric := columns.get("log_metric")) is not None:
            for name, values in (("checklist", scores), ("length", terms)):
                known = [value for value in values if value is not None]
                if known:
                    log_metric(f"{self.__name__}/{name}", sum(known) / len(known))
        return [
            score if score is None or term is None else (score + term) / 2
            for score, term in zip(scores, terms, strict=True)
        ]

    def _score(self, rows: Sequence[_Row]) -> None:
        """Sets the reward, or the exception, of every row."""
        try:
            groups: dict[str, list[_Row]] = {}
            for row in rows:
                if not (is_text(text_of(row.prompt)) and is_text(text_of(row.completion))):
                    detail = "a lone surrogate, which no tokenizer can encode"
                    row.reward.set_result(_Reward(Outcome.ERROR, None, detail, judged=False))
                    continue
                # The key is equal for equal prompts with equal tools.
                criteria = [(one.text, one.weight) for one in row.rubrics]
                shared = (row.prompt, row.tools, criteria) if row.tools or criteria else row.prompt
                key = hashlib.sha256(json_text(shared, default=str).encode()).hexdigest()[:16]
                groups.setdefault(key, []).append(row)
            unscored = self._judge([*groups.items()])
            # One completion that is too long, or whose score is not finite, must not affect the others of its group.
            self._judge([(name, [row]) for name, group in unscored for row in group])
        except BaseException as error:
            for row in rows:
                if not row.reward.done():
                    row.reward.set_exception(error)
            raise

    def _judge(self, groups: Sequence[tuple[str, list[_Row]]]) -> list[tuple[str, list[_Row]]]:
        """Judges groups; returns those without scores whose rows can be judged alone."""
        if not groups:
            return []
        if self._per_step:
            self._judge_steps([row for _, group in groups for row in group])
            return []
        queries = [
            Query(
                name,
                group[0].prompt,
                tuple(row.completion for row in group),
                tools=group[0].tools,
                rubrics=group[0].rubrics,
            )
            for name, group in groups
        ]
        alone = []
        for (name, group), trial in zip(groups, self.model.judge_in_all_orders(queries), strict=True):
            scores: Sequence[float | None] = to_scores(trial)
            if scores and self._checklist:
                scores = _checklist_terms(trial, group[0].rubrics, self.model.scale)
            rated = not self.model.sees_order and are_ratings(self.model.scale)
            if not scores and len(group) > 1 and rated:
                alone.append((name, group))
                continue
            for row, score in zip(group, scores or [None] * len(group), strict=True):
                row.reward.set_result(_Reward(trial.outcome, score, trial.detail))
        return alone

    def _judge_steps(self, rows: Sequence[_Row]) -> None:
        """Scores every turn of every completion; equal prompts are neighbors, and share their encoding."""
        queries = []
        for number, row in enumerate(rows):
            with reading(f"completion {number + 1}", DataError):
                prompt, steps, _ = split_steps([*row.prompt, *row.completion], "completions", len(row.prompt))
            queries.append(Trajectory(str(number), "", prompt, steps, tools=row.tools).query())
        for row, judgment in zip(rows, self.model.judge(queries), strict=True):
            answered = bool(judgment.scores) and all(map(math.isfinite, judgment.scores))
            score = list(judgment.scores) if answered else None
            row.reward.set_result(_Reward(judgment.outcome, score, judgment.detail))

    def _report(self, rewards: Sequence[_Reward], log_metric: Any) -> None:
        """Counts and logs completions without a score; raises if a call has no score at all."""
        failed = [reward for reward in rewards if reward.score is None]
        if log_metric is not None and rewards:
            log_metric(f"{self.__name__}/unscored", len(failed) / len(rewards))
        error = next((one for one in failed if one.outcome is Outcome.ERROR and one.judged), None)
        if error is not None and len(failed) == len(rewards):
            raise RunError(f"{self.model.name} scored none of {len(rewards)} completions: {error.detail}")
        with self._arrival:
            new = {reward.outcome: reward for reward in failed if reward.outcome not in self.unscored}
            self.unscored.update(str(reward.outcome) for reward in failed)
        for outcome, first in new.items():
            _logger.warning(
                "%s: no reward for a completion (%s): %s; later ones are counted in `unscored`",
                self.model.name,
                outcome,
                first.detail,
            )


def reward_function(
    model: str | RewardModel,
    *,
    rubrics: str | None = None,
    length: int | Literal["item"] | None = None,
    per_step: bool = False,
) -> RewardFunction:
    """Makes the reward function that TRL takes as `reward_funcs`; for other trainers see `examples/trainers/`.

    Args:
        model: A name as `longrm.load` takes it, with its errors, or a loaded model.
        rubrics: Reward by a checklist: "item" uses the column `rubrics` of each row, or a file has the same criteria
            for all. The model must be a judge; a name is loaded with `judge.format = "pointwise"`.
        length: Also reward the length: "item" uses the column `target_words` of each row, or a number of words.
        per_step: Reward every turn of the assistant in a completion, a list of messages, and not the completion as a
            whole. All turns are scored in one pass; `token_rewards` puts them at tokens.

    Raises:
        ConfigError: `length` without `rubrics`, or a model that cannot judge a response by one criterion on its own.
    """
    if isinstance(model, str):
        form = "pointwise" if rubrics is not None else "steps" if per_step else None
        model = load(model) if form is None else load(model, judge={"format": form})
    return RewardFunction(model, rubrics, length, per_step=per_step)


def token_rewards(rewards: Sequence[float], mask: Sequence[int]) -> list[float]:
    """The rewards of turns at the last token of each, and 0 at all others.

    This is the form of token-level rewards in verl (a row of `token_level_scores`) and SkyRL (`rewards`).

    Args:
        rewards: One number per turn.
        mask: For each token of the response 1 if the policy wrote it, else 0, as for results of tools; verl's
            `response_mask`, SkyRL's `loss_masks`.

    Returns:
        One number per token.

    Raises:
        DataError: The mask has another number of turns than there are rewards.
    """
    ends = [at for at, own in enumerate(mask) if own and not (at + 1 < len(mask) and mask[at + 1])]
    if len(ends) != len(rewards):
        raise DataError(
            f"{len(rewards)} rewards of turns for a mask with {len(ends)} runs of the policy's tokens"
        )
    placed = dict(zip(ends, rewards, strict=True))
    return [float(placed.get(at, 0.0)) for at in range(len(mask))]


def length_term(words: int, target: float) -> float:
    """How close a text is to its target length: 1 at the target, 0 from 4 times and up to a third of it.

    The length score of LongWriter (arXiv 2408.07055), divided by 100.
    """
    if not words:
        return 0.0
    off = (words / target - 1) / 3 if words > target else (target / words - 1) / 2
    return max(0.0, 1.0 - off)


def _checklist_terms(trial: Trial, rubrics: Sequence[Criterion], scale: Scale) -> list[float]:
    """The weighted mean over criteria of how far each response meets them, from 0 to 1 without negative weights."""
    total = sum(abs(criterion.weight) for criterion in rubrics)
    parts = [criterion.weight / total for criterion in rubrics]
    # Each criterion's row has its part in the score, on the judge's scale.
    rows = zip(*trial.criteria, strict=True)
    return [
        sum(part * as_share(value / part, scale) for part, value in zip(parts, row, strict=True))
        for row in rows
    ]


def _column(columns: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    """One value for each prompt; None for each if the column is missing."""
    column = columns.get(name)
    column = [None] * count if column is None else column
    if not isinstance(column, list | tuple) or len(column) != count:
        raise DataError(
            f"the column '{name}' needs one value for each of {count} prompts, got {short(column)}"
        )
    return column
