"""One pass over a data set of any size: only small things are kept of each row."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from longrm.auditing.duplicates import Duplicates, Leakage
from longrm.auditing.measures import (
    Bias,
    BiasMeasure,
    DepthMeasure,
    Depths,
    LengthMeasure,
    Lengths,
    VoteMeasure,
    Votes,
)
from longrm.auditing.rows import AuditedRow, AuditedRows
from longrm.benchmarks.benchmark import AuditFinding, FindingCounter, bucket
from longrm.column_names import ColumnNames
from longrm.config import Config
from longrm.errors import DataError
from longrm.runs.progress import Progress, no_progress

SCHEMA_VERSION = 1

FINDINGS: Mapping[str, str] = {
    "unreadable_rows": "rows that could not be read; excluded from all other counts",
    "exact_duplicates": "rows whose prompt and responses repeat those of an earlier row",
    "near_duplicates": "rows whose question and responses nearly repeat an earlier row about the same context",
    "repeated_elsewhere": "rows whose question and responses nearly repeat a row about another context",
    "near_contexts": "contexts that nearly repeat one of another group: groups that are not independent, or one "
    "document on both sides of a split",
    "leaked_contexts": "rows whose context shares text with a benchmark's",
    "leaked_questions": "rows whose question is word for word in a benchmark",
    "leaked_responses": "rows whose response shares text with a benchmark's",
    "without_contrast": "rows whose rejected judgments all give the chosen one's score",
    "contrast_of_form_only": "rows whose rejected judgments give the chosen one's score or no readable score",
    "ties": "comparisons in which all gold ranks are the same",
    "unknown_order": "comparisons without gold ranks",
    "empty_responses": "rows with an empty response",
    "evidence_not_found": "rows with an answer or evidence that is not in their context",
    "lengths_off": "rows whose stated length is more than twice or less than half of the measured length",
    "rows_not_as_counted": "rows more or fewer than the run's manifest counts",
    "length_shortcut": "pairs that are decided right by the length of the responses alone; equal lengths count half",
    "unfinished_run": "the run that writes these rows has not finished",
}
"""What an audit looks for, where its rows have what is needed; it lists only what it looked for."""

# Findings that are not counted row by row.
_OF_THE_WHOLE = ("rows_not_as_counted", "unfinished_run", "length_shortcut")


class AuditSettings(Config):
    """Settings of `longrm audit`.

    Attributes:
        tokenizers: What measures lengths: "words", or files, folders or Hub ids of tokenizers; by default words and
            punctuation marks are counted, which approximates tokens.
        format: The rows' format; by default recognized from the columns.
        columns: The names in the file of columns that longrm calls otherwise, as `prompt = "question"`.
        similarity_threshold: Jaccard similarity of word 5-grams from which on two texts are near duplicates.
        against: Benchmarks that the rows must not share text with, by name, such as `leval:PATH`.
        ngram: Words of the n-grams by which leakage is measured: longer than what two texts share by chance.
        leakage_threshold: A row has leaked if this share of its n-grams is in benchmark texts, or this share of the
            n-grams of one benchmark text is in the row.
        seed: Seed of the bootstrap.
    """

    tokenizers: tuple[str, ...] = ()
    format: str | None = None
    columns: ColumnNames | None = None
    similarity_threshold: float = Field(0.8, gt=0, lt=1)
    against: tuple[str, ...] = ()
    ngram: int = Field(13, ge=1)
    leakage_threshold: float = Field(0.5, gt=0, le=1)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DataSetAudit:
    """The result of an audit.

    Attributes:
        path: What was read.
        format: Its format.
        kinds: Rows by kind: comparison, judgment, demonstration, document.
        groups: Different documents or contexts, as far as is known.
        counts: Rows by task, source, stated length and number of responses.
        labels: Rows by the score of the judgment to learn, or by the metric of a document's answer.
        lengths: By tokenizer, the lengths of "prompts", "contexts" and "responses".
        depths: Where in their contexts the evidence is.
        places: Comparisons with one best response, by its place in the list, from 1.
        first: How often the best response is listed first; undefined where the format lists it first by rule.
        longer: How often the better of two responses is the longer one in characters: the pair accuracy of
            `baseline:longest`, where equal lengths count half.
        votes: The votes of judgment rows; None where no row has them.
        findings: All that was looked for: those of `FINDINGS` and those of a benchmark.
        settings: The settings.
        origin: The manifest of the run that made the rows; empty outside of a run folder.
    """

    path: str
    format: str
    kinds: Mapping[str, int]
    groups: int
    counts: Mapping[str, Mapping[str, int]]
    labels: Mapping[str, int]
    lengths: Mapping[str, Mapping[str, Lengths]]
    depths: Depths
    places: Mapping[int, int]
    first: Bias
    longer: Bias
    votes: Votes | None
    findings: Mapping[str, AuditFinding]
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that could be read."""
        return sum(self.kinds.values())

    def as_dict(self) -> dict[str, Any]:
        """The audit as `json.dumps` takes it."""
        return {"schema_version": SCHEMA_VERSION, "rows": self.rows, **asdict(self)}


def audit(
    path: str | Path, settings: AuditSettings | None = None, *, progress: Progress = no_progress
) -> DataSetAudit:
    """Audits a data set: counts, lengths, biases, duplicates, leakage and unreadable rows.

    Args:
        path: A file or folder of comparisons, judgments, demonstrations or documents, L-Eval's or Long-RewardBench's
            folder, a run folder of `longrm synthesize`, or a benchmark's name with its path, such as
            `long-rewardbench:PATH`.
        settings: Thresholds, tokenizers, and the benchmarks to compare with.
        progress: Called with the number of rows so far.

    Raises:
        ConfigError: An unknown benchmark, or a package that is not installed.
        DataError: There is nothing to read, or no row can be read.
        ModelError: There is no such tokenizer.
        RunError: The manifest of the run folder is damaged.
    """
    settings = settings or AuditSettings()
    rows = AuditedRows(path, settings.format, settings.columns)
    lengths = [LengthMeasure(name) for name in settings.tokenizers or (None,)]
    leakage = (
        Leakage(settings.against, settings.ngram, settings.leakage_threshold) if settings.against else None
    )
    duplicates = Duplicates(settings.similarity_threshold)
    # Formats other than longrm's own list the best response first.
    depths, biases, votes = DepthMeasure(), BiasMeasure(listed=rows.format == "longrm"), VoteMeasure()
    kinds: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("task", "source", "stated length", "number of responses")
    }
    groups: set[str] = set()
    any_question = False
    found = FindingCounter({kind: what for kind, what in FINDINGS.items() if kind not in _OF_THE_WHOLE})

    for number, row in enumerate(rows, start=1):
        facts = row.facts or {}
        kinds[row.kind] += 1
        groups.add(row.group)
        for fact in ("task", "source"):
            if fact in facts:
                counts[fact][str(facts[fact])] += 1
        if row.ranks:
            counts["number of responses"][str(len(row.responses))] += 1
        if row.label:
            labels[row.label] += 1
        any_question |= bool(row.question)
        depths.see(row)
        biases.see(row)
        votes.see(row)
        (prompt, responses), *_ = [measure.see(row) for measure in lengths]
        for kind, example in _oddities(row):
            found.note(kind, example)
        for kind, example in duplicates.see(row):
            found.note(kind, example)
        if leakage is not None:
            for kind, example in leakage.see(row):
                found.note(kind, example)
        stated = facts.get("length")
        if isinstance(stated, int):
            counts["stated length"][str(bucket(stated))] += 1
            # A stated length may be that of the prompt, or include the longest response.
            if prompt + max(responses, default=0) < stated / 2 or prompt > 2 * stated:
                found.note("lengths_off", f"{row.id}: {stated} stated, {prompt} measured")
        progress("rows", number, 0)

    unreadable, messages = rows.unreadable
    if not kinds:
        raise DataError(f"{path}: no row can be read{f'; the first: {messages[0]}' if messages else ''}")
    first, longer = biases.result(settings.seed)
    spread = depths.result()
    # A count of 0 would say nothing where no row has what is needed to find this.
    comparisons = bool(kinds["comparison"] + kinds["judgment"])
    looked_for = {
        "ties": comparisons,
        "unknown_order": comparisons,
        "without_contrast": bool(votes.rows),
        "contrast_of_form_only": bool(votes.rows),
        "leaked_contexts": leakage is not None,
        "leaked_questions": leakage is not None and any_question,
        "leaked_responses": leakage is not None,
        "evidence_not_found": bool(spread.known),
        "lengths_off": bool(counts["stated length"]),
    }
    findings = {
        kind: finding
        for kind, finding in found.findings.items()
        if finding.count or looked_for.get(kind, True)
    }
    findings["unreadable_rows"] = AuditFinding(FINDINGS["unreadable_rows"], unreadable, messages)
    if longer.value is not None:
        findings["length_shortcut"] = _length_shortcut(longer)
    findings |= {
        kind: one for kind, one in rows.noted.items() if one.count and kind not in (*FINDINGS, "duplicates")
    }
    findings |= _of_run(rows.origin, kinds.total() + unreadable)
    return DataSetAudit(
        path=str(path),
        format=rows.format,
        kinds=dict(kinds),
        groups=len(groups),
        counts={name: _sorted_counts(name, some) for name, some in counts.items() if some},
        labels=dict(sorted(labels.items(), key=_numbers_first)),
        lengths={measure.name: measure.result() for measure in lengths},
        depths=spread,
        places=dict(sorted(biases.places.items())),
        first=first,
        longer=longer,
        votes=votes.result(settings.seed),
        findings=findings,
        settings=settings.to_dict(),
        origin=rows.origin,
    )


def _oddities(row: AuditedRow) -> Iterator[tuple[str, str]]:
    """What is odd about one row alone."""
    if row.kind in ("comparison", "judgment"):
        if not row.ranks:
            yield "unknown_order", row.id
        elif len({*row.ranks}) == 1:
            yield "ties", row.id
    if not all(response.strip() for response in row.responses):
        yield "empty_responses", row.id
    contrast = "" if row.votes is None else row.votes.contrast
    if contrast == "none":
        yield "without_contrast", row.id
    if contrast == "format":
        yield "contrast_of_form_only", row.id
    if row.evidence_missing:
        yield "evidence_not_found", row.id


def _length_shortcut(longer: Bias) -> AuditFinding:
    """How many pairs the length decides right, if that differs from chance by its 95% interval."""
    what = FINDINGS["length_shortcut"]
    value, low, high = longer.value, longer.low, longer.high
    if value is None or low is None or high is None or low <= 0.5 <= high:
        return AuditFinding(what)
    rule = "longest"
    if value < 0.5:
        rule, value, low, high = "shortest", 1 - value, 1 - high, 1 - low
    example = f"baseline:{rule} is right on {value:.1%} of {longer.n:,} pairs [{low:.1%}, {high:.1%}]"
    return AuditFinding(what, round(value * longer.n), (example,))


def _of_run(origin: Mapping[str, Any], rows: int) -> dict[str, AuditFinding]:
    """Whether a run folder has the rows that its manifest counts."""
    if not origin:
        return {}
    counts = origin.get("counts") or {}
    advice = () if counts else ("rerun the same command to continue it",)
    findings = {"unfinished_run": AuditFinding(FINDINGS["unfinished_run"], int(not counts), advice)}
    counted = counts.get("rows")
    if isinstance(counted, int):
        example = (f"{counted} counted, {rows} found",) if counted != rows else ()
        findings["rows_not_as_counted"] = AuditFinding(
            FINDINGS["rows_not_as_counted"], abs(counted - rows), example
        )
    return findings


def _sorted_counts(name: str, counts: Counter[str]) -> dict[str, int]:
    """Numbers ascend; of names the most frequent come first."""
    if name in ("stated length", "number of responses"):
        return dict(sorted(counts.items(), key=lambda item: int(item[0])))
    return dict(counts.most_common())


def _numbers_first(item: tuple[str, int]) -> tuple[bool, float, str]:
    label = item[0]
    number = label.replace(".", "", 1).isdecimal()
    return not number, float(label) if number else 0.0, label
