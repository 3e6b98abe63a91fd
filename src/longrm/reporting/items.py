"""The report's browser of comparisons: what it lists, what it opens, and how that is packed into the page.

The page contains texts as deflated base64 chunks, which its script inflates when they are looked at. A context that
several comparisons share is packed once.
"""

import base64
import hashlib
import json
import math
import re
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from longrm.attribution.records import ATTRIBUTIONS, AttributionRecord
from longrm.evaluation.summary_schema import depth_bin
from longrm.evaluation.table import OUTCOMES, verdict_of
from longrm.jsonl import json_text
from longrm.reporting.attribution import attribution_map
from longrm.reporting.formatting import Style, without_middle
from longrm.reporting.load import Model, ReportData, folder_and_model
from longrm.runs.logs import EXAMPLES, Log, text_digest
from longrm.runs.records import ExampleRecord, JudgmentRecord
from longrm.types import Message, Span, margin, text_of

PAGE = 57_000_000
"""Most characters of all chunks together: with figures and tables the page stays below 60 MB."""

_SEARCHED = 300  # characters of the question and of each response that the search covers
_LONG = 4_000  # characters from which a part of a prompt is a separate chunk, shared by all comparisons that have it

ItemKey = tuple[str, str]
"""The id of a comparison, and the digest of its texts: equal ids of different texts are different comparisons."""
Explanation = tuple[int, str, AttributionRecord]
"""The number of the model, the name of the attribution on the page, and its record."""


class PageFullError(Exception):
    """The page has no room for another text."""


class Chunks:
    """The packed texts of a page, at most `room` characters together; equal texts are packed once."""

    def __init__(self, room: int) -> None:
        self.packed: list[str] = []
        self._room = room
        self._numbers: dict[bytes, int] = {}

    def add(self, text: str) -> int:
        """Adds a text; returns its number."""
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._numbers:
            packed = deflated(text)
            if len(packed) > self._room:
                raise PageFullError
            self._room -= len(packed)
            self._numbers[key] = len(self.packed)
            self.packed.append(packed)
        return self._numbers[key]


def deflated(text: str) -> str:
    """The text as the page contains it."""
    # Level 3 is hardly larger than the default, and much faster.
    return base64.b64encode(zlib.compress(text.encode(), 3)).decode()


def browser(data: ReportData) -> dict[str, Any] | None:
    """Packs every comparison with all models' judgments of it, and with attributions.

    Returns:
        What the template prints: `chunks`, the `index` (a chunk too), and counts: `judged`, `kept` (they open in full),
        `left_out` (kept by a run, but the page was full), `lost` (not judged right, and kept by no run), and
        `unmatched` attributions of comparisons that no evaluation here judged. None without any comparison.
    """
    models = data.all_models
    shown = [{"label": model.label, "style": model.style.name} for model in models]
    shown += [
        {"label": folder_and_model(run), "style": Style.number(len(shown) + number).name}
        for number, run in enumerate(data.unjudged)
    ]
    digests: dict[Path, dict[str, str]] = {}
    # The model and the row of its judgment, by the number of the model
    judged: dict[ItemKey, dict[int, tuple[Model, int]]] = defaultdict(dict)
    for number, model in enumerate(models):
        judgments, folder = model.run.judgments, model.run.path
        # Without a digest (as in recorded judgments) a comparison is matched with none of another run.
        digests[folder] = {
            name: digest or str(folder) for name, digest in zip(judgments.ids, judgments.digests, strict=True)
        }
        for row, name in enumerate(judgments.ids):
            judged[name, digests[folder][name]][number] = model, row
    explained, unmatched = _explanations(data, judged)
    keys = dict.fromkeys([*judged, *explained])
    if not keys:
        return None

    chunks, full = Chunks(PAGE), False
    # The words that the search covers, and the chunk if it opens
    kept: dict[ItemKey, tuple[str, int | None]] = {}
    for key, example in _examples(digests, data):
        if key not in keys or key in kept:
            continue
        chunk = None
        if not full:  # after the first one that does not fit, packing the rest of a long run would be in vain
            try:
                records = {
                    number: model.run.judgments[row] for number, (model, row) in judged.get(key, {}).items()
                }
                chunk = chunks.add(json_text(_opened(example, records, explained.get(key, ()), chunks)))
            except PageFullError:
                full = True
        kept[key] = _searched_words(example), chunk

    # The index: what the list shows, filters and sorts by. Compressed row by row, as a million rows are 300 MB of JSON.
    packer, separator = zlib.compressobj(3), f'{{"models": {json_text(shown)}, "items": ['
    index, lost, times = bytearray(), 0, Counter[str]()
    for key in keys:
        places, maps = judged.get(key, {}), explained.get(key, ())
        results: dict[int, Sequence[Any]] = {
            number: _result(model, row) for number, (model, row) in places.items()
        }
        for number, _, why in maps:
            if why.right is not None:  # unknown without gold and at a tie
                results.setdefault(number, ("right" if why.right else "wrong", "answered", None))
        lost += key not in kept and any(result not in ("right", "no gold") for result, *_ in results.values())
        times[key[0]] += 1
        words, chunk = kept.get(key, ("", None))
        item = {
            "key": key[0] if times[key[0]] == 1 else f"{key[0]}~{times[key[0]]}",
            **(_described(*next(iter(places.values()))) if places else _explained(maps[0][2])),
            "chunk": chunk,
            "kept": key in kept,
            "words": words,
            "explained": [number for number, _, _ in maps],
            "judged": results,
        }
        index += packer.compress(f"{separator}{json_text(item)}".encode())
        separator = ", "
    index += packer.compress(b"]}") + packer.flush()
    opens = sum(chunk is not None for _, chunk in kept.values())
    return {
        "index": len(chunks.packed),
        "chunks": [*chunks.packed, base64.b64encode(index).decode()],  # the index even in a full page
        "judged": len(keys),
        "kept": opens,
        "left_out": len(kept) - opens,
        "lost": lost,
        "unmatched": unmatched,
    }


def _described(model: Model, row: int) -> dict[str, Any]:
    """What the list shows of a comparison that is the same for all models."""
    table = model.run.table
    length, depth = int(table.length[row]), float(table.depth[row])
    return {
        "length": None if length < 0 else length,
        "depth": None if math.isnan(depth) else depth,
        "place": "" if math.isnan(depth) else depth_bin(depth),
        "task": table.task[row],
        "subtype": table.subtype[row],
        "size": len(table.trial.orders[table.trial.order[table.trials[row][0]]]) or len(table.ranks[row]),
    }


def _explained(record: AttributionRecord) -> dict[str, Any]:
    """The same of a comparison that is only explained."""
    place = "" if record.depth is None else depth_bin(record.depth)
    return {
        "length": record.length,
        "depth": record.depth,
        "place": place,
        "task": "",
        "subtype": "",
        "size": None,
    }


def _result(model: Model, row: int) -> tuple[str, str, float | None]:
    """How a model judged a comparison: the verdict, the outcome, and the lead of the best response by gold."""
    table, ranks = model.run.table, model.run.judgments.ranks[row]
    values = table.values[row]
    result = verdict_of(values, ranks)
    has_lead = table.has_scores[row] and result not in ("no answer", "no gold")
    lead = margin(values, ranks or ()) if has_lead else None
    return result, OUTCOMES[table.outcome[row]].replace("_", " "), lead


def _examples(
    digests: Mapping[Path, Mapping[str, str]], data: ReportData
) -> Iterator[tuple[ItemKey, ExampleRecord]]:
    """Comparisons in full: those that evaluations keep, and all that attributions explain."""
    for folder, known in digests.items():
        for example in Log(folder / EXAMPLES, ExampleRecord):
            yield (example.id, known.get(example.id, str(folder))), example
    for run in data.attributions:
        for example in Log(run.path / EXAMPLES, ExampleRecord):
            yield (example.id, text_digest(example.prompt, example.responses, example.tools)), example


def _explanations(
    data: ReportData, judged: Mapping[ItemKey, Mapping[int, object]]
) -> tuple[Mapping[ItemKey, Sequence[Explanation]], int]:
    """All attributions, and the number of those whose model is evaluated here, but not on that comparison."""
    found: dict[ItemKey, list[Explanation]] = defaultdict(list)
    unmatched = 0
    for run in data.attributions:
        # An attribution that ended in an error may have been repeated: the last record counts.
        last = {record.id: record for record in Log(run.path / ATTRIBUTIONS, AttributionRecord)}
        for record in last.values():
            key = record.id, record.digest
            names = {
                number: f"{model.label}, {run.name}" if len(model.attributions) > 1 else model.label
                for number, model in enumerate(data.all_models)
                if run in model.attributions and number in judged.get(key, ())
            }
            if run in data.unjudged:
                names[len(data.all_models) + data.unjudged.index(run)] = folder_and_model(run)
            found[key] += [(number, name, record) for number, name in names.items()]
            unmatched += not names
    return {key: explanations for key, explanations in found.items() if explanations}, unmatched


def _opened(
    example: ExampleRecord,
    judged: Mapping[int, JudgmentRecord],
    explained: Sequence[Explanation],
    chunks: Chunks,
) -> dict[str, Any]:
    """What is shown of a comparison that is opened."""
    units = [utf16_units(readable(message)) for message in example.prompt]
    maps = []
    for number, name, record in explained:
        target = (record.target.response, record.target.against)
        shown = {"model": number, "name": name, "target": target, **attribution_map(record, example)}
        for one in shown["shaded"]:
            at = units[one["message"]]
            one |= {"start": at(one["start"]), "end": at(one["end"])}
        maps.append(shown)
    messages = []
    for number, message in enumerate(example.prompt):
        marks = [(span, "evidence") for span in example.evidence if span.message == number]
        if example.question is not None and example.question.message == number:
            marks.append((example.question, "question"))
        context = [span for span in example.context if span.message == number]
        messages.append(_message(message, chunks, context, marks))
    judgments = {}
    for number, judgment in judged.items():
        own = judgment.committed
        judgments[number] = {
            "scores": judgment.scores,
            "ranking": judgment.ranking,
            "cut": [judgment.cut.policy, judgment.cut.tokens] if judgment.cut is not None else None,
            "check": judgment.context_check,
            "tokens": judgment.prompt_tokens,
            "committed": own and (own.status, without_middle(own.text)),
            "trials": [
                {
                    "order": trial.order,
                    "outcome": trial.outcome.replace("_", " "),
                    "scores": trial.scores,
                    "ranking": trial.ranking,
                    "attempts": trial.attempts,
                    "contradicted": bool(trial.contradicted),
                    "detail": trial.detail,
                    "explanation": without_middle(trial.explanation),
                }
                for trial in judgment.trials
            ],
        }
    tools = "\n".join(map(json_text, example.tools))  # one schema a line
    return {
        "ranks": next((judgment.ranks for judgment in judged.values()), None),
        "tools": [_message({"role": "tools", "content": tools}, chunks)] if tools else [],
        "messages": messages,
        "maps": maps,
        "responses": [without_middle(_response(response)) for response in example.responses],
        "judged": judgments,
    }


def _message(
    message: Message, chunks: Chunks, context: Sequence[Span] = (), marks: Sequence[tuple[Span, str]] = ()
) -> dict[str, Any]:
    """A message as parts, each with the place where it begins and its text, or the number of a chunk.

    All places are UTF-16 units, as JavaScript counts.
    """
    text = readable(message)
    at = utf16_units(text)
    ends = chain.from_iterable((span.start, span.end) for span in context)
    borders = sorted({0, len(text), *(min(end, len(text)) for end in ends)})
    parts = [
        (at(start), text[start:end] if end - start < _LONG else chunks.add(text[start:end]))
        for start, end in pairwise(borders)
    ]
    return {
        "role": str(message.get("role", "")),
        "size": at(len(text)),
        "parts": parts,
        "marks": [(at(span.start), at(span.end), kind) for span, kind in marks],
    }


def utf16_units(text: str) -> Callable[[int], int]:
    """Maps the index of a character to the number of UTF-16 units before it."""
    if text.isascii():
        return lambda index: index
    # Characters beyond the basic plane take two units each.
    beyond = [found.start() for found in re.finditer("[\U00010000-\U0010ffff]", text)]
    return lambda index: index + bisect_left(beyond, index)


def readable(message: Message) -> str:
    """A message's text and tool calls; one that has neither as JSON."""
    return text_of((message,)) or json.dumps(
        {key: value for key, value in message.items() if key != "role"}, ensure_ascii=False, default=str
    )


def _searched_words(example: ExampleRecord) -> str:
    """The question, then the responses: the list shows the first line, and the search covers all."""
    texts = [_response(response) for response in example.responses]
    if (span := example.question) is not None:
        texts.insert(0, readable(example.prompt[span.message])[span.start : span.end])
    return "\n".join(text[:_SEARCHED] for text in texts)


def _response(response: Sequence[Message]) -> str:
    """A response's text, or its turns under their roles where it has several."""
    if len(response) == 1:
        return readable(response[0])
    named = [" ".join(str(turn[key]) for key in ("role", "name") if turn.get(key)) for turn in response]
    return "\n\n".join(f"{name}:\n{readable(turn)}" for name, turn in zip(named, response, strict=True))
