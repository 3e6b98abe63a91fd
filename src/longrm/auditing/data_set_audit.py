"""One pass over a data set of any size: only small things are kept of each row."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from scipy import stats

from longrm.auditing.duplicates import Duplicates, Leakage
from longrm.auditing.rows import AuditedRow, AuditedRows, Evidence
from longrm.benchmarks import BenchmarkName
from longrm.benchmarks.benchmark import AuditFinding, FindingCounter, bucket, measure_with
from longrm.column_names import ColumnNames
from longrm.config import Config
from longrm.data.formats import ANY_ORDER
from longrm.data.memory import Data, named
from longrm.errors import DataError
from longrm.evaluation.estimates import ratio
from longrm.evaluation.table import Bootstrap
from longrm.reward_models.baselines import BASELINES
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import Estimate
from longrm.types import Query, Span

SCHEMA_VERSION = 1

RULED_PAIRS = 1000
"""On how many pairs the shallow rules run, which read the context: the first ones, whatever the size of the data."""

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
    "labeled_bad": "demonstrations with a label that says that they are bad; longrm train sft omits them",
    "unknown_roles": "rows with a message whose role is not system, developer, user, assistant or tool",
    "results_without_call": "rows with a tool result that answers no earlier call, or one that already has a result",
    "arguments_not_json": "rows with a tool call whose arguments are not a JSON object",
    "evidence_not_found": "rows with an answer or evidence that is not in their context",
    "lengths_off": "rows whose stated length is more than twice or less than half of the measured length",
    "length_shortcut": "pairs that are decided right by the length of the responses alone; equal lengths count half",
    "lexical_shortcut": f"pairs that a rule without understanding decides right (the first {RULED_PAIRS:,} pairs)",
}
"""Kinds of findings and their descriptions. An audit lists those that it could check with the columns of the rows."""

# Findings that are not counted row by row.
_OF_THE_WHOLE = ("length_shortcut", "lexical_shortcut")


_RULES = tuple(name for name, rule in BASELINES.items() if rule.reads_context)

# Of the bootstrap. The seed is fixed: another one would only move the intervals by their sampling error.
_BOOTSTRAP = Bootstrap(resamples=1000, seed=0)

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class AuditSettings(Config):
    """Settings of `longrm audit`.

    Attributes:
        tokenizers: What measures lengths: "words", or files, folders or Hub ids of tokenizers; by default words and
            punctuation marks are counted, which approximates tokens.
        format: The rows' format; by default recognized from the columns.
        columns: Names of the columns in the file, by longrm's names, such as `prompt = "question"`.
        similarity_threshold: Jaccard similarity of word 5-grams from which on two texts are near duplicates.
        against: Benchmarks or files that the rows must not share text with, such as `leval:PATH` or `pairs.jsonl`.
    """

    tokenizers: tuple[str, ...] = ()
    format: str | None = None
    columns: ColumnNames | None = None
    similarity_threshold: float = Field(0.8, gt=0, lt=1)
    against: tuple[BenchmarkName, ...] = ()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in tokens."""

    texts: int
    total: int
    quantiles: Mapping[str, float]  # by the share of the texts that are no longer: 0, 0.05, 0.25, 0.5, ...
    buckets: Mapping[int, int]  # texts by the power of two that their length is rounded up to


def lengths_of(tokens: Sequence[int]) -> Lengths:
    """Summarizes lengths; there must be one at least."""
    values = np.array(tokens)
    return Lengths(
        texts=len(values),
        total=int(values.sum()),
        quantiles={f"{share:g}": float(np.quantile(values, share)) for share in _QUANTILES},
        buckets=dict(sorted(Counter(map(bucket, tokens)).items())),
    )


@dataclass(frozen=True, slots=True)
class Depths:
    """Depths of evidence: the share of the rest of the context that precedes it, from 0 to 1."""

    known: int  # pieces of evidence whose depth is known; rows with the same context count once
    tenths: tuple[int, ...]  # how many are in each tenth of the depth
    mean: float | None
    # The p-value of a chi-squared test that depths are uniform, over pieces of at most a twentieth of their context:
    # large pieces have few possible depths. None for fewer than 50 pieces.
    even: float | None


def depths_of(evidence: Iterable[Evidence]) -> Depths:
    """Summarizes the evidence of different contexts."""
    pieces = [piece for one in evidence for piece in one.pieces]
    tenths, small = [0] * 10, [0] * 10
    for depth, share in pieces:
        tenth = min(9, int(depth * 10))
        tenths[tenth] += 1
        small[tenth] += share <= 0.05
    return Depths(
        known=len(pieces),
        tenths=tuple(tenths),
        mean=sum(depth for depth, _ in pieces) / len(pieces) if pieces else None,
        # Fewer than five expected in each tenth would make the test unreliable.
        even=float(stats.chisquare(small).pvalue) if sum(small) >= 50 else None,
    )


@dataclass(frozen=True, slots=True)
class Bias(Estimate):
    """How often the better response has an irrelevant feature, and how often it would by chance."""

    chance: float | None


def bias_of(observations: Sequence[tuple[int, float, float]]) -> Bias:
    """The bias by its observations: a group's code, whether the feature holds (0.5 at a tie), and the chance of it."""
    if not observations:
        return Bias(None, None, None, 0, 0, None)
    groups, held, chance = map(np.array, zip(*observations, strict=True))
    estimate = ratio(held.astype(float), np.ones(len(held)), groups, **_BOOTSTRAP)
    return Bias(**asdict(estimate), chance=float(chance.mean()))


@dataclass(frozen=True, slots=True)
class DataSetAudit:
    """The result of an audit.

    Attributes:
        path: What was read.
        format: Its format.
        kinds: Rows by kind: comparison, judgment, demonstration, trajectory, document.
        groups: Different documents or contexts, as far as is known.
        counts: Rows by task, source, stated length and number of responses.
        labels: Rows by the score of the judgment to learn, or by the metric of a document's answer.
        lengths: By tokenizer, the lengths of "prompts", "contexts" and "responses".
        depths: Where in their contexts the evidence is.
        places: Comparisons with one best response, by its place in the list, from 1.
        first: How often the best response is listed first; undefined where the format lists it first by rule.
        longer: How often the better of two responses is the longer one in characters: the pair accuracy of
            `baseline:longest`, where equal lengths count half.
        findings: All that was looked for: those of `FINDINGS` and those of a benchmark.
        settings: The settings.
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
    findings: Mapping[str, AuditFinding]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that could be read."""
        return sum(self.kinds.values())

    def as_dict(self) -> dict[str, Any]:
        """The audit as `json.dumps` takes it."""
        return {"schema_version": SCHEMA_VERSION, "rows": self.rows, **asdict(self)}


def audit(
    data: Data, settings: AuditSettings | None = None, *, progress: Progress = no_progress
) -> DataSetAudit:
    """Audits a data set: counts, lengths, biases, duplicates, leakage and unreadable rows.

    Args:
        data: A file or folder of comparisons, judgments, demonstrations or documents, L-Eval's folder, a run folder of
            `longrm synthesize`, or a benchmark's name with its path, such as `long-rewardbench:PATH`; or rows in
            memory, as for `longrm.data.read`.
        settings: Thresholds, tokenizers, and the benchmarks to compare with.
        progress: Called with the number of rows so far.

    Raises:
        ConfigError: An unknown benchmark, or a package that is not installed.
        DataError: There is nothing to read, or no row can be read.
        ModelError: There is no such tokenizer.
    """
    settings = settings or AuditSettings()
    kept = data if isinstance(data, str) else named(data)  # until the audit is done
    path = kept if isinstance(kept, Path) else str(kept)
    rows = AuditedRows(path, settings.format, settings.columns)
    # Rows about one context usually follow each other: the cache spares counting its tokens again.
    counters = {
        name or "approximate tokens": lru_cache(maxsize=64)(measure_with(name))
        for name in settings.tokenizers or (None,)
    }
    tokens = {name: {part: array("Q") for part in ("prompts", "contexts", "responses")} for name in counters}
    leakage = Leakage(settings.against) if settings.against else None
    duplicates = Duplicates(settings.similarity_threshold)
    kinds, labels, places = Counter[str](), Counter[str](), Counter[int]()
    counts = {name: Counter[str]() for name in ("task", "source", "stated length", "number of responses")}
    groups: set[str] = set()
    # By context, since many rows may be about the same evidence; a dict keeps the order, and so the rounding of sums.
    evidence: dict[tuple[str, Evidence], None] = {}
    group_codes: dict[str, int] = {}
    best_is_first: list[tuple[int, float, float]] = []
    better_is_longer: list[tuple[int, float, float]] = []
    ruled: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _RULES}
    any_question = any_tools = any_votes = False
    found = FindingCounter({kind: what for kind, what in FINDINGS.items() if kind not in _OF_THE_WHOLE})

    for number, row in enumerate(rows, start=1):
        kinds[row.kind] += 1
        groups.add(row.group)
        for fact in ("task", "source"):
            if fact in row.facts:
                counts[fact][str(row.facts[fact])] += 1
        if row.label:
            labels[row.label] += 1
        any_question |= bool(row.question)
        any_tools |= row.uses_tools
        if row.evidence.pieces:
            evidence[row.group, row.evidence] = None
        any_votes |= bool(row.contrast)

        if row.ranks:
            counts["number of responses"][str(len(row.responses))] += 1
            group = group_codes.setdefault(row.group, len(group_codes))
            if rows.format in ANY_ORDER and row.ranks.count(min(row.ranks)) == 1:
                place = row.ranks.index(min(row.ranks)) + 1
                places[place] += 1
                best_is_first.append((group, place == 1, 1 / len(row.ranks)))
            for one, other in combinations(range(len(row.ranks)), 2):
                better = row.ranks[other] - row.ranks[one]
                # In characters, as `baseline:longest` measures.
                characters = len(row.responses[one]) - len(row.responses[other])
                if better:
                    right = 0.5 if not characters else (better > 0) == (characters > 0)
                    better_is_longer.append((group, right, 0.5))

            pair = row.kind == "comparison" and len({*row.ranks}) == len(row.ranks) == 2
            if pair and len(ruled[_RULES[0]]) < RULED_PAIRS:
                for name, right in _decided(row):
                    ruled[name].append((group, right, 0.5))

        for name, count in counters.items():
            tokens[name]["prompts"].append(count(row.prompt))
            if row.context != row.prompt:
                tokens[name]["contexts"].append(count(row.context))
            tokens[name]["responses"].extend(map(count, row.responses))
        stated = row.facts.get("length")
        if stated is not None:
            counts["stated length"][str(bucket(stated))] += 1
            count = next(iter(counters.values()))
            prompt, longest = count(row.prompt), max(map(count, row.responses), default=0)
            # A stated length may be that of the prompt, or include the longest response.
            if prompt + longest < stated / 2 or prompt > 2 * stated:
                found.note("lengths_off", f"{row.id}: {stated} stated, {prompt} measured")

        leaks = leakage.see(row) if leakage is not None else ()
        for kind, example in chain(_row_findings(row), duplicates.see(row), leaks):
            found.note(kind, example)
        progress("rows", number, 0)

    unreadable = AuditFinding(FINDINGS["unreadable_rows"], rows.skipped.count, rows.skipped.messages)
    if not kinds:
        first = f"; the first: {unreadable.examples[0]}" if unreadable.examples else ""
        raise DataError(f"{path}: no row can be read{first}")
    depths, longer = depths_of(one for _, one in evidence), bias_of(better_is_longer)
    # A count of 0 would say nothing where no row has what is needed to find this.
    comparisons = bool(kinds["comparison"] + kinds["judgment"])
    looked_for = {
        "ties": comparisons,
        "unknown_order": comparisons,
        "unknown_roles": comparisons or bool(kinds["demonstration"] + kinds["trajectory"]),
        "results_without_call": any_tools,
        "arguments_not_json": any_tools,
        "labeled_bad": False,
        "without_contrast": any_votes,
        "contrast_of_form_only": any_votes,
        "leaked_contexts": leakage is not None,
        "leaked_questions": leakage is not None and any_question,
        "leaked_responses": leakage is not None,
        "evidence_not_found": bool(depths.known),
        "lengths_off": bool(counts["stated length"]),
    }
    findings = {
        kind: finding
        for kind, finding in found.findings.items()
        if finding.count or looked_for.get(kind, True)
    }
    findings["unreadable_rows"] = unreadable
    if longer.value is not None:
        findings["length_shortcut"] = _length_shortcut(longer)
    if ruled[_RULES[0]]:
        findings["lexical_shortcut"] = _lexical_shortcut({name: bias_of(of) for name, of in ruled.items()})
    # What the benchmark's own audit found, unless it is looked for here under the same or another name.
    findings |= {
        kind: one for kind, one in rows.noted.items() if one.count and kind not in (*FINDINGS, "duplicates")
    }
    in_order = ("stated length", "number of responses")
    return DataSetAudit(
        path=str(path),
        format=rows.format,
        kinds=dict(kinds),
        groups=len(groups),
        counts={
            name: dict(sorted(some.items(), key=_numbers_first) if name in in_order else some.most_common())
            for name, some in counts.items()
            if some
        },
        labels=dict(sorted(labels.items(), key=_numbers_first)),
        lengths={
            name: {part: lengths_of(some) for part, some in parts.items() if some}
            for name, parts in tokens.items()
        },
        depths=depths,
        places=dict(sorted(places.items())),
        first=bias_of(best_is_first),
        longer=longer,
        findings=findings,
        settings=settings.to_dict(),
    )


def _row_findings(row: AuditedRow) -> Iterator[tuple[str, str]]:
    """Findings about one row alone, each with an example."""
    if row.kind in ("comparison", "judgment"):
        if not row.ranks:
            yield "unknown_order", row.id
        elif len({*row.ranks}) == 1:
            yield "ties", row.id
    if not all(response.strip() for response in row.responses):
        yield "empty_responses", row.id
    if row.labeled_bad:
        yield "labeled_bad", row.id
    if row.contrast == "none":
        yield "without_contrast", row.id
    if row.contrast == "format":
        yield "contrast_of_form_only", row.id
    for kind, problem in row.problems.items():
        yield kind, f"{row.id}: {problem}"
    if row.evidence.missing:
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


def _decided(row: AuditedRow) -> Iterator[tuple[str, float]]:
    """For a pair and each rule that reads the context: 1 if the rule prefers the better response, 0.5 for a tie."""
    prompt = f"{row.context}\n\n{row.question}"
    query = Query(
        row.id,
        ({"role": "user", "content": prompt},),
        tuple(({"role": "assistant", "content": response},) for response in row.responses),
        context=(Span(0, 0, len(row.context)),),
        question=Span(0, len(row.context) + 2, len(prompt)) if row.question else None,
    )
    for name in _RULES:
        first, second = BASELINES[name].scores(query)
        yield name, 0.5 if first == second else float((first > second) == (row.ranks[0] < row.ranks[1]))


def _lexical_shortcut(rules: Mapping[str, Bias]) -> AuditFinding:
    """The rules that are right on 60% of the pairs at least, and above chance by their 95% intervals."""
    what = FINDINGS["lexical_shortcut"]
    right = {name: one for name, one in rules.items() if (one.value or 0) >= 0.6 and (one.low or 0) > 0.5}
    ranked = sorted(right.items(), key=lambda item: -(item[1].value or 0))
    examples = tuple(
        f"baseline:{name} is right on {one.value:.1%} of {one.n:,} pairs [{one.low:.1%}, {one.high:.1%}]"
        for name, one in ranked
    )
    return AuditFinding(what, round((ranked[0][1].value or 0) * ranked[0][1].n) if ranked else 0, examples)


def _numbers_first(item: tuple[str, int]) -> tuple[bool, float, str]:
    """Sorts counts by their names: numbers ascend, other names follow."""
    name = item[0]
    number = name.replace(".", "", 1).isdecimal()
    return not number, float(name) if number else 0.0, name
