"""Code that all benchmarks share: settings, published rows as comparisons, the audit of oddities, and samples."""

import hashlib
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from longrm.benchmarks.stratified_sample import sample, stratum_of
from longrm.column_names import ColumnNames
from longrm.config import Config
from longrm.data import ComparisonReader, read
from longrm.data.chunking import approximate_tokens
from longrm.data.fields import (
    FileRow,
    found_in,
    group_of,
    length_and_depth,
    messages_of,
    required,
    to_json_types,
    whole_length,
    why_no_gold,
)
from longrm.data.files import find_files, is_row_file, origin_of, raw_rows
from longrm.data.readers import convert_row
from longrm.data.tokenizing import Tokenizer
from longrm.data.trajectories import holds_trajectories, read_trajectories
from longrm.errors import DataError
from longrm.reading import FieldError, located, short
from longrm.types import Comparison, Criterion, Response, Trajectory, text_of
from longrm.worlds.words_tokenizer import load_tokenizer

if TYPE_CHECKING:  # its file imports this one
    from longrm.benchmarks.probe import Probe

_logger = logging.getLogger(__name__)
_EXAMPLES = 10
_FINDINGS = {
    "duplicates": "comparisons whose prompt and responses came before",
    "identical_responses": "comparisons with two identical responses; left out where these are ranked apart",
    "empty_responses": "comparisons with an empty response; left out",
    "ties": "comparisons in which gold ranks tie",
}
UNREADABLE: Mapping[str, str] = {"unreadable_rows": "rows that could not be read; left out"}
"""A kind of finding that most benchmarks have."""
UNREADABLE_PAIRS: Mapping[str, str] = {
    "unreadable_rows": "rows, or single pairs of a row, that could not be read; left out"
}
"""The same of benchmarks whose rows have several pairs."""


class BenchmarkSource(Config):
    """Which rows of a file are taken, and how they are read.

    Attributes:
        format: The rows' format, for `file` only; recognized from the columns when not given.
        columns: Names of the columns in a `file`, by longrm's names, such as `prompt = "question"`.
        on_bad_row: What happens at a row that cannot be read: "stop", or "skip" (counted and logged).
        limit: Take a stratified sample of this many comparisons, spread over lengths, depths and tasks.
        tokenizer: "words", or a tokenizer's folder or Hub id, to measure lengths that the data does not name;
            estimated from words and punctuation marks when not given.
    """

    format: str | None = None
    columns: ColumnNames | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    limit: int | None = Field(None, ge=1)
    tokenizer: str | None = None


class OwnTokenizer(NamedTuple):
    """The tokenizer of the model that will judge: the model's name, and the tokenizer or where it is loaded from."""

    name: str
    place: str | Tokenizer


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """A benchmark's name with its path, and the settings of all benchmarks; `own` finds the model's tokenizer."""

    name: str
    path: str
    source: BenchmarkSource
    probe: "Probe"
    own: Callable[[], OwnTokenizer | None]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One kind of finding: a description, how often it was found, and the first examples."""

    what: str
    count: int = 0
    examples: tuple[str, ...] = ()


class FindingCounter:
    """Counts findings by kind; a kind that was not found has the count 0."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.findings = {kind: AuditFinding(what) for kind, what in kinds.items()}

    def note(self, kind: str, example: str) -> None:
        """Counts one finding and keeps its example if it is one of the first."""
        found = self.findings[kind]
        examples = (*found.examples, example)[:_EXAMPLES]
        self.findings[kind] = AuditFinding(found.what, found.count + 1, examples)


class Auditor(FindingCounter):
    """Counts the oddities that any benchmark may have, and those of `kinds`, which its reader notes."""

    def __init__(self, kinds: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(_FINDINGS | dict(kinds))
        self.comparisons = 0
        self._seen: set[bytes] = set()

    def see(self, comparison: Comparison) -> None:
        """Checks one comparison; only a hash of it is kept."""
        self.comparisons += 1
        ranks, responses = comparison.ranks, comparison.responses
        # The order of the responses does not make it another item.
        texts = [text_of(comparison.prompt), *sorted(text_of(response) for response in responses)]
        digest = hashlib.sha256("\x00".join(texts).encode(errors="surrogatepass")).digest()[:16]
        if digest in self._seen:
            self.note("duplicates", comparison.id)
        self._seen.add(digest)
        if any(one == other for one, other in combinations(responses, 2)):
            self.note("identical_responses", comparison.id)
        if not all(text_of(response).strip() for response in responses):
            self.note("empty_responses", comparison.id)
        if ranks is not None and len({*ranks}) < len(ranks):
            self.note("ties", comparison.id)

    def as_dict(self) -> dict[str, Any]:
        """The findings as JSON values."""
        findings = {
            kind: asdict(one) | {"examples": list(one.examples)} for kind, one in self.findings.items()
        }
        return {"comparisons": self.comparisons, "findings": findings}


class AuditedComparisons:
    """Comparisons that are read from the start and audited at every iteration.

    `read` yields them and notes findings of `kinds`. With a `limit` a stratified sample is taken, for which the first
    iteration reads everything twice.

    Attributes:
        audit: The findings of the latest complete iteration; None before.
        sampled_from: The number of comparisons, if a limit samples them; known after the first iteration.
    """

    def __init__(
        self,
        read: Callable[[Auditor], Iterable[Comparison]],
        kinds: Mapping[str, str] = MappingProxyType({}),
        limit: int | None = None,
        sampled_from: int | None = None,
    ) -> None:
        self.audit: Auditor | None = None
        self.sampled_from = sampled_from
        self._read, self._kinds, self._limit = read, kinds, limit
        self._taken: frozenset[int] | None = None

    def __iter__(self) -> Iterator[Comparison]:
        if self._limit is not None and self._taken is None:
            strata = [stratum_of(comparison) for comparison in self._read(Auditor(self._kinds))]
            self._taken = frozenset(sample(self._limit, strata))
            self.sampled_from = len(strata) if len(strata) > self._limit else None
        auditor = Auditor(self._kinds)
        for place, comparison in enumerate(self._read(auditor)):
            if self._taken is None or place in self._taken:
                auditor.see(comparison)
                yield comparison
        self.audit = auditor


class CriterionKey(NamedTuple):
    """A criterion of one text; the texts of a group share their criteria, and intervals cluster on it."""

    group: str
    text: str
    criterion: str


class CriterionLabel(NamedTuple):
    """How far a text meets a criterion, from 0 to 1, and by which of its parts, from 1; None if none is named."""

    coverage: float
    link: int | None


@dataclass(frozen=True, slots=True)
class LoadedBenchmark:
    """Comparisons in a fixed order, which can be iterated many times.

    Attributes:
        total: Their number; None if it is unknown before reading.
        reading: The reader of a `file`: its format, and the rows that it skipped.
        rule: The name of its scoring rule; empty for none.
        provenance: For the run's manifest: the commit of a data set of the Hub.
        measured: For the run's summary: tokenizer, worlds and depths of a probe; otherwise None.
        states_length: Whether the rows state a length; otherwise it is the bucket of the measured length.
        trajectories: The trajectories whose steps are judged, in place of comparisons; None if there are none.
        criteria: The criteria that people labeled, in place of comparisons; None if there are none.
    """

    name: str
    comparisons: Iterable[Comparison]
    total: int | None = None
    reading: ComparisonReader | None = None
    rule: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Any] | None = None
    states_length: bool = True
    trajectories: "Trajectories | None" = None
    criteria: Mapping[CriterionKey, CriterionLabel] | None = None

    @property
    def audit(self) -> Auditor | None:
        """The findings of the latest complete iteration; None before, and for comparisons without an audit."""
        return self.comparisons.audit if isinstance(self.comparisons, AuditedComparisons) else None

    @property
    def sampled_from(self) -> int | None:
        """The number of comparisons, if a limit takes a sample; known after the first iteration."""
        return self.comparisons.sampled_from if isinstance(self.comparisons, AuditedComparisons) else None


class Trajectories:
    """Trajectories that are read from the start at every iteration.

    Attributes:
        findings: What the latest complete iteration found, by kind.
        total: Their number.
        sampled_from: The number of all, if a limit takes a stratified sample.

    Generated ones have a known `total`, and are not generated once more to count them.
    """

    def __init__(
        self,
        read: Callable[[FindingCounter], Iterable[Trajectory]],
        kinds: Mapping[str, str] = MappingProxyType({}),
        limit: int | None = None,
        total: int | None = None,
    ) -> None:
        self._read, self._kinds = read, kinds
        self.findings: Mapping[str, AuditFinding] = {}
        self.sampled_from: int | None = None
        self._taken: Container[int] = range(total or 0)
        self.total = total or 0
        if total is None or limit is not None:
            # Rows of files are read before any work is done, so that a bad one stops here.
            strata = [stratum_of(one) for one in read(FindingCounter(kinds))]
            taken = range(len(strata)) if limit is None else sample(limit, strata)
            self._taken, self.total = frozenset(taken), len(taken)
            self.sampled_from = len(strata) if len(strata) > self.total else None

    def __iter__(self) -> Iterator[Trajectory]:
        counter = FindingCounter(self._kinds)
        for place, trajectory in enumerate(self._read(counter)):
            if place in self._taken:
                yield trajectory
        self.findings = counter.findings


def trajectories_of(
    request: BenchmarkRequest,
    read: Callable[[FindingCounter], Iterable[Trajectory]],
    kinds: Mapping[str, str] = MappingProxyType({}),
    provenance: Mapping[str, str] = MappingProxyType({}),
) -> LoadedBenchmark:
    """A benchmark of trajectories; those that state no length get the bucket of prompt and steps."""
    measure = measure_with(request.source.tokenizer)

    def measured(counter: FindingCounter) -> Iterator[Trajectory]:
        for one in read(counter):
            if one.metadata.get("length") is None and one.metadata.get("has_text", True):
                length = bucket(measure(text_of([*one.prompt, *chain.from_iterable(one.steps)])))
                one = replace(one, metadata={**one.metadata, "length": length})
            yield one

    trajectories = Trajectories(measured, kinds, request.source.limit)
    return LoadedBenchmark(request.name, (), provenance=provenance, trajectories=trajectories)


def load_trajectory_file(request: BenchmarkRequest) -> LoadedBenchmark:
    """The trajectories of a user's own file or folder, in any layout of `longrm.data.trajectories`."""
    source = request.source
    reader = read_trajectories(request.path, on_bad_row=source.on_bad_row, columns=source.columns)
    loaded = trajectories_of(
        request, lambda _: (row.trajectory for row in reader), provenance=origin_of(reader.files)
    )
    reader.skipped.log()
    return loaded


def measure_with(tokenizer: str | None) -> Callable[[str], int]:
    """A function that counts the tokens of a text; without a tokenizer it counts words and punctuation marks."""
    return approximate_tokens if tokenizer is None else load_tokenizer(tokenizer).count


def bucket(tokens: int) -> int:
    """The length bucket: the tokens rounded up to a power of two."""
    return 1 << max(0, tokens - 1).bit_length()


def _with_length(rows: Iterable[Comparison], measure: Callable[[str], int]) -> Iterator[Comparison]:
    """Gives comparisons without a length the bucket of their tools and prompt."""
    for comparison in rows:
        length = length_and_depth(comparison).length
        if length is None:
            tools = [json.dumps(comparison.tools, ensure_ascii=False)] if comparison.tools else []
            length = bucket(measure("\n\n".join([*tools, text_of(comparison.prompt)])))
        yield replace(comparison, metadata={**comparison.metadata, "length": length})


def load_comparison_file(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of a user's own file or folder, or its trajectories, in any format that longrm reads."""
    source = request.source
    if source.format is None and holds_trajectories(request.path, source.columns or {}):
        return load_trajectory_file(request)
    reader = read(request.path, format=source.format, on_bad_row=source.on_bad_row, columns=source.columns)
    measure = measure_with(source.tokenizer)

    def comparisons() -> Iterator[Comparison]:
        for row in reader:
            try:
                length_and_depth(row.comparison)
            except FieldError as error:
                reader.skip(DataError(located(row.place, error)))
            else:
                yield row.comparison

    # Before any work is done: a bad row stops here, and a missing gold order is said.
    gold = [row.ranks is not None or why_no_gold(row.metadata) for row in comparisons()]
    missing = [reason for reason in gold if isinstance(reason, str)]
    if missing:
        _logger.warning(
            "%s: %d of %d comparisons have no gold order: %s",
            request.path,
            len(missing),
            len(gold),
            missing[0],
        )
    rows = AuditedComparisons(lambda _: _with_length(comparisons(), measure), limit=source.limit)
    return LoadedBenchmark(request.name, rows, reading=reader, provenance=origin_of(reader.files))


def json_files(path: Path, pattern: str) -> list[Path]:
    """The .json files of a folder by their pattern, in order; without any, or for a file, those of `find_files`."""
    found = sorted(path.glob(pattern)) if path.is_dir() else []
    if path.is_dir() and not found and not any(map(is_row_file, path.iterdir())):
        raise DataError(f"{path}: no .json, .jsonl or .parquet files; name the folder that has them")
    return found or find_files(path)


class Unrateable(Exception):  # noqa: N818  # not an error: such items are counted
    """An item that no judge can rate; the message is a kind of finding."""


Converter = Callable[[FileRow, int, Counter[str]], Comparison]
"""Makes a comparison of a row and its number, from 1 over all files; the counter is for `numbered`.

It raises `FieldError` or `Unrateable`.
"""


def load_rows(
    request: BenchmarkRequest,
    convert: Converter,
    kinds: Mapping[str, str] = UNREADABLE,
    parts: Callable[[FileRow], Iterable[FileRow]] = lambda row: (row,),
    files: Sequence[Path] | None = None,
    file_columns: Callable[[Path], FileRow] = lambda file: {},
) -> LoadedBenchmark:
    """A benchmark whose rows are in a file or a folder of files; the length of prompts without one is measured.

    Args:
        request: The benchmark's path and settings.
        convert: Makes a comparison of each row.
        kinds: The kinds of finding that may be noted, with descriptions.
        parts: Splits a row into several, each of which makes a comparison.
        files: The files, if they are not those of `find_files`.
        file_columns: Columns that all rows of a file have because of its path.
    """
    found, source = files or find_files(Path(request.path)), request.source
    measure = measure_with(source.tokenizer)

    def comparisons(auditor: Auditor) -> Iterator[Comparison]:
        return read_rows(found, convert, auditor, source.on_bad_row, parts, file_columns)

    if source.on_bad_row == "stop":
        deque(comparisons(Auditor(kinds)), maxlen=0)  # a bad row ends the run before any work is done
    rows = AuditedComparisons(
        lambda auditor: _with_length(comparisons(auditor), measure), kinds, source.limit
    )
    return LoadedBenchmark(request.name, rows, provenance=origin_of(found), states_length=False)


def read_rows(
    files: Sequence[Path],
    convert: Converter,
    auditor: Auditor,
    on_bad_row: Literal["stop", "skip"],
    parts: Callable[[FileRow], Iterable[FileRow]] = lambda row: (row,),
    file_columns: Callable[[Path], FileRow] = lambda file: {},
) -> Iterator[Comparison]:
    """Converts the rows of all files; rows that are left out are noted with their place."""
    places: dict[str, str] = {}  # of ids
    names = Counter[str]()

    def checked(row: FileRow, number: int) -> Comparison:
        comparison = convert(row, number, names)
        length_and_depth(comparison)
        return comparison

    for raw in raw_rows(files):
        pieces = [raw]
        if raw.value is not None:
            try:
                columns = file_columns(raw.file)
                pieces = [replace(raw, value={**part, **columns}) for part in parts(raw.value)]
            except FieldError as error:  # the row is left out as a whole
                pieces = [replace(raw, value=None, problem=str(error))]
        for piece in pieces:
            try:
                comparison = convert_row(piece, checked, places)
            except DataError as error:
                if on_bad_row == "stop":
                    raise
                auditor.note("unreadable_rows", str(error))
            except Unrateable as reason:
                auditor.note(str(reason), raw.place)
            else:
                yield comparison


def numbered(name: str, names: Counter[str]) -> str:
    """Makes a repeated name unique within one reading: the second `a` is `a#2`."""
    names[name] += 1
    return name if names[name] == 1 else f"{name}#{names[name]}"


def published_comparison(
    row: FileRow,
    identity: str,
    prompt_column: str,
    responses: Mapping[str, Any],
    ranks: tuple[int, ...],
    *,
    used: AbstractSet[str],
    metadata: Mapping[str, Any],
    group: str | None = None,
    rubrics: tuple[Criterion, ...] = (),
) -> Comparison:
    """The comparison of a published row.

    Args:
        row: The row.
        identity: The comparison's id.
        prompt_column: The column of the prompt.
        responses: The responses by the names of their fields, in the order of `ranks`.
        ranks: Gold ranks, 1 = best.
        used: Columns that do not become metadata.
        metadata: Metadata that replaces columns of the same names, such as task and subtype.
        group: The group; by default that of the row, or a hash of the prompt.
        rubrics: The criteria by which the responses are judged.
    """
    prompt = messages_of(required(row, prompt_column)[1], prompt_column, "user")
    others = {key: to_json_types(value) for key, value in row.items() if key not in used}
    return Comparison(
        id=identity,
        group=group_of(row, prompt, (), None) if group is None else group,
        prompt=prompt,
        responses=rateable_responses(responses, ranks),
        ranks=ranks,
        metadata=others | dict(metadata),
        rubrics=rubrics,
    )


def rateable_responses(given: Mapping[str, Any], ranks: Sequence[int]) -> tuple[Response, ...]:
    """Reads responses by the names of their fields; `Unrateable` if one is empty, or equal ones differ in rank."""
    if any(value is None or (isinstance(value, str) and not value.strip()) for value in given.values()):
        raise Unrateable("empty_responses")
    responses = tuple(messages_of(value, field, "assistant") for field, value in given.items())
    for (one, rank), (other, other_rank) in combinations(zip(responses, ranks, strict=True), 2):
        if one == other and rank != other_rank:
            raise Unrateable("identical_responses")
    return responses


def best_and_rest(row: FileRow) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The items of the lists `chosen` and `rejected`, by names such as `chosen[0]`, and their ranks 1 and 2."""
    chosen, rejected = items_of(row, "chosen"), items_of(row, "rejected")
    return chosen | rejected, (*[1] * len(chosen), *[2] * len(rejected))


def columns_of(row: FileRow, *fields: str) -> dict[str, Any]:
    """The values of columns, which may be null; raises `FieldError` if there is no such column."""
    missing = next((field for field in fields if field not in row), None)
    if missing is not None:
        raise FieldError(missing, f"missing; {found_in(row)}")
    return {field: row[field] for field in fields}


def items_of(row: FileRow, field: str, least: int = 1) -> dict[str, Any]:
    """The items of a list column, by names such as `chosen[0]`."""
    value = row.get(field)
    if not isinstance(value, list | tuple) or len(value) < least:
        raise FieldError(field, f"must be a list of at least {least}, got {short(value)}")
    return {f"{field}[{index}]": item for index, item in enumerate(value)}


def labeled_length(row: FileRow, field: str) -> int | None:
    """The length bucket in tokens in a column: "4k" is 4096; None if it is empty."""
    label = row.get(field)
    if not isinstance(label, str):
        return None if label is None else whole_length(label, field)
    found = re.fullmatch(r"(\d{1,15})(k?)", label.strip().lower())
    if not found:
        raise FieldError(field, f"must be a length such as '4k' or 4096, got {short(label)}")
    return whole_length(int(found[1]) * (1024 if found[2] else 1), field)
