"""Judgments that were made earlier, and are only read again: `--recorded PATH`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from longrm.data import read
from longrm.data.files import raw_rows
from longrm.data.readers import SCORES, read_scored, written_columns
from longrm.errors import DataError
from longrm.judging import load_format
from longrm.reading import read_json, reading, short, typed
from longrm.reward_models.protocol import RewardModel
from longrm.runs.judgments import GOLD, JUDGMENTS, text_digest
from longrm.runs.logs import Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Judgment, Outcome, Query, Scale, Trial

RecordedRow = TypeVar("RecordedRow")


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """One recorded trial.

    Attributes:
        order: The presented order: entry k is the index of the response shown at position k.
        judgment: What was judged, in presented order; None where only the text is known.
        text: What the model wrote.
        format: The format of judging that reads the text.
        digest: Of the prompt and the responses that were judged; empty where the record does not tell.
    """

    order: tuple[int, ...]
    judgment: Judgment | None = None
    text: str = ""
    format: str = ""
    digest: str = ""


class RecordedRewardModel(RewardModel):
    """Answers what was asked before from the record, and has an error for everything else.

    Args:
        name: How summaries and reports call it.
        trials: Every comparison's trials, by its id; the `trial` of a query counts them.
        scale: What a difference of two recorded scores means.
    """

    sees_order = True

    def __init__(self, name: str, trials: Mapping[str, Sequence[RecordedTrial]], scale: Scale) -> None:
        self.name = name
        self.scale = scale
        self._trials = trials
        formats = {trial.format for recorded in trials.values() for trial in recorded if trial.format}
        self._formats = {format: load_format(format) for format in formats}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a record; which of these it is, is recognized from the columns.

        - a run folder of ours, or its `judgments.jsonl`;
        - a JudgeBench file with `judgments`: scores of a reward model, or the raw text of a judge;
        - result files of the LongRM release, a folder with one JSONL a task, or one of them: raw text, or the scores
          of a discriminative model. A row belongs to the item on line `index` (from 0) of its task's file; without
          that column, to the item on its own line;
        - what `longrm score` writes: a row's scores, under the name of the model that gave them.

        Raises:
            DataError: There is no record of a known kind.
        """
        files = _files(path)
        first = next(raw_rows(files[:1]), None)
        columns = first.checked().keys() if first else set()
        for recognized, read_record in _READERS:
            if recognized <= columns:
                trials, scale, model = read_record(files)
                return cls(f"recorded:{model or Path(os.path.realpath(path)).name}", trials, scale)
        raise DataError(
            f"{files[0]}: no record of judgments; known are a run folder of longrm, what longrm score writes, "
            "JudgeBench's files with 'judgments', and the LongRM release's results with 'output' and 'shuffled_order'"
        )

    @property
    def ids(self) -> frozenset[str]:
        """The comparisons that the record knows, whether they are asked about or not."""
        return frozenset(self._trials)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Looks every query up by its comparison and its trial."""
        return [self._answer(query) for query in queries]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The recorded orders, one a trial."""
        return tuple(trial.order for trial in self._trials.get(comparison, ()))

    def _answer(self, query: Query) -> Judgment:
        trials = self._trials.get(query.id, ())
        if query.trial >= len(trials):
            which = f"trial {query.trial + 1} of '{query.id}'" if trials else f"'{query.id}'"
            return Judgment(Outcome.ERROR, detail=f"{which} is not in the record")
        trial = trials[query.trial]
        if len(trial.order) != len(query.responses):
            return Judgment(
                Outcome.ERROR,
                detail=f"'{query.id}' was recorded with {len(trial.order)} responses, and has {len(query.responses)}",
            )
        if trial.digest:
            shown = dict(zip(trial.order, query.responses, strict=True))
            if (
                text_digest(query.prompt, [shown[index] for index in range(len(shown))], query.tools)
                != trial.digest
            ):
                detail = f"'{query.id}' was recorded about another text; the benchmark is not the one that was judged"
                return Judgment(Outcome.ERROR, detail=detail)
        if trial.judgment is not None:
            return trial.judgment
        verdict = self._formats[trial.format].parse(trial.text, query)
        if verdict is None:
            return Judgment(
                Outcome.UNPARSED, explanation=trial.text, detail="no verdict in the recorded text"
            )
        return Judgment(
            Outcome.ANSWERED,
            scores=verdict.values,
            ranking=verdict.order,
            explanation=trial.text,
            contradicted=verdict.contradicted,
        )


_Read = tuple[dict[str, tuple[RecordedTrial, ...]], Scale, str]
"""The trials, what their scores mean, and the name of the model where the record tells it."""


def _from_runs(files: Sequence[Path]) -> _Read:
    """Our own log; a comparison that was judged again, after an error, has its last record."""
    file = _only(files)
    records = {}
    for number, record in enumerate(Log(file, JudgmentRecord), start=1):
        for trial in record.trials:
            _check_answered(trial, f"{file}, line {number}")
        records[record.id] = record
    summary = file.with_name("summary.json")
    scale: Scale = "none"
    if summary.exists():
        scale = typed(_SCALE, read_json(summary, DataError), summary, DataError).scale
    digests = {gold.id: gold.digest for gold in Log(file.with_name(GOLD), GoldRecord)}
    trials = {
        name: tuple(
            RecordedTrial(trial.order, _presented(trial, record), digest=digests.get(name, ""))
            for trial in record.trials
        )
        for name, record in records.items()
    }
    return trials, scale, ""


def _check_answered(trial: Trial, place: str) -> None:
    """Refuses a record that says that it holds an answer, and holds none."""
    responses = len(trial.order)
    if trial.outcome is Outcome.ANSWERED and (
        responses < 2 or responses not in (len(trial.scores), len(trial.ranking))
    ):
        raise DataError(
            f"{place}, field 'scores': it is answered without a score, or a place in the ranking, for each response "
            "of its order"
        )


class _Scaled(BaseModel):
    scale: Scale = "none"


_SCALE = TypeAdapter(_Scaled)


def _presented(trial: Trial, record: JudgmentRecord) -> Judgment:
    """The inverse of how a judgment is recorded: back from the comparison's own order to the presented one."""
    return Judgment(
        trial.outcome,
        scores=tuple(trial.scores[index] for index in trial.order) if trial.scores else (),
        ranking=tuple(trial.order.index(index) for index in trial.ranking),
        explanation=trial.explanation,
        detail=trial.detail,
        prompt_tokens=record.prompt_tokens,
        cut=record.cut,
        attempts=trial.attempts,
        contradicted=trial.contradicted,
        criteria=tuple(tuple(row[index] for index in trial.order) for row in trial.criteria),
    )


def _from_judgebench(files: Sequence[Path]) -> _Read:
    trials: dict[str, tuple[RecordedTrial, ...]] = {}
    for place, row in _rows([_only(files)], _JUDGEBENCH):
        entries = zip(((0, 1), (1, 0)), row.judgments, strict=False)
        if row.pair_id in trials:
            raise DataError(f"{place}, field 'pair_id': a second record of {short(row.pair_id)}; remove one")
        trials[row.pair_id] = tuple(_judgebench_trial(*entry, place) for entry in entries)
    return trials, _scale(trials), ""


def _judgebench_trial(order: tuple[int, ...], entry: "_RecordedJudgment | None", place: str) -> RecordedTrial:
    """The second trial presents the responses swapped, and its scores and its text say so."""
    if entry is None:
        return RecordedTrial(order, Judgment(Outcome.UNPARSED, detail="the record holds no judgment"))
    judgment = entry.judgment or _RecordedText()
    if judgment.scores:
        return RecordedTrial(order, _scored(judgment.scores, order, f"{place}, field 'judgments'"))
    text = judgment.response or ""
    if "decision" not in entry.model_fields_set:
        return RecordedTrial(order, text=text, format="pairwise")
    # compute_final_metrics counts the recorded decision, not the text (utils/metrics.py of ScalerLab/JudgeBench at
    # e2c52c2).
    values = _DECISIONS.get(entry.decision or "")
    if values is None:
        return RecordedTrial(
            order,
            Judgment(Outcome.UNPARSED, explanation=text, detail="the record holds no decision"),
            format="pairwise",
        )
    return RecordedTrial(
        order, Judgment(Outcome.ANSWERED, scores=values, explanation=text), format="pairwise"
    )


_DECISIONS = {"A>B": (1.0, 0.0), "B>A": (0.0, 1.0), "A=B": (0.5, 0.5)}
"""Scores in the presented order."""


Score = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class _RecordedText(BaseModel):
    model_config = ConfigDict(strict=True)

    response: str | None = None
    scores: list[Score] | None = None


class _RecordedJudgment(BaseModel):
    judgment: _RecordedText | None = None
    decision: str | None = None


class _JudgebenchRow(BaseModel):
    """A row of JudgeBench's files: the judgments of a pair in one order, or in both."""

    model_config = ConfigDict(strict=True)

    pair_id: Name
    judgments: Annotated[list[_RecordedJudgment | None], Field(min_length=1, max_length=2)]


_JUDGEBENCH = TypeAdapter(_JudgebenchRow)


def _from_release(files: Sequence[Path]) -> _Read:
    trials: dict[str, tuple[RecordedTrial, ...]] = {}
    for file in files:
        for number, (place, row) in enumerate(_rows([file], _RELEASE), start=1):
            task = row.subset or file.name.split(".")[0]
            identity = f"{task}/{number if row.index is None else row.index + 1}"
            if identity in trials:
                raise DataError(
                    f"{place}, field 'index': a second result for the item {short(identity)}; remove one"
                )
            trials[identity] = (_release_trial(row, place),)
    return trials, _scale(trials), ""


class _ReleaseRow(BaseModel):
    """A result of the LongRM release: what the judge wrote, or its scores, in the presented order."""

    model_config = ConfigDict(strict=True)

    output: str | list[Score]
    shuffled_order: Annotated[list[int], Field(min_length=2)]
    subset: str | None = None
    tasktype: str | None = None
    index: Annotated[int, Field(ge=0)] | None = None


_RELEASE = TypeAdapter(_ReleaseRow)


def _release_trial(row: _ReleaseRow, place: str) -> RecordedTrial:
    order = tuple(row.shuffled_order)
    if sorted(order) != list(range(len(order))):
        raise DataError(
            f"{place}, field 'shuffled_order': needs every number from 0 up once, got {short(order)}"
        )
    if isinstance(row.output, list):
        return RecordedTrial(order, _scored(row.output, order, f"{place}, field 'output'"))
    return RecordedTrial(
        order, text=row.output, format="listwise" if row.tasktype == "BestOfN" else "pairwise"
    )


def _from_scored(files: Sequence[Path]) -> _Read:
    """The rows of `longrm score`: one trial each, in the row's own order; nothing tells what their scores mean."""
    trials: dict[str, tuple[RecordedTrial, ...]] = {}
    models = set[str]()
    for row in read_scored(read(_only(files))):
        comparison = row.comparison
        known = row.outcome in tuple(Outcome)
        trials[comparison.id] = (
            RecordedTrial(
                tuple(range(len(comparison.responses))),
                Judgment(
                    Outcome(row.outcome) if known else Outcome.ERROR,
                    scores=row.scores,
                    detail="" if row.scores else f"the recorded row says: {row.outcome}",
                ),
                digest=text_digest(comparison.prompt, comparison.responses, comparison.tools),
            ),
        )
        named = row.columns.get(written_columns(row.column)[2])
        models.add(named if isinstance(named, str) else "")
    return trials, "none", models.pop() if len(models) == 1 else ""


def _scored(scores: Sequence[float], order: tuple[int, ...], place: str) -> Judgment:
    if len(scores) != len(order):
        raise DataError(f"{place}: {len(order)} responses need as many scores, got {len(scores)}")
    return Judgment(Outcome.ANSWERED, scores=tuple(scores))


def _scale(trials: Mapping[str, Sequence[RecordedTrial]]) -> Scale:
    """Others record raw logits, or texts that end in a verdict."""
    texts = any(trial.format for recorded in trials.values() for trial in recorded)
    return "verdict" if texts else "logit"


_READERS: tuple[tuple[set[str], Callable[[Sequence[Path]], _Read]], ...] = (
    ({"id", "group", "outcome"}, _from_runs),
    ({"pair_id", "judgments"}, _from_judgebench),
    ({"output", "shuffled_order"}, _from_release),
    *((set(written_columns(name)[:2]), _from_scored) for name in SCORES),
)
"""The columns that each kind of record has, and what reads it."""


def _files(path: Path) -> list[Path]:
    with reading(path, DataError):
        if (path / JUDGMENTS).exists():
            return [path / JUDGMENTS]
        if path.exists() and not path.is_dir():
            return [path]
        found = sorted(path.glob("*.jsonl"))
    if not found:
        raise DataError(f"{path}: no record of judgments there; it needs a file or a folder of JSONL files")
    return found


def _only(files: Sequence[Path]) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DataError(f"{files[0].parent}: holds several records of judgments ({names}); name one file")
    return files[0]


def _rows(files: Sequence[Path], kind: TypeAdapter[RecordedRow]) -> Iterator[tuple[str, RecordedRow]]:
    """Every row with its place; halves of surrogate pairs, which models do write, become question marks."""
    for raw in raw_rows(files):
        yield raw.place, typed(kind, raw.checked(), raw.place, DataError)
