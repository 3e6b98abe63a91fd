"""SummHay (arXiv 2407.01370): how far summaries cover criteria, by people and by judges.

A criterion is an insight that a summary of many documents should contain. It is covered fully, partially or not by one
bullet of the summary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from longrm.benchmarks.benchmark import BenchmarkRequest, CriterionKey, CriterionLabel, LoadedBenchmark
from longrm.data.fields import name_of, required, validated
from longrm.data.files import find_files, origin_of, raw_rows
from longrm.errors import ConfigError, DataError
from longrm.reading import FieldError, reading, short

PREDICTIONS = "predictions_"
"""The prefix of columns with a judge's labels; the rest is its prompt and its name, as in `prompted_gpt-4o`."""

# map_to_score in Eval_Benchmarking.ipynb, github.com/salesforce/summary-of-a-haystack at 4353172.
_PEOPLE = {"not_covered": 0.0, "partially_covered": 0.5, "fully_covered": 1.0}
_JUDGES = {"no_coverage": 0.0, "partial_coverage": 0.5, "full_coverage": 1.0, **_PEOPLE}


class _Annotation(BaseModel):
    insight_id: str
    coverage: str
    # The place of the bullet from 0, as a text; or "no_selection"
    candidate_id: Annotated[str, Field(pattern=r"^(\d+|no_selection)$")]


class _Prediction(BaseModel):
    insight_id: str
    coverage: Any
    bullet_id: Any = None  # the number of the bullet from 1; anything but a whole number is ignored


_ANNOTATIONS, _PREDICTIONS = TypeAdapter(list[_Annotation]), TypeAdapter(list[_Prediction])


def load_summhay(request: BenchmarkRequest) -> LoadedBenchmark:
    """The labels of people for every criterion of every summary; groups are subtopics, which share their criteria."""
    if request.source.limit is not None:
        raise ConfigError("summhay does not support --limit: it evaluates recorded labels only")
    files = find_files(Path(request.path))
    labels: dict[CriterionKey, CriterionLabel] = {}
    for raw in raw_rows(files):
        with reading(raw.place, DataError):
            row = raw.checked()
            for one in validated(_ANNOTATIONS, required(row, "annotation")[1], "annotation"):
                key = CriterionKey(name_of(row, "subtopic_id"), name_of(row, "summkey"), one.insight_id)
                if key in labels:
                    raise FieldError(
                        "annotation", f"{short(one.insight_id)} of this summary was labeled before"
                    )
                if one.coverage not in _PEOPLE:
                    raise FieldError(
                        "coverage", f"must be one of {', '.join(_PEOPLE)}, got {short(one.coverage)}"
                    )
                link = None if one.candidate_id == "no_selection" else int(one.candidate_id) + 1
                labels[key] = CriterionLabel(_PEOPLE[one.coverage], link)
    if not labels:
        raise DataError(f"{request.path}: no labels in it")
    return LoadedBenchmark(request.name, (), provenance=origin_of(files), criteria=labels)


def recorded_judges(path: Path) -> Mapping[str, Mapping[CriterionKey, CriterionLabel]]:
    """The labels of every judge in a file of SummHay, by prompt and name; unknown labels are omitted."""
    judges: dict[str, dict[CriterionKey, CriterionLabel]] = {}
    for raw in raw_rows(find_files(path)):
        with reading(raw.place, DataError):
            row = raw.checked()
            for column in row:
                if not column.startswith(PREDICTIONS) or row[column] is None:
                    continue
                labels = judges.setdefault(column.removeprefix(PREDICTIONS), {})
                for one in validated(_PREDICTIONS, row[column], column):
                    coverage = _JUDGES.get(str(one.coverage).lower())
                    link = one.bullet_id if type(one.bullet_id) is int else None
                    key = CriterionKey(name_of(row, "subtopic_id"), name_of(row, "summkey"), one.insight_id)
                    if coverage is not None:
                        labels[key] = CriterionLabel(coverage, link)
    if not judges:
        raise DataError(f"{path}: no column {PREDICTIONS}NAME with a judge's labels")
    return judges
