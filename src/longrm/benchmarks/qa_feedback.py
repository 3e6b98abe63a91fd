"""QA-Feedback of FineGrainedRLHF (arXiv 2306.01693): answers from Wikipedia passages, as people prefer them."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from longrm.benchmarks.benchmark import (
    UNREADABLE_PAIRS,
    BenchmarkRequest,
    LoadedBenchmark,
    Unrateable,
    columns_of,
    load_rows,
    rateable_responses,
)
from longrm.data.fields import FileRow, group_of, validated
from longrm.types import Comparison, Span

FINDINGS = {
    "no_preference": "pairs of answers of which people prefer neither; left out, as in the authors' training",
    **UNREADABLE_PAIRS,
}

_PAIRS = tuple(combinations((1, 2, 3, 4), 2))  # of answers, in the order of `preference`
_MARKED = 1  # the answer with marked errors
_OPENING = "Here are passages from Wikipedia.\n\n"
_BETWEEN = "\n\nAnswer the question from these passages.\n\n"


class _Error(BaseModel):
    kind: str = Field(alias="error type")
    start: int
    end: int


class _Feedback(BaseModel):
    errors: list[_Error] = []


class _Item(BaseModel):
    question: str = Field(min_length=1)
    passages: list[Annotated[list[str], Field(min_length=2)]]  # the title, and sentences
    preference: list[Literal[0, 1, 2]] = Field(min_length=len(_PAIRS), max_length=len(_PAIRS))
    feedback: _Feedback | None = None


_ITEM = TypeAdapter(_Item)


def load_qa_feedback(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every two of the four answers to a question as a pair `ROW/ANSWER+ANSWER`, grouped by question.

    The prompt is the passages, which are the context, and the question. People marked errors in answer 1 only: the
    metadata `errors` of its pairs has their kinds and character spans in that answer, the first response.
    """
    return load_rows(request, _comparison, FINDINGS, _pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The six pairs of a question that passages answer, with the preference in each."""
    item: _Item = validated(_ITEM, dict(row))
    for pair, preferred in zip(_PAIRS, item.preference, strict=True):
        answers = columns_of(row, *(f"prediction {answer}" for answer in pair))
        yield {"item": item, "pair": pair, "answers": answers, "preferred": preferred}


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    # tasks/qa_feedback/data/README.md, github.com/allenai/FineGrainedRLHF at a1469d4: 1 = the first answer of the pair
    # is preferred, 2 = the second, 0 = neither; run_pref_rm.py omits pairs with 0.
    if row["preferred"] == 0:
        raise Unrateable("no_preference")
    item: _Item = row["item"]
    ranks = (1, 2) if row["preferred"] == 1 else (2, 1)
    passages = "\n\n".join(_text_of(*passage) for passage in item.passages)
    # One published question has no passages; people judged its answers all the same.
    text = f"{_OPENING}{passages}{_BETWEEN}{item.question}" if passages else item.question
    prompt = ({"role": "user", "content": text},)
    marked = item.feedback.errors if item.feedback and _MARKED in row["pair"] else []
    return Comparison(
        id=f"{number}/{'+'.join(map(str, row['pair']))}",
        group=group_of({}, prompt, (), None),
        prompt=prompt,
        responses=rateable_responses(row["answers"], ranks),
        ranks=ranks,
        metadata={
            "source": "QA-Feedback",
            "answers": [*row["pair"]],
            "errors": [one.model_dump() for one in marked],
        },
        context=(Span(0, len(_OPENING), len(_OPENING) + len(passages)),) if passages else (),
        question=Span(0, len(text) - len(item.question), len(text)),
    )


def _text_of(title: str, *sentences: str) -> str:
    """A passage under its title, which the first passage of an article has in its first sentence, too."""
    return f"{title}\n" + " ".join(sentences).removeprefix(f"{title}\n\n")
