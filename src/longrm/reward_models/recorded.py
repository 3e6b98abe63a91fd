"""Judgments that were made earlier, and are only read again: `--recorded PATH`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from longrm.data.files import raw_rows
from longrm.errors import DataError
from longrm.judging import load_format
from longrm.reward_models.protocol import RewardModel
from longrm.runs.judgments import GOLD, JUDGMENTS, text_digest
from longrm.runs.logs import Log
from longrm.runs.records import GoldRecord, JudgmentRecord, Trial
from longrm.types import Judgment, Outcome, Query, Scale


@dataclass(frozen=True, slots=True)
class Asking:
    """One recorded asking.

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
        askings: Every comparison's askings, by its id; the trial of a query counts them.
        scale: What a difference of two recorded scores means.
    """

    sees_order = True

    def __init__(self, name: str, askings: Mapping[str, Sequence[Asking]], scale: Scale) -> None:
        self.name = name
        self.scale = scale
        self._askings = askings
        formats = {asking.format for found in askings.values() for asking in found if asking.format}
        self._formats = {format: load_format(format) for format in formats}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a record; which of these it is, is recognized from the columns.

        - a run folder of ours, or its `judgments.jsonl`;
        - a JudgeBench file with `judgments`: scores of a reward model, or the raw text of a judge;
        - result files of the LongRM release, a folder with one JSONL a task, or one of them: raw text, or the scores
          of a discriminative model. A row belongs to the item on line `index` (from 0) of its task's file; without
          that column, to the item on its own line.

        Raises:
            DataError: There is no record of a known kind.
        """
        files = _files(path)
        first = next(iter(raw_rows(files[:1])), None)
        columns = first.value.keys() if first and first.value else set()
        for recognized, read in _READERS:
            if recognized <= columns:
                return cls(f"recorded:{path.resolve().name}", *read(files))
        raise DataError(
            f"{files[0]}: no record of judgments; known are a run folder of longrm, JudgeBench's files with "
            "'judgments', and the LongRM release's results with 'output' and 'shuffled_order'"
        )

    @property
    def ids(self) -> frozenset[str]:
        """The comparisons that the record knows, whether they are asked about or not."""
        return frozenset(self._askings)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Looks every query up by its comparison and its trial."""
        return [self._answer(query) for query in queries]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The recorded orders, one an asking."""
        return tuple(asking.order for asking in self._askings.get(comparison, ()))

    def _answer(self, query: Query) -> Judgment:
        askings = self._askings.get(query.id, ())
        if query.trial >= len(askings):
            which = f"asking {query.trial + 1} of '{query.id}'" if askings else f"'{query.id}'"
            return Judgment(Outcome.ERROR, detail=f"{which} is not in the record")
        asking = askings[query.trial]
        if len(asking.order) != len(query.responses):
            return Judgment(
                Outcome.ERROR,
                detail=f"'{query.id}' was recorded with {len(asking.order)} responses, and has {len(query.responses)}",
            )
        if asking.digest:
            shown = dict(zip(asking.order, query.responses, strict=True))
            if text_digest(query.prompt, [shown[index] for index in range(len(shown))]) != asking.digest:
                detail = f"'{query.id}' was recorded about another text; the benchmark is not the one that was judged"
                return Judgment(Outcome.ERROR, detail=detail)
        if asking.judgment is not None:
            return asking.judgment
        reading = self._formats[asking.format].parse(asking.text, query)
        if reading is None:
            return Judgment(
                Outcome.UNPARSED, explanation=asking.text, detail="no verdict in the recorded text"
            )
        return Judgment(
            Outcome.ANSWERED,
            scores=reading.values,
            order=reading.order,
            explanation=asking.text,
            contradicted=reading.contradicted,
        )


_Read = tuple[dict[str, tuple[Asking, ...]], Scale]


def _from_runs(files: Sequence[Path]) -> _Read:
    """Our own log; a comparison that was judged again, after an error, has its last record."""
    file = _only(files)
    records = {record.id: record for record in Log(file, JudgmentRecord)}
    summary = file.with_name("summary.json")
    scale: Scale = "none"
    if summary.is_file():
        scale = json.loads(summary.read_text(encoding="utf-8")).get("scale", scale)
    digests = {gold.id: gold.digest for gold in Log(file.with_name(GOLD), GoldRecord)}
    askings = {
        name: tuple(
            Asking(trial.order, _presented(trial, record), digest=digests.get(name, ""))
            for trial in record.askings()
        )
        for name, record in records.items()
    }
    return askings, scale


def _presented(trial: Trial, record: JudgmentRecord) -> Judgment:
    """The inverse of how a judgment is recorded: back from the comparison's own order to the presented one."""
    return Judgment(
        trial.outcome,
        scores=tuple(trial.scores[index] for index in trial.order) if trial.scores else (),
        order=tuple(trial.order.index(index) for index in trial.ranking),
        explanation=trial.explanation,
        detail=trial.detail,
        prompt_tokens=record.tokens,
        cut=record.cut,
        attempts=trial.attempts,
        contradicted=trial.contradicted,
    )


def _from_judgebench(files: Sequence[Path]) -> _Read:
    askings: dict[str, tuple[Asking, ...]] = {}
    for place, row in _rows([_only(files)], "pair_id", "judgments"):
        judgments = row["judgments"]
        if not isinstance(judgments, list) or len(judgments) not in (1, 2):
            raise DataError(
                f"{place}, field 'judgments': needs a list of one judgment, or of one in each order"
            )
        entries = zip(((0, 1), (1, 0)), judgments, strict=False)
        askings[str(row["pair_id"])] = tuple(_judgebench_asking(*entry, place) for entry in entries)
    return askings, _scale(askings)


def _judgebench_asking(order: tuple[int, ...], entry: Mapping[str, Any] | None, place: str) -> Asking:
    """The second asking presents the responses swapped, and its scores and its text say so."""
    if entry is None:
        return Asking(order, Judgment(Outcome.UNPARSED, detail="the record holds no judgment"))
    judgment = entry.get("judgment") or {}
    if judgment.get("scores"):
        return Asking(order, _scored(judgment["scores"], order, place))
    return Asking(order, text=str(judgment.get("response") or ""), format="pairwise")


def _from_release(files: Sequence[Path]) -> _Read:
    askings: dict[str, tuple[Asking, ...]] = {}
    for file in files:
        for number, (place, row) in enumerate(_rows([file], "output", "shuffled_order"), start=1):
            task = row.get("subset") or file.name.split(".")[0]
            identity = f"{task}/{row['index'] + 1 if row.get('index') is not None else number}"
            if identity in askings:
                raise DataError(f"{place}: a second result for the item '{identity}'; remove one")
            askings[identity] = (_release_asking(row, place),)
    return askings, _scale(askings)


def _release_asking(row: Mapping[str, Any], place: str) -> Asking:
    order = tuple(row["shuffled_order"])
    if sorted(order) != list(range(len(order))):
        raise DataError(f"{place}, field 'shuffled_order': needs every number from 0 up once, got {order}")
    if isinstance(row["output"], list):
        return Asking(order, _scored(row["output"], order, place))
    format = "listwise" if row.get("tasktype") == "BestOfN" else "pairwise"
    return Asking(order, text=str(row["output"]), format=format)


def _scored(scores: Sequence[Any], order: tuple[int, ...], place: str) -> Judgment:
    if len(scores) != len(order) or not all(isinstance(score, int | float) for score in scores):
        raise DataError(f"{place}: {len(order)} responses need a list of as many scores, got {scores}")
    return Judgment(Outcome.ANSWERED, scores=tuple(map(float, scores)))


def _scale(askings: Mapping[str, Sequence[Asking]]) -> Scale:
    """Others record raw logits, or texts that end in a verdict."""
    texts = any(asking.format for found in askings.values() for asking in found)
    return "verdict" if texts else "logit"


_READERS: tuple[tuple[set[str], Callable[[Sequence[Path]], _Read]], ...] = (
    ({"id", "group", "outcome"}, _from_runs),
    ({"pair_id", "judgments"}, _from_judgebench),
    ({"output", "shuffled_order"}, _from_release),
)
"""The columns that each kind of record has, and what reads it."""


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / JUDGMENTS).is_file():
        return [path / JUDGMENTS]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise DataError(f"{path}: no record of judgments there; it needs a file or a folder of JSONL files")
    return found


def _only(files: Sequence[Path]) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DataError(f"{files[0].parent}: holds several records of judgments ({names}); name one file")
    return files[0]


def _rows(files: Sequence[Path], *columns: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row with its place, and with these columns filled."""
    for raw in raw_rows(files):
        value = raw.checked()
        for column in columns:
            if value.get(column) is None:
                raise DataError(f"{raw.place}, field '{column}': missing")
        yield raw.place, value
