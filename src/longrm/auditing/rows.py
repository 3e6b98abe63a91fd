"""The rows of an audit: comparisons, judgments, demonstrations and documents in one form."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from longrm.auditing.trajectories import trajectory_problems, uses_tools
from longrm.benchmarks import BENCHMARKS, BenchmarkSource, LoadedBenchmark, leval, load
from longrm.benchmarks.benchmark import AuditFinding, Auditor
from longrm.column_names import Columns
from longrm.data import read, read_demonstrations
from longrm.data.fields import group_of, whole_length
from longrm.data.files import find_files, raw_rows
from longrm.data.formats import JUDGE_PROMPT, describe_unknown, recognize
from longrm.data.readers import Skipped
from longrm.data.trajectories import has_steps, read_trajectories
from longrm.errors import ConfigError, DataError
from longrm.reading import FieldError, is_number, located
from longrm.runs.folder import MANIFEST, read_manifest
from longrm.synthesis.documents import Document, document_of, is_leval, leval_documents
from longrm.synthesis.voting import verify_votes
from longrm.types import Comparison, Demonstration, Message, Span, Trajectory, message_text, text_of

NOT_READ = "not read"
"""The label of a completion that does not end with a score."""

_SCORE = re.compile(r"\[\[?\s*(?:score\s*[:：]\s*)?(\d+(?:\.\d+)?)\s*(?:/\s*10\s*)?\]?\]\W*\Z", re.IGNORECASE)
_CONTEXT = re.compile(r"<(context(?:-\d+)?)>\n")  # the start of longrm's own judging prompts
_SPANS = TypeAdapter(tuple[Span, ...])
_KINDS_WITHOUT_ROWS = ("evaluation", "training", "scoring", "demo")
# Metrics of answers that need not appear word for word in the context.
_FREE_METRICS = {"rouge_l", "chrf", "right_choices", "math_equality", "edit_similarity"}


class Evidence(NamedTuple):
    """The evidence that a row names: where it is in the context, and whether some of it is not there."""

    # By piece: its depth (the share of the rest of the context before it) and its share of the context.
    pieces: tuple[tuple[float, float], ...] = ()
    missing: bool = False


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """One row of any kind."""

    id: str
    kind: str  # "comparison", "judgment", "demonstration", "trajectory" or "document"
    group: str  # shared by rows about one document or context
    prompt: str
    context: str  # the prompt where the context is not known
    rest: str  # what distinguishes rows about one context: question (or prompt) and responses
    question: str
    responses: tuple[str, ...]  # to choose from, or to learn
    evidence: Evidence
    # The target: the score of a judgment, the metric of a document's answer, or what the labels of steps are
    label: str
    facts: dict[str, Any]  # task, source and stated length, where the row has them
    ranks: tuple[int, ...] = ()  # empty without a gold order
    contrast: str = (
        ""  # of a judgment with its judges' scores: what sets the rejected ones apart from the chosen one
    )
    labeled_bad: bool = False
    uses_tools: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)  # of its trajectories: by kind, the first one


class AuditedRows:
    """The rows of a path; every iteration reads them again.

    Args:
        path: As for `longrm.audit`.
        format: A key of `longrm.data.FORMATS`, "demonstrations", "documents" or "leval"; by default recognized.
        columns: As for `longrm.data.read`.

    Attributes:
        format: The format.
        skipped: The rows that the latest iteration could not read.
        noted: What only the reader of a benchmark can find, such as L-Eval's repeated documents.
    """

    def __init__(self, path: str | Path, format: str | None = None, columns: Columns | None = None) -> None:
        name, _, place = str(path).partition(":")
        self._benchmark = str(path) if place and name in BENCHMARKS else ""
        self._path = Path(place) if self._benchmark else Path(path)
        if (self._path / MANIFEST).is_file():
            kind = read_manifest(self._path)["kind"]
            if kind in _KINDS_WITHOUT_ROWS:
                raise DataError(
                    f"{self._path}: a run of kind '{kind}' has no rows; audit the data that it read"
                )
        self._given_format, self._columns = format, columns
        self.format = name if self._benchmark else format or _recognized(self._path, columns)
        if columns and self.format == "leval":
            raise ConfigError("--columns is not supported for L-Eval")
        self.skipped = Skipped()
        self.noted: dict[str, AuditFinding] = {}

    def __iter__(self) -> Iterator[AuditedRow]:
        if self._benchmark:
            bench = benchmark(self._benchmark, self._columns)
            for trajectory in bench.trajectories or ():
                yield _of_trajectory(trajectory)
            if bench.trajectories is not None:
                self.noted = dict(bench.trajectories.findings)
                return
            for comparison in bench.comparisons:
                row = of_comparison(comparison)
                if not bench.states_length:  # then its reader has measured the length itself
                    row.facts.pop("length", None)
                yield row
            self._take_findings(bench.audit)
        elif self.format == "leval":
            auditor = Auditor(leval.FINDINGS)
            yield from map(_of_document, leval_documents(self._path, auditor))
            self._take_findings(auditor)
        elif self.format == "documents":
            yield from self._documents()
        elif self.format == "trajectories":
            trajectories = read_trajectories(self._path, on_bad_row="skip", columns=self._columns)
            for read_one in trajectories:
                yield _of_trajectory(read_one.trajectory)
            self.skipped = trajectories.skipped
        elif self.format == "demonstrations":
            demonstrations = read_demonstrations(self._path, on_bad_row="skip", columns=self._columns)
            for demonstration in demonstrations:
                yield _of_demonstration(demonstration.demonstration)
            self.skipped = demonstrations.skipped
        else:
            rows = read(self._path, format=self._given_format, on_bad_row="skip", columns=self._columns)
            for one in rows:
                yield of_comparison(one.comparison)
            self.skipped = rows.skipped

    def _documents(self) -> Iterator[AuditedRow]:
        self.skipped = Skipped()
        for raw in raw_rows(find_files(self._path), columns=self._columns):
            try:
                document = document_of(raw.checked(), raw.number, raw.place)
            except DataError as error:
                self.skipped = self.skipped.with_one_more(str(error))
            else:
                yield _of_document(document)

    def _take_findings(self, auditor: Auditor | None) -> None:
        """Takes over what a benchmark's own audit found."""
        self.noted = {} if auditor is None else dict(auditor.findings)
        if unreadable := self.noted.pop("unreadable_rows", None):
            self.skipped = Skipped(unreadable.count, unreadable.examples)


def benchmark(name: str, columns: Columns | None = None) -> LoadedBenchmark:
    """A benchmark by its name and path; rows that cannot be read are skipped."""
    source = BenchmarkSource(on_bad_row="skip", columns=columns)
    return load(name, source=source)


def _recognized(path: Path, columns: Columns | None) -> str:
    """The format, by the columns of the first row that can be read."""
    if is_leval(path):
        return "leval"
    rows = raw_rows(find_files(path), columns=columns)
    row = first = next(rows, None)
    while row is not None and row.value is None:
        row = next(rows, None)
    if row is None or row.value is None:
        raise DataError(f"{path}: no row can be read{f'; the first: {first.message}' if first else ''}")
    filled = {name: value for name, value in row.value.items() if value is not None}
    if has_steps(filled):
        return "trajectories"
    if filled.keys() & {"golden", "completion"} and not filled.keys() & {"chosen", "responses", "candidates"}:
        return "demonstrations"
    name = recognize(filled)
    if name is None and filled.keys() >= {"context", "question", "answer"}:
        return "documents"
    if name is None:
        message = describe_unknown(filled)
        if filled.keys() >= JUDGE_PROMPT:
            message = "judging prompts are not audited; audit the comparisons that they were made of"
        raise DataError(located(row.place, message))
    return name


def of_comparison(row: Comparison) -> AuditedRow:
    """The row of a comparison, or of judgments."""
    prompt, responses = text_of(row.prompt), tuple(map(text_of, row.responses))
    question = _span_text(row.prompt, row.question)
    evidence = _locate(row.evidence, row.context or _region(row.prompt))
    label, is_judgment = "", row.role == "judgment"
    if is_judgment:
        label = _score_of(row.metadata, responses[row.best_first()[0]] if row.ranks else "")
        if not row.evidence:
            evidence = _recorded_evidence(row.metadata, row.prompt)
            # Released rows name their critical chunk as "context".
            if not evidence.pieces and "context" in row.metadata:
                evidence = Evidence(missing=True)
    return AuditedRow(
        id=row.id,
        kind="judgment" if is_judgment else "comparison",
        group=row.group,
        prompt=prompt,
        context="\n".join(_span_text(row.prompt, span) for span in row.context) or prompt,
        rest="\n".join([question if row.context and question else prompt, *sorted(responses)]),
        question=question,
        responses=responses,
        evidence=evidence,
        label=label,
        facts=_facts(row.metadata),
        ranks=row.ranks or (),
        contrast=votes.contrast if (votes := verify_votes(row)) else "",
        **_trajectories([[*row.prompt, *response] for response in row.responses]),
    )


def _of_demonstration(row: Demonstration) -> AuditedRow:
    prompt, completion = text_of(row.prompt), text_of(row.completion)
    group = row.metadata.get("group") or row.metadata.get("document") or group_of({}, row.prompt, (), None)
    question = row.metadata.get("question")
    question = question if isinstance(question, str) else ""
    return AuditedRow(
        id=row.id,
        kind="demonstration",
        group=str(group),
        prompt=prompt,
        context=prompt,
        rest=f"{question or prompt}\n{completion}",
        question=question,
        responses=(completion,),
        evidence=_recorded_evidence(row.metadata, row.prompt),
        label=_score_of(row.metadata, completion),
        facts=_facts(row.metadata),
        labeled_bad=row.label is False,
        **_trajectories([[*row.prompt, *row.completion]]),
    )


def _of_trajectory(row: Trajectory) -> AuditedRow:
    """The row of a trajectory; its steps are the response."""
    messages = [message for step in row.steps for message in step]
    prompt, wrong = text_of(row.prompt), any(label is not None and label < 0 for label in row.labels)
    outcome = {True: "success", False: "failure", None: "outcome unknown"}[row.success]
    steps = "no labels" if not row.labels else "a wrong step" if wrong else "no wrong step"
    return AuditedRow(
        id=row.id,
        kind="trajectory",
        group=row.group,
        prompt=prompt,
        context=prompt,
        rest=f"{prompt}\n{text_of(messages)}",
        question="",
        responses=(text_of(messages),),
        evidence=Evidence(),
        label=f"{steps}, {outcome}",
        facts={name: value for name, value in _facts(row.metadata).items() if name != "length"},
        **_trajectories([[*row.prompt, *messages]]),
    )


def _trajectories(conversations: Sequence[Sequence[Message]]) -> dict[str, Any]:
    """The fields of an audited row about its trajectories."""
    problems: dict[str, str] = {}
    for number, messages in enumerate(conversations, start=1):
        for kind, problem in trajectory_problems(messages):
            problems.setdefault(kind, f"response {number}, {problem}" if len(conversations) > 1 else problem)
    return {"uses_tools": any(map(uses_tools, conversations)), "problems": problems}


def _of_document(document: Document) -> AuditedRow:
    """The row of a document.

    Its gold answer is evidence if it appears in the text exactly once, as whole words: one that appears more often may
    mean anything. It is only missing where the metric compares words, not choices, numbers or summaries.
    """
    answer, text = document.answer.strip(), document.text
    evidence = Evidence()
    if answer and document.metric not in _FREE_METRICS:
        words = rf"(?<![A-Za-z0-9]){re.escape(answer)}(?![A-Za-z0-9])"
        found = [match.start() for match in islice(re.finditer(words, text, re.IGNORECASE), 2)]
        evidence = Evidence(missing=not found)
        if len(found) == 1 and len(text) > len(answer):
            evidence = Evidence(((found[0] / (len(text) - len(answer)), len(answer) / len(text)),))
    return AuditedRow(
        id=document.id,
        kind="document",
        group=document.group,
        prompt=f"{text}\n{document.question}",
        context=text,
        rest=f"{document.question}\n{document.answer}",
        question=document.question,
        responses=(document.answer,),
        evidence=evidence,
        label=document.metric or "a judge only",
        facts=_facts({"task": document.task, **document.metadata}),
    )


def _locate(spans: Sequence[Span], regions: Sequence[Span]) -> Evidence:
    """Locates spans of evidence within the regions of a context, which are in reading order."""
    total = sum(region.end - region.start for region in regions)
    pieces, missing = [], False
    for span in spans:
        size = span.end - span.start
        before = 0  # characters of the context before the region
        for region in regions:
            if region.message == span.message and region.start <= span.start <= span.end <= region.end:
                if size < total:  # evidence that is all of the context has no depth
                    pieces.append(((before + span.start - region.start) / (total - size), size / total))
                break
            before += region.end - region.start
        else:
            missing = True
    return Evidence(tuple(pieces), missing)


def _recorded_evidence(metadata: Mapping[str, Any], prompt: Sequence[Message]) -> Evidence:
    """The evidence that a synthesized row records in its metadata."""
    try:
        spans = _SPANS.validate_python(metadata.get("evidence") or ())
    except ValidationError:
        return Evidence(missing=True)
    return _locate(spans, _region(prompt))


def _region(prompt: Sequence[Message]) -> tuple[Span, ...]:
    """The context block of one of longrm's judging prompts, or the whole prompt."""
    texts = [message_text(message) for message in prompt]
    block = _CONTEXT.match(texts[-1]) if texts else None
    end = texts[-1].find(f"\n</{block[1]}>", block.end()) if block else -1
    if block is not None and end > block.end():
        return (Span(len(texts) - 1, block.end(), end),)
    return tuple(Span(number, 0, len(text)) for number, text in enumerate(texts))


def _span_text(prompt: Sequence[Message], span: Span | None) -> str:
    return "" if span is None else message_text(prompt[span.message])[span.start : span.end]


def _facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Task, source and stated length in tokens, under the column names of known data sets."""

    def first(*columns: str) -> Any:
        return next((metadata[name] for name in columns if metadata.get(name) not in (None, "")), None)

    facts = {"task": first("task", "domain", "perspective", "subset"), "source": first("source")}
    facts = {fact: value for fact, value in facts.items() if isinstance(value, str | int | float)}
    with suppress(FieldError):
        facts["length"] = whole_length(first("length", "prompt_ctx_length"), "length")
    return facts


def _score_of(metadata: Mapping[str, Any], judgment: str) -> str:
    """The score of the judgment to learn: as recorded, else as written at its end, else `NOT_READ`."""
    scores, chosen = metadata.get("scores"), metadata.get("chosen_model")
    recorded = metadata.get("score")
    if isinstance(scores, Mapping):
        recorded = scores.get(chosen) if isinstance(chosen, str) else None
    if is_number(recorded):
        return f"{recorded:g}"
    written = _SCORE.search(judgment[-200:])
    return f"{float(written[1]):g}" if written else NOT_READ
