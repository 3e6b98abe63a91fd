"""How contexts are judged short and learned long: settings of `longrm synthesize short-to-long` and `vote`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from longrm.config import Config
from longrm.synthesis.domains import DOMAINS


class ShortToLong(Config):
    """How contexts are judged short and learned long.

    Attributes:
        rows: "judgments" to imitate, each with a context of its own, for models that write; or "pairs", comparisons
            of the answers to one question by the scores that they got, over one long context, for models that score.
        judge_reads: "short", the critical chunks alone, as the paper has it; or "long", the padded context of the
            row, which makes naive long data to compare with: judged by what a judge makes of a long context.
        domain: What is judged: "qa_faithfulness", "qa_helpfulness", "summary", "safety", "code" or "chat".
        language: Of the instructions; "auto" takes the question's.
        lengths: Tokens of the prompts, as the target tokenizer counts them with its chat template; every row draws
            one of those that its evidence fits into.
        tolerance: Tokens that a prompt may be shorter; it is never longer.
        chunk: Words and punctuation marks of a chunk at most.
        find: How critical chunks are found: by the document's `evidence` (a list of [start, end] characters), by
            lexical retrieval, or by asking a model.
        most: The most chunks that retrieval takes.
        window: Chunks that the finding model reads at a time.
        sufficiency: How it is checked that they suffice. "words": the gold answer stands there, one of up to six words
            as it is, a longer one by its words (`enough`); "judge": a judge says so; "none": not at all.
        check: How chunks that answer the question, rightly or not, are kept out of the padding. "words": by those of
            the gold answer and the question; "judge": a judge also reads the closest ones; "none": not at all.
        enough: The share of a long gold answer's words, weighted by rarity, that counts as holding it.
        alike: A chunk also counts as answering from this share of the evidence's own match with the question on.
        closest: Chunks of the padding that the judge reads.
        own: The share of the padding that discarded chunks of the document itself may be.
        pool_documents: Documents that foreign chunks are drawn from.
        pool_chunks: Foreign chunks of each, and as many sentences.
        max_tokens: The most that a judge may write.
        temperature: Of the judging; 0 takes the likeliest token each time.
        seed: Of all draws.
    """

    rows: Literal["judgments", "pairs"] = "judgments"
    judge_reads: Literal["short", "long"] = "short"
    domain: str = "qa_faithfulness"
    language: Literal["auto", "en", "zh"] = "auto"
    lengths: tuple[int, ...] = Field((4096,), min_length=1)
    tolerance: int = Field(16, ge=0)
    chunk: int = Field(128, ge=8)
    find: Literal["given", "retrieval", "model"] = "retrieval"
    most: int = Field(4, ge=1)
    window: int = Field(40, ge=1)
    sufficiency: Literal["words", "judge", "none"] = "words"
    check: Literal["words", "judge", "none"] = "words"
    enough: float = Field(0.6, gt=0.0, le=1.0)
    alike: float = Field(0.75, gt=0.0, le=1.0)
    closest: int = Field(4, ge=1)
    own: float = Field(0.5, ge=0.0, le=1.0)
    pool_documents: int = Field(128, ge=1)
    pool_chunks: int = Field(16, ge=1)
    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(0.0, ge=0)
    seed: int = 0

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.domain not in DOMAINS:
            raise ValueError(f"no domain '{self.domain}'; known: {', '.join(DOMAINS)}")
        if min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise ValueError(f"lengths must be positive and differ, got {list(self.lengths)}")
        return self
