"""Single comparisons for the report's browser, as JSON that is safe inside HTML."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longrm.evaluation.kept_examples import verdict
from longrm.report.load import EvaluatedModel
from longrm.runs.judgments import EXAMPLES, read_judgments
from longrm.runs.logs import Log, to_line
from longrm.runs.records import ExampleRecord, JudgmentRecord
from longrm.types import Message, Outcome, Span, message_text, text_of

_KEPT = 6_000  # characters kept at either side of a gap in a text too long for one file
_BUDGET = 700_000  # characters of all comparisons together, so that the file stays small


@dataclass(frozen=True, slots=True)
class ComparisonBrowser:
    """What the browser shows, as JSON that ends no script element, and how many fitted into it and did not."""

    payload: str
    shown: int
    left_out: int


def browser(stages: Sequence[EvaluatedModel]) -> ComparisonBrowser | None:
    """Collects the comparisons that the runs kept, with every stage's judgment of each; None if there is none.

    A comparison that several stages judged appears once, and pairs and best-of-N of one stage share its name.
    When they do not all fit, every length keeps as many.
    """
    entries: dict[bytes, dict[str, Any]] = {}
    labels = list(dict.fromkeys(stage.label for stage in stages))
    styles = {stage.label: stage.style.name for stage in stages}
    for stage in stages:
        folder = stage.folder
        examples = {e.id: e for e in Log(folder / EXAMPLES, ExampleRecord)} if folder else {}
        for record in read_judgments(folder) if folder else ():
            if record.id in examples:
                key = to_line(examples[record.id])
                if key not in entries:
                    entries[key] = _entry(examples[record.id], record)
                entries[key]["judged"][str(labels.index(stage.label))] = _judgment(record)
    if not entries:
        return None
    chosen = _fitting(list(entries.values()))
    shown = [{"label": label, "style": styles[label]} for label in labels]
    payload = json.dumps({"stages": shown, "comparisons": chosen}, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":  # no text may end the script element, open a comment, or break a line
        payload = payload.replace(character, f"\\u{ord(character):04x}")
    return ComparisonBrowser(payload, len(chosen), len(entries) - len(chosen))


def _entry(example: ExampleRecord, record: JudgmentRecord) -> dict[str, Any]:
    marks: dict[int, list[tuple[Span, str]]] = defaultdict(list)
    for span in example.evidence:
        marks[span.message].append((span, "evidence"))
    if example.question is not None:
        marks[example.question.message].append((example.question, "question"))
    return {
        "id": example.id,
        "length": record.length,
        "depth": record.depth,
        "task": record.task,
        "ranks": record.ranks,
        "messages": [
            {"role": str(message.get("role", "")), "parts": _parts(_readable(message), marks[place])}
            for place, message in enumerate(example.prompt)
        ],
        "responses": [
            _shortened(text_of(response) or "\n\n".join(map(_readable, response)))
            for response in example.responses
        ],
        "judged": {},
    }


def _judgment(record: JudgmentRecord) -> dict[str, Any]:
    return {
        "verdict": verdict(record),
        "outcome": _words(record.outcome),
        "scores": record.scores,
        "ranking": record.ranking,
        "cut": [record.cut.policy, record.cut.tokens] if record.cut is not None else None,
        "check": record.context_check,
        "trials": [
            {
                "order": trial.order,
                "outcome": _words(trial.outcome),
                "scores": trial.scores,
                "ranking": trial.ranking,
                "attempts": trial.attempts,
                "contradicted": bool(trial.contradicted),
                "detail": trial.detail,
                "explanation": _shortened(trial.explanation),
            }
            for trial in record.trials
        ],
    }


def _words(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def _parts(text: str, marks: Sequence[tuple[Span, str]]) -> list[tuple[str, str]]:
    """Cuts a text into plain and marked parts; what is too long between marks is replaced by its size."""
    parts: list[tuple[str, str]] = []
    position = 0
    for span, kind in sorted(marks, key=lambda mark: (mark[0].start, mark[0].end)):
        start = max(span.start, position)
        if span.end > start:
            parts += _plain_parts(text[position:start])
            parts.append((kind, text[start : span.end]))
            position = span.end
    return parts + _plain_parts(text[position:])


def _plain_parts(text: str) -> list[tuple[str, str]]:
    if len(text) <= 2 * _KEPT:
        return [("plain", text)] if text else []
    return [("plain", text[:_KEPT]), ("cut", f"{len(text) - 2 * _KEPT:,}"), ("plain", text[-_KEPT:])]


def _shortened(text: str) -> str:
    parts = _plain_parts(text)
    return "".join(
        f" [… {part} characters are not in this file …] " if kind == "cut" else part for kind, part in parts
    )


def _readable(message: Message) -> str:
    """A message's text; one without text, such as a tool call, as JSON."""
    return message_text(message) or json.dumps(
        {key: value for key, value in message.items() if key != "role"}, ensure_ascii=False, default=str
    )


def _fitting(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as the budget takes, in turn from every length, then sorted by length."""
    seen: dict[Any, int] = defaultdict(int)
    turns = []
    for entry in entries:
        kind = entry["length"], len(entry["responses"])
        seen[kind] += 1
        turns.append((seen[kind], entry))
    chosen: list[dict[str, Any]] = []
    used = 0
    for _, entry in sorted(turns, key=lambda turn: turn[0]):
        used += len(json.dumps(entry, ensure_ascii=False))
        if used > _BUDGET and chosen:
            break
        chosen.append(entry)
    return sorted(chosen, key=lambda entry: (len(entry["responses"]), entry["length"] or 0))
