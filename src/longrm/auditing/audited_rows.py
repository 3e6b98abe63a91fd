"""What an audit reads: rows of every kind as one, and what could not be read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from longrm.auditing.evidence_places import NOWHERE, EvidencePlaces, places_of, places_recorded, region_of
from longrm.auditing.result import FINDINGS, NOT_READ
from longrm.benchmarks import BENCHMARKS, BenchmarkSource, Leval, LoadedBenchmark, Probe, leval, load
from longrm.benchmarks.auditor import AuditFinding, Auditor
from longrm.benchmarks.long_rewardbench import TASKS
from longrm.data import read, read_demonstrations
from longrm.data.fields import group_of, whole_length
from longrm.data.files import find_files, raw_rows
from longrm.data.formats import recognize
from longrm.data.readers import Skipped
from longrm.errors import ConfigError, DataError, RunError
from longrm.reading import FieldError, cut, is_number, located, read_toml, reading, typed
from longrm.runs.folder import CONFIG, MANIFEST, read_manifest
from longrm.synthesis.inputs.documents import Document, document_of, is_leval, read_documents
from longrm.synthesis.labels.consensus import VotingSettings
from longrm.synthesis.labels.vote_verification import VoteVerification, verify_votes
from longrm.types import Comparison, Demonstration, Message, Span, message_text, text_of

LARGEST = VotingSettings(majority=0.0)
"""Judges whose scores are equal form a cluster, and the only largest one decides: the rules of released rows,
and of rows that do not lie in the folder of the run that wrote them."""
_SCORE = re.compile(r"\[\[?\s*(?:score\s*[:：]\s*)?(\d+(?:\.\d+)?)\s*(?:/\s*10\s*)?\]?\]\W*\Z", re.IGNORECASE)
_WITHOUT_ROWS = ("evaluation", "training", "scoring", "demo")
"""Kinds of runs whose folders hold no data set."""
_DOCUMENT = {"context", "question", "answer"}
_CANDIDATE = {"document", "model", "text"}
# Metrics of answers that are not expected to stand in the context.
_FREE = {"rouge_l", "chrf", "right_choices", "math_equality", "edit_similarity"}


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """One row, whatever it is: a "comparison", a "judgment", a "demonstration" or a "document".

    Rows about one document or context share their `group`. The context is the prompt where it is not known. `rest` is
    what distinguishes the row from others about its context: question and responses, and the prompt where no context is
    known. `responses` are the texts to choose from, or to learn; `ranks` are empty where there is no order. `label` is
    what is to be learned: the score of a judgment, or the metric of a document's answer. `votes` are counted again;
    `facts` are task, source and stated length, as far as they are told.
    """

    id: str
    kind: str
    group: str
    prompt: str
    context: str
    rest: str
    question: str = ""
    responses: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    places: EvidencePlaces = NOWHERE
    label: str = ""
    votes: VoteVerification | None = None
    facts: Mapping[str, Any] | None = None


class AuditedRows:
    """The rows of a path, read anew at every iteration.

    Args:
        path: A file or folder of rows in any format, of documents with `context`, `question` and `answer`,
            L-Eval's or Long-RewardBench's folder, or a run folder of `longrm synthesize`; or a benchmark's name
            with its path, such as `long-rewardbench:PATH`.
        format: A key of `longrm.data.FORMATS`, "demonstrations", "documents" or "leval"; None tells by the columns.
        columns: As `longrm.data.read` takes them.

    Attributes:
        format: The format.
        origin: The manifest of the run that made the rows; empty where they do not lie in its folder.
        unreadable: What the latest iteration could not read so far.
        noted: What else only reading could see, once an iteration is complete, such as L-Eval's repeated documents.

    Raises:
        ConfigError: The columns of what is read are given, and cannot be renamed.
        DataError: There is nothing to read, it is in no known format, or it is a run that makes no rows.
        RunError: The manifest is damaged.
    """

    def __init__(
        self, path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        name, _, place = str(path).partition(":")
        named = bool(place) and name in BENCHMARKS
        folder = Path(place) if named else Path(path)
        with reading(folder, DataError):
            self.origin = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
            _check_rows_of(folder, self.origin)
            if not named and format is None and _is_long_rewardbench(folder):
                named, name, path = True, "long-rewardbench", f"long-rewardbench:{path}"
        self._path = folder
        self._benchmark = str(path) if named else ""
        self._told_format, self._columns = format, columns
        self._rules = _rules_of(folder, self.origin)
        self.format = name if named else format or _recognized(self._path, columns)
        if columns and self.format == "leval":
            raise ConfigError("the columns of L-Eval are its own; leave --columns out")
        self.unreadable = _unreadable()
        self.noted: dict[str, AuditFinding] = {}

    def __iter__(self) -> Iterator[AuditedRow]:
        self.unreadable = _unreadable()
        if self._benchmark:
            bench = benchmark(self._benchmark, self._columns)
            rows = map(of_comparison, bench.comparisons)
            yield from rows if bench.states_length else map(_without_length, rows)
            self._note(bench.audit)
            return
        if self.format == "leval":
            auditor = Auditor(leval.FINDINGS)
            yield from map(of_document, read_documents(self._path, "leval", auditor))
            self._note(auditor)
            return
        for row, skipped in self._rows():
            self.unreadable = _unreadable(skipped.count, skipped.messages)
            if row is not None:
                yield row

    def _note(self, seen: Auditor | None) -> None:
        """Takes over what a benchmark's own audit found; what an audit looks for itself is left to it."""
        found = {} if seen is None else seen.findings
        if "unreadable_rows" in found:
            self.unreadable = _unreadable(found["unreadable_rows"].count, found["unreadable_rows"].examples)
        self.noted = {
            kind: one for kind, one in found.items() if one.count and kind not in (*FINDINGS, "duplicates")
        }

    def _rows(self) -> Iterator[tuple[AuditedRow | None, Skipped]]:
        if self.format == "documents":
            skipped = Skipped()
            for raw in raw_rows(find_files(self._path), columns=self._columns):
                row, fault = None, raw.message
                if raw.value is not None:
                    try:
                        row = of_document(document_of(raw.value, raw.number, raw.place))
                    except DataError as error:
                        fault = str(error)
                skipped = skipped if row else skipped.with_one_more(fault)
                yield row, skipped
        elif self.format == "demonstrations":
            demonstrations = read_demonstrations(self._path, on_bad_row="skip", columns=self._columns)
            for demonstration in demonstrations:
                yield of_demonstration(demonstration.demonstration), demonstrations.skipped
            yield None, demonstrations.skipped
        else:
            comparisons = read(self._path, format=self._told_format, on_bad_row="skip", columns=self._columns)
            for one in comparisons:
                yield of_comparison(one.comparison, *self._rules), comparisons.skipped
            yield None, comparisons.skipped


def _check_rows_of(folder: Path, origin: Mapping[str, Any]) -> None:
    """Refuses the folder of a run that makes no rows to be audited, and says what shows it."""
    kind = origin.get("kind")
    if kind not in _WITHOUT_ROWS:
        return
    instead = ""
    if kind == "evaluation":
        told = read_toml(folder / CONFIG, ConfigError) if (folder / CONFIG).is_file() else {}
        asked, source = str(told.get("bench", "")), told.get("source")
        columns = source.get("columns") if isinstance(source, dict) else None
        named = [f"{name}={own}" for name, own in columns.items()] if isinstance(columns, dict) else []
        flag = f" --columns {','.join(named)}" if named else ""
        audited = f"; what it judged is audited by: longrm audit {asked}{flag}" if ":" in asked else ""
        instead = f"; see it with: longrm report {folder!s}{audited}"
    raise DataError(
        located(folder, f"the folder of a run ({kind}), which holds no rows of a data set{instead}")
    )


def _without_length(row: AuditedRow) -> AuditedRow:
    return replace(row, facts={name: fact for name, fact in (row.facts or {}).items() if name != "length"})


def _unreadable(count: int = 0, examples: tuple[str, ...] = ()) -> AuditFinding:
    return AuditFinding(FINDINGS["unreadable_rows"], count, examples)


def _rules_of(folder: Path, origin: Mapping[str, Any]) -> tuple[VotingSettings, Mapping[str, float] | None]:
    """By which votes are counted: those of the run that wrote the rows, where their folder tells them."""
    settings = folder / CONFIG
    told = read_toml(settings, ConfigError).get("voting") if origin and settings.is_file() else None
    agreement = typed(_AGREEMENT, origin.get("agreement"), folder / MANIFEST, RunError)
    if told is not None and not isinstance(told, dict):
        raise RunError(f"{settings}, field 'voting': needs a group of settings")
    weights = None if agreement is None else agreement.weights
    return LARGEST if told is None else VotingSettings.resolve(None, told), weights


class _Agreement(BaseModel):
    weights: dict[str, float] | None = None


_AGREEMENT: TypeAdapter[_Agreement | None] = TypeAdapter(_Agreement | None)


def benchmark(name: str, columns: Mapping[str, str] | None = None) -> LoadedBenchmark:
    """A benchmark by its name and path, rows that cannot be read left out.

    Raises:
        ConfigError: An unknown name, or columns that are to be renamed of a benchmark whose columns are given.
        DataError: There is nothing to read.
    """
    source = BenchmarkSource(on_bad_row="skip", columns=columns)
    return load(name, source=source, probe=Probe(), leval=Leval())


def of_comparison(
    row: Comparison, voting: VotingSettings = LARGEST, weights: Mapping[str, float] | None = None
) -> AuditedRow:
    """The row to audit of a comparison, or of a row of judgments, whose votes are counted again by these rules."""
    prompt, responses = text_of(row.prompt), tuple(map(text_of, row.responses))
    question = _between(row.prompt, row.question)
    places = places_of(row.evidence, row.context or region_of(row.prompt))
    if row.role == "judgment" and not row.evidence:
        places = places_recorded(row.metadata, row.prompt)
        if not places.depths and "context" in row.metadata:  # where released rows name their critical chunk
            places = EvidencePlaces(missing=True)
    return AuditedRow(
        id=row.id,
        kind="judgment" if row.role == "judgment" else "comparison",
        group=row.group,
        prompt=prompt,
        context="\n".join(_between(row.prompt, span) for span in row.context) or prompt,
        rest="\n".join([question if row.context and question else prompt, *sorted(responses)]),
        question=question,
        responses=responses,
        ranks=row.ranks or (),
        places=places,
        label=_score_of(row.metadata, responses[row.best_first()[0]] if row.ranks else "")
        if row.role == "judgment"
        else "",
        votes=verify_votes(row, voting, weights),
        facts=_facts(row.metadata),
    )


def of_demonstration(row: Demonstration) -> AuditedRow:
    """The row to audit of a demonstration; `evidence`, or else `depths`, and `question` of our own rows are used."""
    prompt, completion = text_of(row.prompt), text_of(row.completion)
    group = row.metadata.get("group") or row.metadata.get("document") or group_of({}, row.prompt, (), None)
    asked = row.metadata.get("question")
    question = asked if isinstance(asked, str) else ""
    return AuditedRow(
        id=row.id,
        kind="demonstration",
        group=str(group),
        prompt=prompt,
        context=prompt,
        rest=f"{question or prompt}\n{completion}",
        question=question,
        responses=(completion,),
        places=places_recorded(row.metadata, row.prompt),
        label=_score_of(row.metadata, completion),
        facts=_facts(row.metadata),
    )


def of_document(document: Document) -> AuditedRow:
    """The row to audit of a document.

    Its gold answer is evidence where it stands in the text, word for word and once: one that comes up again and again
    may mean anything. It is missed only where a metric compares words, and not choices, numbers or summaries.
    """
    answer = document.answer.strip()
    found = _places(answer, document.text) if answer and document.metric not in _FREE else None
    around = len(document.text) - len(answer)
    once = found is not None and len(found) == 1 and around > 0
    return AuditedRow(
        id=document.id,
        kind="document",
        group=document.group,
        prompt=f"{document.text}\n{document.question}",
        context=document.text,
        rest=f"{document.question}\n{document.answer}",
        question=document.question,
        responses=(document.answer,),
        places=EvidencePlaces((found[0] / around,), (len(answer) / len(document.text),))
        if found and once
        else EvidencePlaces(missing=found == []),
        label=document.metric or "a judge only",
        facts=_facts({"task": document.task, **document.metadata}),
    )


def _places(answer: str, text: str) -> list[int]:
    """Where an answer begins in a text, as whole words; two places at most."""
    wanted = rf"(?<![A-Za-z0-9]){re.escape(answer)}(?![A-Za-z0-9])"
    return [match.start() for match in islice(re.finditer(wanted, text, re.IGNORECASE), 2)]


def _recognized(path: Path, columns: Mapping[str, str] | None) -> str:
    if is_leval(path):
        return "leval"
    rows = raw_rows(find_files(path), columns=columns)
    first = next(rows, None)
    row = next((raw for raw in chain([first], rows) if raw is not None and raw.value is not None), None)
    if row is None or row.value is None:
        reason = f"; the first: {first.message}" if first else ""
        raise DataError(located(path, f"no row that can be read{reason}"))
    filled = {name for name, value in row.value.items() if value is not None}
    if filled & {"golden", "completion"} and not filled & {"chosen", "responses", "candidates"}:
        return "demonstrations"
    name = recognize(filled)
    if name is None and filled >= _DOCUMENT:
        return "documents"
    if filled >= _CANDIDATE:
        raise DataError(
            f"{path}: these are candidates, which nobody has judged yet; audit what `longrm synthesize` "
            "makes of them"
        )
    if name is None:
        names = cut(", ".join(sorted(filled)))
        raise DataError(
            located(
                row.place,
                f"the columns ({names}) are of no known format; say what yours are called, as "
                "--columns prompt=QUESTION,chosen=GOOD does",
            )
        )
    return name


def _is_long_rewardbench(folder: Path) -> bool:
    """Whether all that a folder has to read is files with the names of that benchmark's tasks."""
    try:
        return folder.is_dir() and all(file.name.split(".")[0] in TASKS for file in find_files(folder))
    except DataError:
        return False


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Task, source and stated length in tokens, by the names that data sets have for them."""
    names = {
        "task": ("task", "domain", "perspective", "subset"),
        "source": ("source",),
        "length": ("length", "prompt_ctx_length"),
    }
    found: dict[str, Any] = {}
    for fact, columns in names.items():
        value = next((metadata[name] for name in columns if metadata.get(name) not in (None, "")), None)
        if fact == "length":
            with suppress(FieldError):
                found[fact] = whole_length(value, fact)
        elif isinstance(value, str | int | float):
            found[fact] = value
    return found


def _score_of(metadata: Mapping[str, Any], judgment: str) -> str:
    """The score of the judgment to learn: as recorded, else as written at its end; `NOT_READ` otherwise."""
    scores, chosen = metadata.get("scores"), metadata.get("chosen_model")
    told = scores.get(chosen) if isinstance(chosen, str) and isinstance(scores, Mapping) else None
    recorded = told if isinstance(scores, Mapping) else metadata.get("score")
    if is_number(recorded):
        return f"{recorded:g}"
    written = _SCORE.search(judgment[-200:])
    return f"{float(written[1]):g}" if written else NOT_READ


def _between(prompt: Sequence[Message], span: Span | None) -> str:
    return "" if span is None else message_text(prompt[span.message])[span.start : span.end]
