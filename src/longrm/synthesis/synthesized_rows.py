"""The rows that recipes write, each with where it came from.

What training reads has the columns that `longrm.data` knows; everything else of a row becomes its metadata.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from longrm.synthesis.inputs.candidates import CandidateAnswer
from longrm.types import Message, Span


@dataclass(frozen=True, slots=True)
class LabeledDemonstration:
    """Stage 1 (paper, section 3): a judging prompt over a long context, and the judgment to imitate.

    Attributes:
        id: Unique in its run.
        prompt: What the model in training reads; it holds no rubric.
        completion: The judgment, which a judge wrote on the short context.
        document: Id of the document.
        domain: What was judged, and by which rubric.
        language: "en" or "zh".
        model: What wrote the judged answer.
        perturbation: Of the answer's making; see `Candidate`.
        judge: What wrote the judgment.
        score: The verdict, 0 to 10.
        length: The target length in tokens; None where the row is short by design.
        tokens: Tokens of the prompt as the target tokenizer counts them, its chat template included.
        short_tokens: Tokens of what the judge read.
        found_by: How the critical chunks were found.
        evidence: Where the critical chunks stand in the prompt.
        depths: Share of the padding that stands before each of them: 0 at the start, 1 at the end.
        tag: Name of the tag pair around what the question is about; empty where there is none.
        padding: Ids of the documents that the foreign chunks come from; how many chunks are the document's own
            is under `own_chunks`.
        own_chunks: Discarded chunks of the document itself that pad the context.
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str
    document: str
    domain: str
    language: str
    model: str
    perturbation: str
    judge: str
    score: int
    length: int | None = None
    tokens: int = 0
    short_tokens: int = 0
    found_by: str = ""
    evidence: tuple[Span, ...] = ()
    depths: tuple[float, ...] = ()
    tag: str = ""
    padding: tuple[str, ...] = ()
    own_chunks: int = 0


@dataclass(frozen=True, slots=True)
class JudgmentRow:
    """Stage 2 (paper, section 4): the consensus judgment and those it outvoted, as the authors' release has them.

    Attributes:
        id: Unique in its run.
        chat_template: The judging prompt.
        chosen: The consensus judgment.
        rejects: The outvoted ones, at least one.
        chosen_model: The judge that wrote `chosen`.
        reject_models: The judges that wrote `rejects`, in the same order.
        scores: What every judge gave, -1 where nothing could be read.
        conf: Sizes of the clusters of agreeing judges, largest first.
        document: Id of the document.
        query: The question.
        answer: The judged answer.
        insert_index: Which chunk of the context the critical part begins at; None where nobody knows.
        prompt_ctx_length: Tokens of the prompt.
        metadata: What else is known; its keys become columns.
    """

    id: str
    chat_template: tuple[Message, ...]
    chosen: str
    rejects: tuple[str, ...]
    chosen_model: str
    reject_models: tuple[str, ...]
    scores: Mapping[str, float]
    conf: tuple[int, ...]
    document: str = ""
    query: str = ""
    answer: str = ""
    insert_index: int | None = None
    prompt_ctx_length: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.rejects, "a row without a rejected judgment teaches no contrast"
        assert len(self.rejects) == len(self.reject_models), "one model for each rejected judgment"


def row_of(record: CandidateAnswer | LabeledDemonstration | JudgmentRow) -> dict[str, Any]:
    """A record as a plain dict of JSON types, its fields in order; what is unknown (None) is left out."""
    row: dict[str, Any] = {}
    for column in fields(record):
        value = getattr(record, column.name)
        if column.name == "metadata":
            continue
        if value is not None:
            row[column.name] = _plain(value)
    extra = getattr(record, "metadata", {})
    taken = sorted(row.keys() & extra.keys())
    assert not taken, f"metadata repeats the columns {taken}"
    return row | {key: _plain(value) for key, value in extra.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Span):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
