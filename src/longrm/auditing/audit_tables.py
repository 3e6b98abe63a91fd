"""An audit as the sentences and tables that both its text and its page show."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from longrm.auditing.result import NOT_READ, DataSetAudit, Depths, Lengths, Votes
from longrm.evaluation.wording import few, few_note, plural, tokens
from longrm.runs.records import Estimate

_SHOWN = 12  # kinds of a count; the rest is summed up, and stands in the JSON
_EXAMPLES = 3  # likewise
_LEARNED = {"document": ("Rows by metric of the gold answer", "metric")}
_SCORES = ("Scores of the judgments to learn", "score")
_QUANTILES = {
    "least": "0",
    "5%": "0.05",
    "25%": "0.25",
    "median": "0.5",
    "75%": "0.75",
    "95%": "0.95",
    "most": "1",
}


@dataclass(frozen=True, slots=True)
class AuditTable:
    """One table, whose note may be empty; the first column has the rows' names.

    `bars` are shares from 0 to 1, one a row; empty where there are none.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A kind of finding that there was: its name, what it is in a sentence, how often, and the first examples."""

    name: str
    what: str
    count: str
    examples: tuple[str, ...]


def headline(audit: DataSetAudit) -> str:
    """What was read, in one sentence."""
    kinds = ", ".join(plural(count, kind) for kind, count in audit.kinds.items())
    some = [kind for kind, finding in audit.findings.items() if finding.count]
    findings = f"findings of {plural(len(some), 'kind')}" if some else "nothing odd found"
    return f"{kinds} about {plural(audit.groups, 'text')}: {findings}"


def facts(audit: DataSetAudit) -> list[tuple[str, str]]:
    """What takes a line each: the format, what all rows share, and the run that made them."""
    lines = [("format", audit.format)]
    for name, counts in audit.counts.items():
        if len(counts) == 1:
            lines.append((name, next(iter(counts))))
    origin = audit.origin
    if origin:
        begun = f", begun {origin['started']}" if "started" in origin else ""
        lines.append(("made by", f"{origin['kind']}{begun}"))
        lines += [("made from", _source(source)) for source in origin.get("sources") or ()]
        lines += [(role, str(name)) for role, name in (origin.get("models") or {}).items()]
        lines += [(name, str(origin[name])) for name in ("seed",) if name in origin]
    return lines


def shown_findings(audit: DataSetAudit) -> list[ShownFinding]:
    """Every kind of finding that there was."""
    return [
        ShownFinding(_words(kind), one.what, tokens(one.count), tuple(one.examples[:_EXAMPLES]))
        for kind, one in audit.findings.items()
        if one.count
    ]


def not_found(audit: DataSetAudit) -> str:
    """What was looked for and not found; empty where everything was found."""
    names = [_words(kind) for kind, one in audit.findings.items() if not one.count]
    return f"Looked for and not found: {', '.join(names)}." if names else ""


def tables(audit: DataSetAudit) -> tuple[AuditTable, ...]:
    """All tables of an audit, those without a row left out."""
    only_documents = [*audit.kinds] == ["document"]  # answers, not judgments, are learned from these
    learned, head = _LEARNED["document"] if only_documents else _SCORES
    labels = {} if [*audit.labels] == [NOT_READ] else audit.labels
    places = {str(place): count for place, count in audit.places.items()}
    every = [_lengths(name, measured) for name, measured in audit.lengths.items()]
    for name, measured in audit.lengths.items():
        buckets = {f"up to {tokens(size)}": count for size, count in measured["prompts"].buckets.items()}
        every.append(_counted(f"Prompts by length ({name})", ("tokens", "rows"), buckets))
    every += [_biases(audit), _counted("Best response by its place in the list", ("place", "rows"), places)]
    every += [_depths(audit.depths)] if audit.depths.known else []
    every += [_votes(audit.votes)] if audit.votes is not None else []
    for name, counts in audit.counts.items():
        every += [_count(f"Rows by {name}", counts, name)] if len(counts) > 1 else []
    every += [_count(learned, labels, head), *_steps(audit)]
    return tuple(_with_note(part) for part in every if part.rows)


def _with_note(table: AuditTable) -> AuditTable:
    """The table with what the mark of an interval means, where one has it."""
    note = few_note(cell for row in table.rows for cell in row)
    return replace(table, note=f"{table.note} {note}".strip()) if note else table


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _source(source: Mapping[str, Any]) -> str:
    path = f" at {source['path']}" if source.get("path") else ""
    return f"{source.get('name', 'unnamed')}{path}, license: {source.get('license', 'not told')}"


def _lengths(name: str, measured: Mapping[str, Lengths]) -> AuditTable:
    rows = [
        ("texts", *(tokens(lengths.texts) for lengths in measured.values())),
        ("tokens", *(tokens(lengths.total) for lengths in measured.values())),
    ]
    for head, share in _QUANTILES.items():
        rows.append((head, *(tokens(lengths.quantiles[share]) for lengths in measured.values())))
    note = "Of the bare text: a chat template adds to it."
    return AuditTable(f"Lengths in tokens ({name})", note, ("", *measured), tuple(rows))


def _counted(title: str, columns: tuple[str, str], counts: Mapping[str, int], note: str = "") -> AuditTable:
    rows = tuple((name, tokens(count)) for name, count in counts.items())
    return AuditTable(title, note, columns, rows, _bars(counts.values()))


def _bars(counts: Collection[int]) -> tuple[float, ...]:
    """Counts as shares of the largest one."""
    most = max(counts, default=1)
    return tuple(count / most for count in counts)


def _depths(depths: Depths) -> AuditTable:
    tenths = {
        f"{place / 10:.1f} to {(place + 1) / 10:.1f}": count for place, count in enumerate(depths.tenths)
    }
    even = ""
    if depths.even is not None:
        chance = "less than 0.001" if depths.even < 0.001 else f"{depths.even:.3f}"
        even = f" Were depths drawn evenly, they would spread as unevenly as this with a probability of {chance}."
    known = f"{plural(depths.known, 'piece')} known, mean {depths.mean:.2f}."
    note = f"0 is the start and 1 the end of the context; rows that share theirs count once. {known}{even}"
    return _counted("Evidence by depth", ("depth", "pieces"), tenths, note)


def _biases(audit: DataSetAudit) -> AuditTable:
    biases = (("listed first", audit.first), ("the longer one", audit.longer))
    rows = []
    for name, bias in biases:
        if bias.value is not None and bias.chance is not None:
            interval = ""
            if bias.low is not None and bias.high is not None:
                interval = f"{bias.low:.2f} to {bias.high:.2f}{few(bias.groups)}"
            rows.append((name, f"{bias.value:.2f}", interval, f"{bias.chance:.2f}", tokens(bias.n)))
    return AuditTable(
        "The better response is …",
        "95% intervals (bootstrap over texts); a share that excludes chance helps a judge that reads nothing. Length "
        "is in characters, as the baselines measure it; equal lengths count half.",
        ("", "share", "95% interval", "chance", "n"),
        tuple(rows),
    )


def _votes(votes: Votes) -> AuditTable:
    rows = [
        ("rows that tell their votes", tokens(votes.rows)),
        ("clusters of the recorded sizes", f"{votes.same_clusters:,} of {votes.recorded:,}"),
        ("chosen is of the only largest cluster", f"{votes.chosen_inside:,} of {votes.rows:,}"),
        ("and agrees best with the rest of it", f"{votes.chosen_agrees:,} of {votes.chosen_inside:,}"),
        ("rejected judgments outside it", f"{votes.rejected_outside:,} of {votes.rejected:,}"),
        *((name, _measured(one)) for name, one in (("alpha", votes.alpha), ("equal scores", votes.pairwise))),
    ]
    note = (
        "By the rules of the run that wrote the rows, or else: judges whose scores are equal form a cluster. Votes "
        "without a score are apart. Rows that votes did not decide were not kept: these votes are a selection, and "
        "judges agree less on all that they were asked. Alpha is Krippendorff's, for "
        "interval data: 1 is agreement, 0 chance. Equal scores: the share of pairs of judges. 95% intervals over texts."
    )
    told = tuple(row for row in rows if row[1] and not row[1].endswith(" of 0"))
    return AuditTable("Votes of the judges, counted again", note, ("", "found"), told)


def _measured(one: Estimate) -> str:
    if one.value is None:
        return ""
    interval = ""
    if one.low is not None and one.high is not None:
        interval = f" [{one.low:.2f}, {one.high:.2f}]{few(one.groups)}"
    return f"{one.value:.2f}{interval}"


def _count(title: str, counts: Mapping[str, int], head: str) -> AuditTable:
    ordered = list(counts.items())
    shown = ordered if len(ordered) <= _SHOWN else ordered[: _SHOWN - 1]
    rows = [(tokens(int(name)) if name.isdecimal() else name, tokens(count)) for name, count in shown]
    if len(shown) < len(ordered):
        rest = sum(count for _, count in ordered[len(shown) :])
        rows.append((f"{len(ordered) - len(shown)} others", tokens(rest)))
    bars = _bars(counts.values())[: len(shown)] + (0.0,) * (len(rows) - len(shown))
    return AuditTable(title, "", (head, "rows"), tuple(rows), bars)


def _steps(audit: DataSetAudit) -> Iterator[AuditTable]:
    """What the run that made the rows took in, kept and dropped, by its manifest."""
    steps = (audit.origin.get("counts") or {}).get("steps")
    if not isinstance(steps, Mapping) or not steps:
        return
    rows = [(name, tokens(step["in"]), tokens(step["kept"])) for name, step in steps.items()]
    yield AuditTable(
        "Steps of the run that made it, by its manifest", "", ("step", "in", "kept"), tuple(rows)
    )
    dropped = [
        (f"{name}: {why}", tokens(count))
        for name, step in steps.items()
        for why, count in step["dropped"].items()
    ]
    yield AuditTable(
        "Dropped on the way, by its manifest", "", ("step and reason", "dropped"), tuple(dropped)
    )
