"""PandaLM's test set as JudgeLRM (arXiv 2504.00050) publishes it: pairs with the votes of three annotators."""

from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter

from longrm.benchmarks.benchmark import UNREADABLE, BenchmarkRequest, LoadedBenchmark, load_rows
from longrm.data.fields import FileRow, group_of, validated
from longrm.types import Comparison

FINDINGS = {
    "empty_responses": "pairs with an empty response; kept, since the annotators compared it",
    "ties": "pairs that the annotators found equally good, or in which no two of them agree",
    **UNREADABLE,
}

_RANKS = {"1": (1, 2), "2": (2, 1), "0": (1, 1)}
_Vote = Annotated[Literal["0", "1", "2"], BeforeValidator(str)]


class _Item(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    idx: str
    instruction: str
    input: str = ""
    response1: str
    response2: str
    annotator1: _Vote
    annotator2: _Vote
    annotator3: _Vote
    cmp_key: str = ""
    motivation_app: str = ""


_ITEM = TypeAdapter(_Item)


def load_judgelrm(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs under their `idx`; the task is `cmp_key`, the two models that answered.

    Gold is the majority of the annotators, without one a tie. The recorded judgments are not read.
    """
    return load_rows(request, _comparison, FINDINGS)


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    item: _Item = validated(_ITEM, dict(row))
    votes = [item.annotator1, item.annotator2, item.annotator3]
    ((label, count),) = Counter(votes).most_common(1)
    # The prompt of JudgeLRM: build_judgelrm_prompt, github.com/NuoJohnChen/JudgeLRM at 4f2e213.
    text = f"{item.instruction}\n{item.input}" if item.input else item.instruction
    prompt = ({"role": "user", "content": text},)
    return Comparison(
        id=item.idx,
        group=group_of({}, prompt, (), None),
        prompt=prompt,
        responses=tuple(
            ({"role": "assistant", "content": text},) for text in (item.response1, item.response2)
        ),
        ranks=_RANKS[label if count > 1 else "0"],
        metadata={"task": item.cmp_key, "motivation_app": item.motivation_app, "votes": votes},
    )
