"""RMB (arXiv 2410.09893): real conversations, each with pairs of answers and with a best answer and its losers."""

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    json_files,
    load_rows,
    published_comparison,
)
from longrm.data.fields import FileRow, validated
from longrm.types import Comparison


class _Turn(BaseModel):
    role: str
    content: str  # may be empty: one conversation ends with an empty turn
    language: str = ""


class _Answer(BaseModel):
    answer: str
    llm_name: str = ""


class _Item(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    conversation_input: list[_Turn] = Field(min_length=1)
    category_path: str = Field(pattern="/")


class _Pair(_Item):
    pair_uid: str
    chosen: _Answer
    reject: _Answer


class _BestOfN(_Item):
    bon_uid: str
    bon_best: _Answer
    loser_list: list[_Answer] = Field(min_length=1)


_PAIR, _BEST_OF_N = TypeAdapter(_Pair), TypeAdapter(_BestOfN)


def load_rmb(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items of a JSON file, or of all JSON files below a folder, as `pairwise/UID` and `bon/UID`, the best first.

    The task is the category, such as Open QA, and the subtype the file's name. The group is the conversation, which
    both sets share. A loser identical to the best answer ties with it: its item has no right answer, but it counts in
    RMB's rule.
    """
    files = json_files(Path(request.path), "**/*.json")
    return load_rows(request, _comparison, files=files)


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    item: _Item
    if "bon_uid" in row:
        several: _BestOfN = validated(_BEST_OF_N, dict(row))
        losers = {f"loser_list[{place}]": loser for place, loser in enumerate(several.loser_list)}
        item, identity = several, f"bon/{several.bon_uid}"
        answers = {"bon_best": several.bon_best} | losers
    else:
        pair: _Pair = validated(_PAIR, dict(row))
        item, identity = pair, f"pairwise/{pair.pair_uid}"
        answers = {"chosen": pair.chosen, "reject": pair.reject}
    texts = {field: one.answer for field, one in answers.items()}
    best, *_ = texts.values()
    category, subtype = item.category_path.split("/")[-2:]
    turns = item.conversation_input
    return published_comparison(
        {"conversation_input": [{"role": turn.role, "content": turn.content} for turn in turns]},
        identity,
        "conversation_input",
        texts,
        tuple(1 if text == best else 2 for text in texts.values()),
        used={"conversation_input"},
        metadata={
            "task": category,
            "subtype": subtype,
            "language": turns[-1].language,
            "models": [one.llm_name for one in answers.values()],
        },
    )
