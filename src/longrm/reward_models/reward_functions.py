"""A reward model as the function that trainers call: prompts and completions in, one number a completion out."""

import hashlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from longrm.data.fields import tools_of
from longrm.errors import DataError, RunError
from longrm.jsonl import json_text
from longrm.reading import FieldError, is_text, short
from longrm.reward_models.kinds import load
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import points
from longrm.types import Message, Outcome, Query, Response, Tool, as_messages, text_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reward:
    """What became of one completion; no score unless answered, and the model not at fault unless it was asked."""

    outcome: Outcome
    score: float | None = None
    detail: str = ""
    asked: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    prompt: tuple[Message, ...]
    completion: Response
    tools: tuple[Tool, ...] = ()
    reward: "Future[_Reward]" = field(default_factory=Future)


_UNREADABLE = _Reward(Outcome.ERROR, detail="half of a surrogate pair, which is no text", asked=False)


class RewardFunction:
    """Scores completions for a trainer; `reward_function` makes one.

    Completions of one prompt are scored as one comparison, wherever they stand among the rows: the prompt is read once
    for all of them. Several threads may call at once, as trainers do that hand over one completion a call: what
    arrives while the model works is scored together as soon as it is free.

    Attributes:
        model: The reward model.
        unscored: How many completions had each outcome but "answered", so far.
        __name__: What trainers call the rewards in their logs: the model's name without folders, unless you set
            another.
    """

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self.unscored: Counter[str] = Counter()
        self.__name__ = re.sub(r"[^:#,/]*/+(?=[^:#,/])", "", model.name).rstrip("/")
        self._waiting: list[_Row] = []
        self._arrival, self._turn = threading.Lock(), threading.Lock()

    def __call__(
        self,
        prompts: Sequence[str | Sequence[Message]],
        completions: Sequence[str | Sequence[Message]],
        **columns: Any,
    ) -> list[float | None]:
        """Scores completions; the signature is that of TRL's `reward_funcs`.

        Args:
            prompts: The prompt of every completion, each the user's text or messages. Completions of one group repeat
                theirs.
            completions: Each text or messages.
            columns: What else a trainer hands over. A column `tools` holds what the prompt of every completion offers,
                as data has it; `log_metric`, where TRL gives it, is told the share of completions without a score.
                Nothing else is read.

        Returns:
            One number a completion, higher is better; None where there is no score: too long for the model, no
            verdict, a score that is not finite, no memory, half of a surrogate pair, which no tokenizer reads. TRL
            leaves such a completion out of its group.

        Raises:
            DataError: There are not as many prompts, or tools, as completions, they are no lists, or one of them is
                neither text nor messages, or holds something else than text.
            RunError: No completion of the call has a score and some ended in an error, as when a server is gone:
                training on would learn nothing.
        """
        if isinstance(prompts, str) or isinstance(completions, str):
            raise DataError("prompts and completions are lists, of one text or one list of messages each")
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts for {len(completions)} completions; give one for each")
        offered = _tools(columns.get("tools"), len(prompts))
        rows = [
            _Row(_texts(prompt, "user"), _texts(completion, "assistant"), tools)
            for prompt, completion, tools in zip(prompts, completions, offered, strict=True)
        ]
        with self._arrival:
            self._waiting += rows
        with self._turn:
            with self._arrival:
                batch, self._waiting = self._waiting, []
            self._score(batch)
        rewards = [row.reward.result() for row in rows]
        self._report(rewards, columns.get("log_metric"))
        return [reward.score for reward in rewards]

    def _score(self, rows: Sequence[_Row]) -> None:
        """Scores all rows that wait; whoever handed over a row gets what was raised, too."""
        try:
            groups: dict[str, list[_Row]] = {}
            for row in rows:
                if not _is_readable(row):
                    row.reward.set_result(_UNREADABLE)
                    continue
                groups.setdefault(_key(row), []).append(row)
            failed = self._judge([*groups.items()])
            # One completion that is too long, or whose score is not finite, takes none of the others with it.
            self._judge([(name, [row]) for name, group in failed for row in group])
        except BaseException as error:
            for row in rows:
                if not row.reward.done():
                    row.reward.set_exception(error)
            raise

    def _judge(self, groups: Sequence[tuple[str, list[_Row]]]) -> list[tuple[str, list[_Row]]]:
        """Judges groups; returns those without scores of which each row may still have one alone."""
        if not groups:
            return []
        queries = [
            Query(name, group[0].prompt, tuple(row.completion for row in group), tools=group[0].tools)
            for name, group in groups
        ]
        again = []
        for (name, group), trial in zip(groups, self.model.judge_in_all_orders(queries), strict=True):
            scores = points(trial)
            if not scores and len(group) > 1 and not self.model.sees_order:
                again.append((name, group))
                continue
            for place, row in enumerate(group):
                score = scores[place] if scores else None
                row.reward.set_result(_Reward(trial.outcome, score, trial.detail))
        return again

    def _report(self, rewards: Sequence[_Reward], log_metric: Any) -> None:
        """Counts what has no score, and says so; refuses a call in which nothing has one."""
        failed = [reward for reward in rewards if reward.score is None]
        if log_metric is not None and rewards:
            log_metric(f"{self.__name__}/unscored", len(failed) / len(rewards))
        error = next((one for one in failed if one.outcome is Outcome.ERROR and one.asked), None)
        if error is not None and len(failed) == len(rewards):
            raise RunError(
                f"{self.model.name} could score none of {len(rewards)} completions: {error.detail}"
            )
        with self._arrival:
            new = {reward.outcome: reward for reward in failed if str(reward.outcome) not in self.unscored}
            self.unscored.update(str(reward.outcome) for reward in failed)
        for outcome, first in new.items():
            _logger.warning(
                "%s has no reward for a completion (%s): %s; further ones are counted in `unscored`",
                self.model.name,
                outcome,
                first.detail,
            )


def reward_function(model: str | RewardModel) -> RewardFunction:
    """Makes a reward model the function that TRL takes as `reward_funcs`; others are made from it in a few lines.

    Args:
        model: A name as `longrm.load` takes it, or a model that it has loaded, with settings of your own.

    Raises:
        ConfigError: As `longrm.load`.
        ModelError: As `longrm.load`.
    """
    return RewardFunction(load(model) if isinstance(model, str) else model)


def _texts(value: str | Sequence[Message], role: str) -> tuple[Message, ...]:
    """A text or messages as messages; what is no text would be judged unseen."""
    if not isinstance(value, str) and not _are_messages(value):
        raise DataError(f"each prompt and completion is a text or a list of messages; got {short(value)}")
    messages = as_messages(value, role)
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else ()
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
            raise DataError(
                f"a message holds something else than text, {short(content)}; only texts are read"
            )
    return messages


def _are_messages(value: Any) -> bool:
    several = isinstance(value, Collection) and not isinstance(value, Mapping)
    return several and all(isinstance(message, Mapping) for message in value)


def _is_readable(row: _Row) -> bool:
    return is_text(text_of(row.prompt)) and is_text(text_of(row.completion))


def _tools(column: Any, count: int) -> list[tuple[Tool, ...]]:
    """The tools of every prompt; a trainer that has no such column hands over none."""
    if column is None:
        return [()] * count
    if not isinstance(column, list | tuple) or len(column) != count:
        raise DataError(f"the column 'tools' needs a list for each of {count} prompts; got {short(column)}")
    try:
        return [tools_of(given) for given in column]
    except FieldError as fault:
        raise DataError(str(fault)) from None


def _key(row: _Row) -> str:
    """Equal for equal prompts with equal tools."""
    shared = (row.prompt, row.tools) if row.tools else row.prompt
    return hashlib.sha256(json_text(shared, default=str).encode()).hexdigest()[:16]
