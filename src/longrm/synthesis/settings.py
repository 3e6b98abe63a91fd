"""Settings that several recipes share: sources, candidate answers, and how contexts are labeled and padded."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from longrm.benchmarks import BenchmarkName, BenchmarkSource, LoadedBenchmark
from longrm.config import OPERATIONAL, Config
from longrm.data.files import find_files
from longrm.errors import ConfigError, nearest
from longrm.reading import reading
from longrm.reward_models.simulated import ErrorRates
from longrm.synthesis.documents import (
    Document,
    document_format,
    join_candidates,
    read_candidates,
    read_documents,
    read_texts,
    with_synthetic,
)
from longrm.synthesis.domains import DOMAINS
from longrm.synthesis.models import ModelSettings


def _positive_and_different(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if min(lengths) < 1 or len(set(lengths)) < len(lengths):
        raise ValueError(f"lengths must be positive and differ, got {list(lengths)}")
    return lengths


Lengths = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_positive_and_different)]


class SourceSettings(Config):
    """A file or folder of data.

    Attributes:
        path: A file, a folder or a run folder.
        license: Its license, for the manifest and the data card.
        limit: Read only this many rows.
    """

    path: str
    license: str = "unknown"
    limit: int | None = Field(None, ge=1)

    @property
    def place(self) -> Path:
        """The path, with `~` expanded."""
        return Path(self.path).expanduser()

    def provenance(self, files: Sequence[Path] | None = None) -> dict[str, str]:
        """Name, license, path and SHA-256 for the manifest; of all files at the path unless some are given."""
        place = self.place
        if files is None:
            files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
        name = Path(os.path.realpath(place)).name
        return {"name": name, "license": self.license, "path": self.path, "sha256": digest_of(files)}


class DocumentSettings(SourceSettings):
    """The documents.

    Attributes:
        path: A file or folder of rows with `context`, `question`, `answer`; L-Eval's folder; a folder of `.txt` and
            `.md` with rows about them (`file`, `question`, `answer`) in `questions.csv` or `questions.jsonl`; or
            comparisons with known context and question, such as `longrm world` writes.
        format: "jsonl" (rows in any file), "leval", "texts" or "comparisons"; by default one of the first three,
            detected from the path. `distill` also reads "prompts": comparisons, demonstrations, or rows with only a
            `prompt`.
    """

    format: str | None = None

    def read(self) -> Iterator[Document]:
        """Reads the documents one by one, always in the same order, with the answers that the source contains."""
        return islice(read_documents(self.place, self.format), self.limit)

    def read_texts(self) -> Iterator[Document]:
        """Reads only the texts, in the same order."""
        return islice(read_texts(self.place, self.format), self.limit)


class CandidateSettings(Config):
    """The answers that are judged; `synthetic` can be combined with one of the others.

    Attributes:
        path: Output of `longrm synthesize responses`, in the order of the documents.
        recorded: The answers in the documents' source: those of L-Eval's models, or the responses of comparisons.
        synthetic: The gold answer, and worse answers made from it: they fill the quality levels that models leave
            empty, at no cost.
    """

    path: str | None = None
    recorded: bool = False
    synthetic: bool = False

    @model_validator(mode="after")
    def _selects_some(self) -> Self:
        if self.path is None and not self.recorded and not self.synthetic:
            raise ValueError(
                "no candidates: set candidates.path (what `longrm synthesize responses` wrote), candidates.recorded = "
                "true (the source's own answers), or candidates.synthetic = true (made from the gold answers)"
            )
        if self.path is not None and self.recorded:
            raise ValueError("set either candidates.path or candidates.recorded, not both")
        return self


class SynthesisRecipe(Config):
    """Settings of all recipes.

    Attributes:
        seed: Of all random draws.
        batch: Inputs in progress at the same time. It changes no row; a killed run repeats at most this many.
    """

    seed: int = 0
    batch: Annotated[int, OPERATIONAL] = Field(64, ge=1)


class ComparisonRecipe(SynthesisRecipe):
    """Settings of the recipes that start from comparisons with a known gold order.

    Attributes:
        source: The comparisons: the path of your own, a benchmark with its path, or `probe` for generated worlds, as in
            `longrm evaluate --bench`.
        license: Its license, for the manifest.
        reading: How to read a benchmark's files.
    """

    source: BenchmarkName
    license: str = "unknown"
    reading: BenchmarkSource = BenchmarkSource()

    def provenance(self, bench: LoadedBenchmark) -> list[dict[str, str]]:
        """The source for the manifest."""
        name, _, path = self.source.partition(":")
        if path and Path(path).expanduser().exists():
            return [SourceSettings(path=path, license=self.license).provenance() | {"bench": name}]
        return [{"name": self.source, "license": self.license, **bench.provenance}]


class ModelRecipe(SynthesisRecipe):
    """Settings of the recipes in which models write.

    Attributes:
        max_tokens: The most tokens of a reply; a longer one is dropped and counted as truncated.
    """

    max_tokens: int = Field(1024, ge=1)


class WriterRecipe(ModelRecipe):
    """Settings of the recipes in which a model writes, and a model checks what it wrote.

    Attributes:
        writer: The model that writes, at temperature 0: openai:URL#NAME (an endpoint), the folder or Hub id of a causal
            language model, or simulated:0 (to try it offline).
        checker: The model that checks; by default the writer. A simulated one checks without errors.
    """

    writer: ModelSettings
    checker: ModelSettings | None = None

    @model_validator(mode="after")
    def _checker_knows_the_writer(self) -> Self:
        checker = "" if self.checker is None else self.checker.model
        if checker.startswith("simulated:") and not self.writer.model.startswith("simulated:"):
            raise ValueError(
                "a simulated checker only knows what a simulated writer wrote: set checker.model to another model, or "
                "omit the checker"
            )
        if checker.startswith("simulated:") and ErrorRates.parse(checker.partition(":")[2]) != ErrorRates():
            raise ValueError("a simulated checker checks without errors: set checker.model to simulated:0")
        return self

    @property
    def models(self) -> dict[str, ModelSettings]:
        """The models to ask, by role."""
        return {"writer": self.writer, **({"checker": self.checker} if self.checker else {})}


class DocumentRecipe(ModelRecipe):
    """Settings of the recipes that start from documents.

    Attributes:
        documents: The documents.
    """

    documents: DocumentSettings


class CandidateRecipe(DocumentRecipe):
    """Settings of the recipes that judge answers.

    Attributes:
        candidates: The answers.
        tokenizer: "words", or a tokenizer's file, folder or Hub id. For training data, that of the model that will be
            trained, "words" by default; for a benchmark it measures lengths, approximately by default.
    """

    candidates: CandidateSettings
    tokenizer: str | None = None

    @model_validator(mode="after")
    def _has_recorded_answers(self) -> Self:
        if not self.candidates.recorded:
            return self
        if document_format(self.documents.place, self.documents.format) not in ("leval", "comparisons"):
            raise ValueError('candidates.recorded needs documents.format = "leval" or "comparisons"')
        return self

    def read(self) -> Iterator[Document]:
        """Reads every document with its candidates, always in the same order."""
        documents, path = self.documents.read(), self.candidates.path
        if path is not None:
            written = read_candidates(Path(path).expanduser())
            documents = join_candidates(documents, written, all_documents=self.documents.limit is None)
        elif not self.candidates.recorded:
            documents = (replace(document, candidates=()) for document in documents)
        return with_synthetic(documents, self.seed) if self.candidates.synthetic else documents

    def provenance(self) -> list[dict[str, str]]:
        """The sources for the manifest."""
        found, path = [self.documents.provenance()], self.candidates.path
        if path is not None:
            digest = digest_of(find_files(Path(path).expanduser()))
            found.append({"name": "candidates", "path": path, "sha256": digest})
        return found


class LabelingRecipe(CandidateRecipe):
    """Settings of `short-to-long` and `vote`: labels come from the short context, rows have the long one.

    Attributes:
        rows: "judgments" to imitate, each over its own context, for generative reward models; or "pairs", comparisons
            of the answers to one question by their scores over one long context, for discriminative ones.
        judge_reads: "short", only the critical chunks, as in the paper; or "long", the padded context, which makes
            naive long data for comparison: its labels are what a judge makes of a long context.
        domain: The rubric: "qa_faithfulness", "qa_helpfulness", "summary", "safety", "code" or "chat". Instructions are
            in the language of the question.
        lengths: Tokens of the prompts with the tokenizer's chat template; every row draws one that leaves room for its
            evidence.
        tolerance: Tokens by which a prompt may be shorter; it is never longer.
        chunk_size: Approximate tokens of a chunk at most.
        evidence_from: How critical chunks are found: "given" takes the document's `evidence` (a list of [start, end]
            characters), "retrieval" is lexical, and with "model" the (first) judge names them.
        max_chunks: The most chunks that retrieval takes.
        sufficiency: How it is checked that the critical chunks suffice. "words": they contain the gold answer, as it is
            if it has up to six words, else 60% of its words; "judge" asks the (first) judge; "none": no check.
        distractor_check: How chunks that answer the question, correctly or not, are kept out of the padding. "words":
            by the words of the gold answer and the question; "judge": the judge also reads the closest ones; "none": no
            check.
        in_document_share: The most of the padding that may be other chunks of the document itself.
        temperature: Of the judges; 0 takes the likeliest token each time.
    """

    rows: Literal["judgments", "pairs"] = "judgments"
    judge_reads: Literal["short", "long"] = "short"
    domain: str = "qa_faithfulness"
    lengths: Lengths = (4096,)
    tolerance: int = Field(16, ge=0)
    chunk_size: int = Field(128, ge=8)
    evidence_from: Literal["given", "retrieval", "model"] = "retrieval"
    max_chunks: int = Field(4, ge=1)
    sufficiency: Literal["words", "judge", "none"] = "words"
    distractor_check: Literal["words", "judge", "none"] = "words"
    in_document_share: float = Field(0.5, ge=0.0, le=1.0)
    temperature: float = Field(0.0, ge=0)

    @field_validator("domain")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in DOMAINS:
            raise ValueError(f"no domain '{name}'; {nearest(name, DOMAINS)}")
        return name


def digest_of(files: Sequence[Path]) -> str:
    """SHA-256 over the contents of some files, in order."""
    digest = hashlib.sha256()
    for path in files:
        with reading(path, ConfigError), path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
