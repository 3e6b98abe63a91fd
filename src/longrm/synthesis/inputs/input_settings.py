"""What every kind of synthesis begins with: documents, and answers to their questions that are to be judged."""

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from longrm.benchmarks import leval
from longrm.benchmarks.auditor import Auditor
from longrm.config import Config
from longrm.data.files import find_files
from longrm.errors import ConfigError
from longrm.reading import reading
from longrm.synthesis.inputs.candidates import (
    CandidateAnswer,
    SynthesisInput,
    join_candidates,
    read_candidates,
)
from longrm.synthesis.inputs.documents import Document, is_leval, read_answered, read_compared, read_documents
from longrm.synthesis.inputs.source_texts import SourceText, read_source_texts
from longrm.synthesis.inputs.synthetic_negatives import with_synthetic
from longrm.types import text_of

_BLOCK = 1 << 20


class DocumentSettings(Config):
    """Where documents come from.

    Attributes:
        path: A file or folder of rows with `context`, `question`, `answer`; L-Eval's folder; a folder of `.txt` and
            `.md` with rows about them, `file`, `question`, `answer`, in `questions.csv` or `questions.jsonl`; or
            comparisons whose context and question are known, such as `longrm world` writes.
        format: "jsonl" (rows in any file), "leval", "texts" or "comparisons"; by default one of the first three,
            whichever is there.
        license: Of the texts, as manifest and data card pass it on.
        name: What the source is called there; by default the last part of the path.
        limit: Reads so many documents only; all by default.
    """

    path: str
    format: str | None = None
    license: str = "unknown"
    name: str = ""
    limit: int | None = Field(None, ge=1)

    def read(self) -> Iterator[Document]:
        """Reads them, one by one, always in the same order; see `documents.read_documents` for the errors."""
        return islice(read_documents(self._place, self.format), self.limit)

    def read_texts(self) -> Iterator[SourceText]:
        """Reads their texts alone, in the same order; see `source_texts.read_source_texts` for the errors."""
        return islice(read_source_texts(self._place, self.format), self.limit)

    def answered(self) -> Iterator[SynthesisInput]:
        """Reads them with the answers that the source itself holds: L-Eval's models', or a comparison's responses."""
        found = self._of_comparisons() if self.format == "comparisons" else self._of_leval()
        return islice(found, self.limit)

    def _of_leval(self) -> Iterator[SynthesisInput]:
        for document, answers in read_answered(self._place, Auditor(leval.FINDINGS)):
            written = (CandidateAnswer(document.id, model, text) for model, text in answers.items())
            yield SynthesisInput(document, tuple(written))

    def _of_comparisons(self) -> Iterator[SynthesisInput]:
        """The best response has the score 1 and the worst 0."""
        for document, comparison in read_compared(self._place):
            assert comparison.ranks is not None, "checked by the reader"
            worst = max(comparison.ranks)
            listed = zip(comparison.responses, comparison.ranks, strict=True)
            yield SynthesisInput(
                document,
                tuple(
                    CandidateAnswer(
                        document.id,
                        f"listed {number}",
                        text_of(response),
                        score=(worst - rank) / max(worst - 1, 1),
                    )
                    for number, (response, rank) in enumerate(listed, start=1)
                ),
            )

    def provenance(self) -> dict[str, str]:
        """What a manifest says of this source: name, license, path, and the SHA-256 of all its files."""
        place = self._place
        with reading(place, ConfigError):
            files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
        return {
            "name": self.name or Path(os.path.realpath(place)).name,
            "license": self.license,
            "path": self.path,
            "sha256": digest_of(files),
        }

    @property
    def holds_answers(self) -> bool:
        """Whether the source itself holds answers to its questions."""
        return self.format in ("leval", "comparisons") or (self.format is None and is_leval(self._place))

    @property
    def _place(self) -> Path:
        return Path(self.path).expanduser()


class CandidateSettings(Config):
    """Which answers are judged; several kinds may be asked for at once.

    Attributes:
        path: What `longrm synthesize responses` wrote, a run folder or a file, in the documents' order.
        recorded: The answers that the documents' source holds: those of five models in L-Eval, or the responses of
            comparisons.
        synthetic: The gold answer, and synthetic negatives made of it: they fill the grades that models leave empty,
            at no cost.
    """

    path: str | None = None
    recorded: bool = False
    synthetic: bool = False

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if self.path is None and not self.recorded and not self.synthetic:
            raise ValueError(
                "no candidates: give candidates.path (what `longrm synthesize responses` wrote), "
                "candidates.recorded = true (the source's own), or candidates.synthetic = true (from gold answers)"
            )
        if self.path is not None and self.recorded:
            raise ValueError("candidates come from candidates.path or are the recorded ones, not both")
        return self


class InputSettings(Config):
    """Documents and candidates, the beginning of a recipe.

    Attributes:
        documents: Where documents come from.
        candidates: Which answers to their questions are judged.
        seed: Of all draws.
    """

    documents: DocumentSettings
    candidates: CandidateSettings
    seed: int = 0

    @model_validator(mode="after")
    def _has_recorded(self) -> Self:
        if self.candidates.recorded and not self.documents.holds_answers:
            raise ValueError('candidates.recorded needs documents.format = "leval" or "comparisons"')
        return self

    def read(self) -> Iterator[SynthesisInput]:
        """Reads every document with its candidates, always in the same order."""
        candidates = self.candidates
        if candidates.recorded:
            found = self.documents.answered()
        elif candidates.path is not None:
            written = read_candidates(Path(candidates.path).expanduser())
            found = join_candidates(
                self.documents.read(),
                written,
                all_documents=self.documents.limit is None,
                place=candidates.path,
            )
        else:
            found = (SynthesisInput(document, ()) for document in self.documents.read())
        return with_synthetic(found, self.seed) if candidates.synthetic else found

    def provenance(self) -> list[dict[str, str]]:
        """What a manifest says of the sources."""
        found = [self.documents.provenance()]
        path = self.candidates.path
        if path is not None:
            found.append(
                {"name": "candidates", "path": path, "sha256": digest_of(find_files(Path(path).expanduser()))}
            )
        return found


def digest_of(files: list[Path]) -> str:
    """SHA-256 over the contents of some files, in their order.

    Raises:
        ConfigError: One cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        with reading(path, ConfigError), path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
