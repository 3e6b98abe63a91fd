"""Documents and their candidates on their way to rows."""

from collections.abc import Callable
from dataclasses import dataclass, field

from longrm.synthesis.domains import Language
from longrm.synthesis.fates import Fates
from longrm.synthesis.lengthening import Evidence, Long
from longrm.synthesis.records import Candidate, Source
from longrm.synthesis.voting import Verdict
from longrm.types import Message


@dataclass
class Context:
    """The context of one row on its way to its length; answers that are compared share one.

    Attributes:
        key: Of all its draws.
        tag: Name of the tag pair around what the question is about; empty where there is none.
        render: The row's prompt, which holds no rubric, over a context that is laid out.
        long: The prompt at its length; None as long as there is none.
        length: The target length, in tokens.
        unfit: Why there is none.
        banned: Texts of chunks in which a judge found an answer.
    """

    key: tuple[object, ...]
    tag: str
    render: Callable[[str], tuple[Message, ...]]
    long: Long | None = None
    length: int = 0
    unfit: str = ""
    banned: list[str] = field(default_factory=list)

    @property
    def made(self) -> Long:
        """The prompt at its length, which there must be."""
        assert self.long is not None, "asked for a prompt that could not be made"
        return self.long


@dataclass
class Answer:
    """One candidate on its way.

    Attributes:
        candidate: The candidate.
        number: Its place among its document's.
        context: Of its row.
        score: What the judge gave it, or the consensus of several, 0 to 10; None as long as nobody has.
        judgment: What the judge wrote, where there is one.
        conf: Sizes of the clusters of judges, where several have voted.
        verdict: What they said; None where there is nothing to reject.
    """

    candidate: Candidate
    number: int
    context: Context
    score: float | None = None
    judgment: str = ""
    conf: tuple[int, ...] = ()
    verdict: Verdict | None = None


@dataclass
class Case:
    """One document on its way.

    Attributes:
        source: The document and its candidates.
        language: Of the instructions.
        evidence: What of the document goes into its prompts.
        fates: What became of it so far.
        open: Whether its critical chunks are known and suffice.
        answers: Those of its candidates that are still in.
        pairs: Two answers each, the better one first, where rows are pairs.
    """

    source: Source
    language: Language
    evidence: Evidence
    fates: Fates
    open: bool = True
    answers: list[Answer] = field(default_factory=list)
    pairs: list[tuple[Answer, Answer]] = field(default_factory=list)

    @property
    def contexts(self) -> list[Context]:
        """Of its answers, each once."""
        return [*{id(answer.context): answer.context for answer in self.answers}.values()]
