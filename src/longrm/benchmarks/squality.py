"""SQuALITY (arXiv 2205.11465): summaries of stories by two models and a person, as annotators ranked them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm.benchmarks.benchmark import (
    UNREADABLE_PAIRS,
    BenchmarkRequest,
    LoadedBenchmark,
    Unrateable,
    load_rows,
    rateable_responses,
)
from longrm.data.fields import FileRow, validated
from longrm.data.files import raw_rows
from longrm.errors import DataError
from longrm.reading import FieldError, reading, short, typed
from longrm.types import Comparison, Span

RATINGS = "all-responses.jsonl"
"""The file of the human evaluation; the other JSONL files of the folder have the stories."""

MODELS, PEOPLE = "model-model", "human-model"
"""The tasks. Annotators prefer the person's summary in every pair with a model's, so pairs of models tell more."""

FINDINGS = {
    "tied_votes": "pairs that as many annotators rank one way as the other; left out",
    **UNREADABLE_PAIRS,
}

_HUMAN = "human"
_OPENING = "Here is a story.\n\n"
_BETWEEN = "\n\nThis was the whole story. Answer from it.\n\n"


class _Review(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    worker_id: str
    rank: float = Field(alias="overall-rank")


class _Summary(BaseModel):
    response: str
    reviews: list[_Review]


class _Ratings(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    story: str = Field(alias="passage-id")
    questions: dict[int, dict[str, _Summary]]  # by place from 0, then by system


class _Metadata(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    passage_id: str


class _Question(BaseModel):
    question_number: int  # from 1
    question_text: str


class _Story(BaseModel):
    metadata: _Metadata
    document: str = Field(min_length=1)
    questions: list[_Question]


_RATINGS, _STORY = TypeAdapter(_Ratings), TypeAdapter(_Story)


class Story(NamedTuple):
    """A story, and its questions by their number from 1."""

    text: str
    questions: Mapping[int, str]


def load_squality(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every two summaries for a question as a pair `STORY/QUESTION/SYSTEM+SYSTEM`, grouped by story.

    The one that more annotators rank higher overall, their own summary of correctness and coverage, is better.
    """
    folder = Path(request.path)
    if not (folder / RATINGS).is_file():
        raise DataError(f"{folder}: no SQuALITY here; it needs {RATINGS} and JSONL files of stories")
    stories = _stories(folder)

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        return _comparison(row, stories)

    return load_rows(request, convert, FINDINGS, _pairs, [folder / RATINGS])


def _stories(folder: Path) -> dict[str, Story]:
    with reading(folder, DataError):
        files = sorted(file for file in folder.glob("*.jsonl") if file.name != RATINGS)
    stories = {}
    for raw in raw_rows(files):
        story: _Story = typed(_STORY, raw.checked(), raw.place, DataError)
        questions = {one.question_number: one.question_text for one in story.questions}
        stories[story.metadata.passage_id] = Story(story.document, questions)
    return stories


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The pairs of all questions about one story, with the votes for either."""
    rated: _Ratings = validated(_RATINGS, dict(row))
    for place, summaries in rated.questions.items():
        for pair in combinations(summaries, 2):
            ranks = [{one.worker_id: one.rank for one in summaries[name].reviews} for name in pair]
            leads = [ranks[1][worker] - ranks[0][worker] for worker in ranks[0].keys() & ranks[1].keys()]
            yield {
                "story": rated.story,
                "number": place + 1,
                "summaries": {name: summaries[name].response for name in pair},
                "votes": [sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)],
            }


def _comparison(row: FileRow, stories: Mapping[str, Story]) -> Comparison:
    story = stories.get(row["story"])
    if story is None or row["number"] not in story.questions:
        problem = f"no story {short(row['story'])} with a question {row['number']} in the other files"
        raise FieldError("passage-id", problem)
    votes = row["votes"]
    if votes[0] == votes[1]:
        raise Unrateable("tied_votes")
    ranks = (1, 2) if votes[0] > votes[1] else (2, 1)
    question = story.questions[row["number"]]
    text = f"{_OPENING}{story.text}{_BETWEEN}{question}"
    task = PEOPLE if _HUMAN in row["summaries"] else MODELS
    return Comparison(
        id=f"{row['story']}/{row['number']}/{'+'.join(row['summaries'])}",
        group=row["story"],
        prompt=({"role": "user", "content": text},),
        responses=rateable_responses(row["summaries"], ranks),
        ranks=ranks,
        metadata={
            "task": task,
            "subtype": f"{task}, {'split' if min(votes) else 'unanimous'}",
            "source": "SQuALITY",
            "models": [*row["summaries"]],
            "votes": votes,
        },
        context=(Span(0, len(_OPENING), len(_OPENING) + len(story.text)),),
        question=Span(0, len(text) - len(question), len(text)),
    )
