"""Judgments that were recorded earlier: `--recorded PATH`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm.data import read
from longrm.data.files import raw_rows
from longrm.data.readers import SCORES, read_scored, written_columns
from longrm.errors import DataError
from longrm.judging import load_format
from longrm.judging.judges.judgelrm import two_scores
from longrm.reading import read_json, short, typed
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import presented, trial_of
from longrm.runs.logs import GOLD, JUDGMENTS, Log, text_digest
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Judgment, Outcome, Query, Scale, Trial

_Row = TypeVar("_Row")
_Trials = Mapping[str, tuple[Trial, ...]]


class RecordedRewardModel(RewardModel):
    """Answers queries from a record, which is recognized by its columns; a query that is not in it is an error.

    - a run folder of longrm, or its `judgments.jsonl`;
    - a JudgeBench file with `judgments`: the scores of a reward model, or the text of a judge;
    - a file of JudgeLRM's results: two scores in `output`, or `result`;
    - result files of the LongRM release, one JSONL file per task or a folder of them: texts, or the scores of a
      discriminative model. A row belongs to line `index` (from 0) of its task's file; without that column, to its own
      line;
    - output of `longrm score`, or rows with `scores` that people gave.
    """

    sees_order = True

    def __init__(self, path: Path) -> None:
        files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
        if (path / JUDGMENTS).exists():
            files = [path / JUDGMENTS]
        if not files:
            raise DataError(f"{path}: no file, and no folder with JSONL files")
        first = next(raw_rows(files[:1]), None)
        columns = first.checked().keys() if first else set()
        for recognized, read_record in _READERS:
            if recognized <= columns:
                if len(files) > 1 and read_record is not _from_release:
                    names = ", ".join(file.name for file in files)
                    raise DataError(f"{path}: several records of judgments ({names}); choose one file")
                record = read_record(files)
                self.name = f"recorded:{record.model or Path(os.path.realpath(path)).name}"
                self.scale = record.scale
                self._trials, self._digests = record.trials, record.digests
                return
        raise DataError(
            f"{files[0]}: not a record of judgments; known are run folders of longrm, rows with 'scores', "
            "JudgeBench's files with 'judgments', JudgeLRM's with 'result', and the LongRM release's results with "
            "'output' and 'shuffled_order'"
        )

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Looks up every query by its comparison and its trial."""
        return [self._judge(query) for query in queries]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The recorded orders, one per trial."""
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
        if digest := self._digests.get(query.id):
            own_order = [response for _, response in sorted(zip(trial.order, query.responses, strict=True))]
            if text_digest(query.prompt, own_order, query.tools) != digest:
                detail = f"'{query.id}' was recorded with another text; use the benchmark that was judged"
                return Judgment(Outcome.ERROR, detail=detail)
        return presented(trial)


class _Record(NamedTuple):
    trials: _Trials  # by the id of the comparison, in the order of `Query.trial`
    scale: Scale
    digests: Mapping[str, str] = {}  # by id, of the prompt and the responses that were judged, if recorded
    model: str = ""  # empty if not recorded


# ---- Run folders ----


class _LoggedTrials(Mapping[str, tuple[Trial, ...]]):
    """The trials of a run, read from its log when they are asked for: a million would take 2 GB."""

    def __init__(self, file: Path) -> None:
        self._log = Log(file, JudgmentRecord)
        # A comparison that was repeated after an error has several records; the last one counts.
        self._offsets: dict[str, int] = {}
        for number, (offset, record) in enumerate(self._log.with_offsets(), start=1):
            for trial in record.trials:
                if trial.outcome is Outcome.ANSWERED and not (trial.scores or trial.ranking):
                    raise DataError(
                        f"{file}, line {number}, field 'scores': needs one score or rank for each response"
                    )
            self._offsets[record.id] = offset
        self._cached = lru_cache(1024)(self._read)  # a comparison is asked for its orders, and for each trial

    def __getitem__(self, name: str) -> tuple[Trial, ...]:
        return self._cached(self._offsets[name])

    def _read(self, offset: int) -> tuple[Trial, ...]:
        (record,) = self._log.at([offset])
        return tuple(
            replace(trial, prompt_tokens=record.prompt_tokens, cut=record.cut) for trial in record.trials
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def _from_run(files: Sequence[Path]) -> _Record:
    (file,) = files
    summary = file.with_name("summary.json")
    scale: Scale = "none"
    if summary.exists():
        written = read_json(summary, DataError).get("scale", "none")
        scale = typed(TypeAdapter(Scale), written, f"{summary}, field 'scale'", DataError)
    digests = {gold.id: gold.digest for gold in Log(file.with_name(GOLD), GoldRecord)}
    return _Record(_LoggedTrials(file), scale, digests)


# ---- JudgeBench ----

_Score = Annotated[float, Field(allow_inf_nan=False)]
_DECISIONS = {"A>B": (1.0, 0.0), "B>A": (0.0, 1.0), "A=B": (0.5, 0.5)}  # scores in the presented order


class _RecordedText(BaseModel):
    model_config = ConfigDict(strict=True)

    response: str | None = None
    scores: list[_Score] | None = None


class _RecordedJudgment(BaseModel):
    judgment: _RecordedText | None = None
    decision: Literal["A>B", "B>A", "A=B", ""] | None = None


class _JudgebenchRow(BaseModel):
    """The judgments of a pair in one order, or in both; the second presents the responses swapped."""

    model_config = ConfigDict(strict=True)

    pair_id: str | int
    judgments: Annotated[list[_RecordedJudgment | None], Field(min_length=1, max_length=2)]


def _from_judgebench(files: Sequence[Path]) -> _Record:
    trials: dict[str, tuple[Trial, ...]] = {}
    scale: Scale = "logit"  # unless a judge wrote a verdict
    orders = 0
    for place, row in _rows(files[0], _JudgebenchRow):
        name, recorded = str(row.pair_id), []
        if name in trials:
            raise DataError(f"{place}, field 'pair_id': duplicate {short(name)}")
        orders = orders or len(row.judgments)
        if len(row.judgments) != orders:
            raise DataError(
                f"{place}, field 'judgments': {len(row.judgments)}, but the rows before have {orders}"
            )
        for order, entry in zip(((0, 1), (1, 0)), row.judgments, strict=False):
            if entry is None:
                detail = "the record has no judgment"
                recorded.append(Trial(order=order, outcome=Outcome.UNPARSED, detail=detail))
                continue
            written = entry.judgment or _RecordedText()
            text = written.response or ""
            scale = scale if written.scores else "verdict"
            if written.scores or "decision" not in entry.model_fields_set:
                trial = _trial(written.scores or text, "pairwise", order, f"{place}, field 'judgments'")
            # JudgeBench's compute_final_metrics counts the decision and not the text (utils/metrics.py of
            # ScalerLab/JudgeBench at e2c52c2).
            elif scores := _DECISIONS.get(entry.decision or ""):
                trial = trial_of(Judgment(Outcome.ANSWERED, scores, explanation=text), order)
            else:
                detail = "the record has no decision"
                trial = Trial(order=order, outcome=Outcome.UNPARSED, explanation=text, detail=detail)
            recorded.append(trial)
        trials[name] = tuple(recorded)
    return _Record(trials, scale)


# ---- JudgeLRM ----

# The authors record this for a text without an end of its thought: `postprocess_output` in judgelrm_inference.py,
# github.com/NuoJohnChen/JudgeLRM at 4f2e213. Two zeros of a judge have an end token after them.
_NO_ANSWER = "<answer>0</answer><answer>0</answer>"
_RESULTS = {0: (0.5, 0.5), 1: (1.0, 0.0), 2: (0.0, 1.0)}


class _JudgelrmRow(BaseModel):
    idx: str | int
    result: Literal[0, 1, 2, "0", "1", "2"]  # the better response; 0 is a tie, or no verdict
    output: str | None = None


def _from_judgelrm(files: Sequence[Path]) -> _Record:
    trials: dict[str, tuple[Trial, ...]] = {}
    scale: Scale = "points"  # unless a verdict is known only from `result`
    for place, row in _rows(files[0], _JudgelrmRow):
        name, text = str(row.idx), row.output or ""
        if name in trials:
            raise DataError(f"{place}, field 'idx': duplicate {short(name)}")
        rated, decided = () if text == _NO_ANSWER else two_scores(text), _RESULTS[int(row.result)]
        if text and not rated and decided == _RESULTS[0]:
            detail = "no two scores in the recorded text"
            judgment = Judgment(Outcome.UNPARSED, explanation=text, detail=detail)
        elif rated and _order(rated) == _order(decided):
            judgment = Judgment(Outcome.ANSWERED, rated, explanation=text)
        else:  # the authors count `result`
            scale = "verdict"
            contradicted = True if rated else None
            judgment = Judgment(Outcome.ANSWERED, decided, explanation=text, contradicted=contradicted)
        trials[name] = (trial_of(judgment, (0, 1)),)
    return _Record(trials, scale)


def _order(scores: Sequence[float]) -> int:
    return (scores[0] > scores[1]) - (scores[0] < scores[1])


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
    trials: dict[str, tuple[Trial, ...]] = {}
    scale: Scale = "logit"  # unless a judge wrote a verdict
    for file in files:
        for number, (place, row) in enumerate(_rows(file, _ReleaseRow), start=1):
            task = row.subset or file.name.split(".")[0]
            name = f"{task}/{number if row.index is None else row.index + 1}"
            if name in trials:
                raise DataError(f"{place}, field 'index': duplicate result for item {short(name)}")
            order = tuple(row.shuffled_order)
            if sorted(order) != list(range(len(order))):
                raise DataError(
                    f"{place}, field 'shuffled_order': not a permutation of 0, 1, ...: {short(order)}"
                )
            scale = "verdict" if isinstance(row.output, str) else scale
            format = "listwise" if row.tasktype == "BestOfN" else "pairwise"
            trials[name] = (_trial(row.output, format, order, f"{place}, field 'output'"),)
    return _Record(trials, scale)


def _trial(recorded: str | Sequence[float], format: str, order: tuple[int, ...], place: str) -> Trial:
    """The trial of a judge's text, or of scores in presented order."""
    if not isinstance(recorded, str):
        if len(recorded) != len(order):
            raise DataError(f"{place}: {len(recorded)} scores for {len(order)} responses")
        return trial_of(Judgment(Outcome.ANSWERED, scores=tuple(recorded)), order)
    # The parser needs the number of responses, and not what they say.
    verdict = load_format(format).parse(recorded, Query("", (), ((),) * len(order)))
    if verdict is None:
        detail = "no verdict in the recorded text"
        return Trial(order=order, outcome=Outcome.UNPARSED, explanation=recorded, detail=detail)
    judgment = Judgment(
        Outcome.ANSWERED, verdict.values, verdict.ranking, recorded, contradicted=verdict.contradicted
    )
    return trial_of(judgment, order)


# ---- Output of `longrm score` ----


def _from_scored(files: Sequence[Path], column: str | None = None) -> _Record:
    """One trial per row, in the row's own order; what a difference of two scores means is not recorded.

    With a `column`, such as the labels of people, rows have no outcome, and null means no verdict.
    """
    unknown = Outcome.ERROR if column is None else Outcome.UNPARSED
    trials: dict[str, tuple[Trial, ...]] = {}
    digests, models = {}, set[object]()
    for row in read_scored(read(files[0]), column):
        comparison = row.comparison
        trials[comparison.id] = (
            Trial(
                order=tuple(range(len(comparison.responses))),
                outcome=Outcome(row.outcome) if row.outcome in tuple(Outcome) else unknown,
                scores=row.scores,
                detail="" if row.scores else f"recorded outcome: {row.outcome}",
            ),
        )
        digests[comparison.id] = text_digest(comparison.prompt, comparison.responses, comparison.tools)
        models.add(row.columns.get(written_columns(row.column)[2]))
    model = models.pop() if len(models) == 1 else ""
    return _Record(trials, "none", digests, model if isinstance(model, str) else "")


_READERS: tuple[tuple[set[str], Callable[[Sequence[Path]], _Record]], ...] = (
    ({"id", "group", "outcome"}, _from_run),
    ({"pair_id", "judgments"}, _from_judgebench),
    ({"idx", "response1", "response2", "result"}, _from_judgelrm),
    ({"output", "shuffled_order"}, _from_release),
    *((set(written_columns(name)[:2]), _from_scored) for name in SCORES),
    *(({name}, partial(_from_scored, column=name)) for name in SCORES),
)
"""The columns by which each kind of record is recognized, and its reader."""


def _rows(file: Path, kind: type[_Row]) -> Iterator[tuple[str, _Row]]:
    """Every row with its place."""
    adapter = TypeAdapter(kind)
    for raw in raw_rows([file]):
        yield raw.place, typed(adapter, raw.checked(), raw.place, DataError)
