"""Judgments that were recorded earlier: `--recorded PATH`."""

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
from longrm.reading import read_json, short, typed
from longrm.reward_models.protocol import RewardModel
from longrm.runs.logs import GOLD, JUDGMENTS, Log, text_digest
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Judgment, Outcome, Query, Scale

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """One recorded trial.

    Attributes:
        order: The presented order: entry k is the index of the response shown at position k.
        judgment: The judgment, in presented order; None if only the text is recorded.
        text: The judge's text, which is parsed.
        format: The judging format of the text; empty if the record has scores.
        digest: Of the prompt and the responses that were judged; empty if not recorded.
    """

    order: tuple[int, ...]
    judgment: Judgment | None = None
    text: str = ""
    format: str = ""
    digest: str = ""


class RecordedRewardModel(RewardModel):
    """Answers queries from a record; a query that is not in it is an error.

    Args:
        name: Its name in summaries and reports.
        trials: The trials of every comparison by its id, in the order of `Query.trial`.
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
        """Reads a record, whose kind is recognized from its columns.

        - a run folder of longrm, or its `judgments.jsonl`;
        - a JudgeBench file with `judgments`: the scores of a reward model, or the text of a judge;
        - result files of the LongRM release, one JSONL file a task or a folder of them: texts, or the scores of a
          discriminative model. A row belongs to line `index` (from 0) of its task's file; without that column, to its
          own line;
        - output of `longrm score`.

        Raises:
            DataError: The record is of none of these kinds, or a row is not valid.
        """
        files = _files(path)
        first = next(raw_rows(files[:1]), None)
        columns = first.checked().keys() if first else set()
        for recognized, read_record in _READERS:
            if recognized <= columns:
                trials, scale, model = read_record(files)
                return cls(f"recorded:{model or Path(os.path.realpath(path)).name}", trials, scale)
        raise DataError(
            f"{files[0]}: not a record of judgments; known are run folders of longrm, the output of longrm score, "
            "JudgeBench's files with 'judgments', and the LongRM release's results with 'output' and 'shuffled_order'"
        )

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all recorded comparisons."""
        return frozenset(self._trials)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Looks up every query by its comparison and its trial."""
        return [self._judge(query) for query in queries]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The recorded orders, one a trial."""
        return tuple(trial.order for trial in self._trials.get(comparison, ()))

    def _judge(self, query: Query) -> Judgment:
        trials = self._trials.get(query.id, ())
        if query.trial >= len(trials):
            which = f"trial {query.trial + 1} of '{query.id}'" if trials else f"'{query.id}'"
            return Judgment(Outcome.ERROR, detail=f"{which} is not in the record")
        trial, count = trials[query.trial], len(query.responses)
        if len(trial.order) != count:
            detail = f"'{query.id}' has {count} responses, and {len(trial.order)} in the record"
            return Judgment(Outcome.ERROR, detail=detail)
        if trial.digest:
            own_order = [response for _, response in sorted(zip(trial.order, query.responses, strict=True))]
            if text_digest(query.prompt, own_order, query.tools) != trial.digest:
                detail = f"'{query.id}' was recorded with another text; use the benchmark that was judged"
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
            ranking=verdict.ranking,
            explanation=trial.text,
            contradicted=verdict.contradicted,
        )


_Trials = dict[str, tuple[RecordedTrial, ...]]
_Record = tuple[_Trials, Scale, str]
"""The trials, the meaning of their scores, and the name of the model if it is recorded."""


# ---- Run folders ----


class _Summary(BaseModel):
    scale: Scale = "none"


def _from_run(files: Sequence[Path]) -> _Record:
    file = _only(files)
    # A comparison that was repeated after an error has several records; the last one counts.
    records = {}
    for number, record in enumerate(Log(file, JudgmentRecord), start=1):
        for trial in record.trials:
            responses = len(trial.order)
            complete = responses >= 2 and responses in (len(trial.scores), len(trial.ranking))
            if trial.outcome is Outcome.ANSWERED and not complete:
                raise DataError(
                    f"{file}, line {number}, field 'scores': needs one score or rank for each response"
                )
        records[record.id] = record
    summary = file.with_name("summary.json")
    scale: Scale = "none"
    if summary.exists():
        scale = typed(TypeAdapter(_Summary), read_json(summary, DataError), summary, DataError).scale
    digests = {gold.id: gold.digest for gold in Log(file.with_name(GOLD), GoldRecord)}
    trials: _Trials = {}
    for name, record in records.items():
        recorded = []
        for trial in record.trials:
            # Trials are logged in the comparison's own order, and judgments are in the presented one.
            judgment = Judgment(
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
            recorded.append(RecordedTrial(trial.order, judgment, digest=digests.get(name, "")))
        trials[name] = tuple(recorded)
    return trials, scale, ""


# ---- JudgeBench ----

_Score = Annotated[float, Field(allow_inf_nan=False)]
_DECISIONS = {"A>B": (1.0, 0.0), "B>A": (0.0, 1.0), "A=B": (0.5, 0.5)}  # scores in the presented order


class _RecordedText(BaseModel):
    model_config = ConfigDict(strict=True)

    response: str | None = None
    scores: list[_Score] | None = None


class _RecordedJudgment(BaseModel):
    judgment: _RecordedText | None = None
    decision: str | None = None


class _JudgebenchRow(BaseModel):
    """The judgments of a pair in one order, or in both; the second presents the responses swapped."""

    model_config = ConfigDict(strict=True)

    pair_id: Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
    judgments: Annotated[list[_RecordedJudgment | None], Field(min_length=1, max_length=2)]


def _from_judgebench(files: Sequence[Path]) -> _Record:
    trials: _Trials = {}
    for place, row in _rows(_only(files), _JudgebenchRow):
        if row.pair_id in trials:
            raise DataError(f"{place}, field 'pair_id': duplicate {short(row.pair_id)}")
        recorded = []
        for order, entry in zip(((0, 1), (1, 0)), row.judgments, strict=False):
            text = (entry.judgment and entry.judgment.response) or "" if entry else ""
            if entry is None:
                trial = RecordedTrial(order, Judgment(Outcome.UNPARSED, detail="the record has no judgment"))
            elif entry.judgment is not None and entry.judgment.scores:
                trial = RecordedTrial(
                    order, _scored(entry.judgment.scores, order, f"{place}, field 'judgments'")
                )
            elif "decision" not in entry.model_fields_set:
                trial = RecordedTrial(order, text=text, format="pairwise")
            else:
                # JudgeBench's compute_final_metrics counts the decision and not the text (utils/metrics.py of
                # ScalerLab/JudgeBench at e2c52c2).
                scores = _DECISIONS.get(entry.decision or "")
                judgment = Judgment(Outcome.UNPARSED, explanation=text, detail="the record has no decision")
                if scores is not None:
                    judgment = Judgment(Outcome.ANSWERED, scores=scores, explanation=text)
                trial = RecordedTrial(order, judgment, format="pairwise")
            recorded.append(trial)
        trials[row.pair_id] = tuple(recorded)
    return trials, _scale(trials), ""


# ---- Results of the LongRM release ----


class _ReleaseRow(BaseModel):
    """The text of a judge, or its scores, in the presented order."""

    model_config = ConfigDict(strict=True)

    output: str | list[_Score]
    shuffled_order: Annotated[list[int], Field(min_length=2)]
    subset: str | None = None
    tasktype: str | None = None
    index: Annotated[int, Field(ge=0)] | None = None


def _from_release(files: Sequence[Path]) -> _Record:
    trials: _Trials = {}
    for file in files:
        for number, (place, row) in enumerate(_rows(file, _ReleaseRow), start=1):
            task = row.subset or file.name.split(".")[0]
            identity = f"{task}/{number if row.index is None else row.index + 1}"
            if identity in trials:
                raise DataError(f"{place}, field 'index': duplicate result for item {short(identity)}")
            order = tuple(row.shuffled_order)
            if sorted(order) != list(range(len(order))):
                raise DataError(
                    f"{place}, field 'shuffled_order': not a permutation of 0, 1, ...: {short(order)}"
                )
            if isinstance(row.output, list):
                trial = RecordedTrial(order, _scored(row.output, order, f"{place}, field 'output'"))
            else:
                format = "listwise" if row.tasktype == "BestOfN" else "pairwise"
                trial = RecordedTrial(order, text=row.output, format=format)
            trials[identity] = (trial,)
    return trials, _scale(trials), ""


def _scored(scores: Sequence[float], order: tuple[int, ...], place: str) -> Judgment:
    if len(scores) != len(order):
        raise DataError(f"{place}: {len(scores)} scores for {len(order)} responses")
    return Judgment(Outcome.ANSWERED, scores=tuple(scores))


def _scale(trials: _Trials) -> Scale:
    """Records of other projects have raw logits, or texts with a verdict."""
    texts = any(trial.format for recorded in trials.values() for trial in recorded)
    return "verdict" if texts else "logit"


# ---- Output of `longrm score` ----


def _from_scored(files: Sequence[Path]) -> _Record:
    """One trial a row, in the row's own order; the meaning of the scores is not recorded."""
    trials: _Trials = {}
    models = set[str]()
    for row in read_scored(read(_only(files))):
        comparison = row.comparison
        known = row.outcome in tuple(Outcome)
        judgment = Judgment(
            Outcome(row.outcome) if known else Outcome.ERROR,
            scores=row.scores,
            detail="" if row.scores else f"recorded outcome: {row.outcome}",
        )
        digest = text_digest(comparison.prompt, comparison.responses, comparison.tools)
        order = tuple(range(len(comparison.responses)))
        trials[comparison.id] = (RecordedTrial(order, judgment, digest=digest),)
        model = row.columns.get(written_columns(row.column)[2])
        models.add(model if isinstance(model, str) else "")
    return trials, "none", models.pop() if len(models) == 1 else ""


_READERS: tuple[tuple[set[str], Callable[[Sequence[Path]], _Record]], ...] = (
    ({"id", "group", "outcome"}, _from_run),
    ({"pair_id", "judgments"}, _from_judgebench),
    ({"output", "shuffled_order"}, _from_release),
    *((set(written_columns(name)[:2]), _from_scored) for name in SCORES),
)
"""The columns by which each kind of record is recognized, and its reader."""


def _files(path: Path) -> list[Path]:
    if (path / JUDGMENTS).exists():
        return [path / JUDGMENTS]
    if path.is_file():
        return [path]
    if found := sorted(path.glob("*.jsonl")):
        return found
    raise DataError(f"{path}: no file, and no folder with JSONL files")


def _only(files: Sequence[Path]) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DataError(f"{files[0].parent}: several records of judgments ({names}); choose one file")
    return files[0]


def _rows(file: Path, kind: type[_Row]) -> Iterator[tuple[str, _Row]]:
    """Every row with its place."""
    adapter = TypeAdapter(kind)
    for raw in raw_rows([file]):
        yield raw.place, typed(adapter, raw.checked(), raw.place, DataError)
