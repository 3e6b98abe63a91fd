"""Every judged comparison for the report's browser: what it lists, and what it opens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longrm.evaluation.kept_examples import verdict
from longrm.evaluation.summaries import depth_bin
from longrm.jsonl import json_text
from longrm.report.attribution_map import attribution_map
from longrm.report.embedding import Chunks
from longrm.report.explained_items import ExplainedItem, explanations, written_map
from longrm.report.load import EvaluatedModel
from longrm.report.opened_prompt import opened_messages, opened_tools, readable
from longrm.runs.judgments import EXAMPLES, read_gold, read_judgments, text_digest
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord, JudgmentRecord
from longrm.types import Message, Outcome, margin

_KEPT = 6_000  # characters kept at either side of a gap in a response or a judgment
_SOUGHT = 300  # characters of the question, and of each response, in which a search looks


@dataclass(frozen=True, slots=True)
class ItemBrowser:
    """What the template prints of the browser.

    Attributes:
        index: Number of the chunk that lists all comparisons.
        chunks: Chunks as base64, by their numbers.
        judged: Comparisons that are listed.
        kept: Those of them that can be opened, because a run kept them in full.
        left_out: Those that a run kept in full, and that did not fit into the page.
        lost: Those that some model did not judge right, and that no run kept in full.
        beside: Contexts in files of the folder.
        folder: That folder's name.
        unmatched: Attributions of what no evaluation here judged.
    """

    index: int
    chunks: Sequence[str]
    judged: int
    kept: int
    left_out: int
    lost: int
    beside: int
    folder: str
    unmatched: int


@dataclass(slots=True)
class _Item:
    """A comparison: its key, the first record of it, every model's, and the chunk of its texts, if it has one."""

    key: str
    record: JudgmentRecord
    judged: dict[int, JudgmentRecord] = field(default_factory=dict)
    chunk: int | None = None
    seen: bool = False
    words: str = ""


def browser(stages: Sequence[EvaluatedModel], folder: Path) -> ItemBrowser | None:
    """Collects every comparison with all models' judgments of it; None if there is none.

    Judgments and attributions of the same texts under the same id are of one comparison, and pairs and best-of-N of one
    stage share its name. Contexts that several comparisons share are held once.

    Args:
        stages: The evaluated models.
        folder: Where contexts are written that do not fit into the page.

    Raises:
        RunError: A log is damaged, or a context cannot be written.
    """
    labels = list(dict.fromkeys(stage.label for stage in stages))
    # What a run of an earlier version judged has no digest, and is compared with nothing.
    digests = {
        stage.folder: {gold.id: gold.digest or str(stage.folder) for gold in read_gold(stage.folder)}
        for stage in stages
        if stage.folder is not None
    }
    items = _judged(stages, labels, digests)
    if not items:
        return None
    chunks = Chunks(folder)
    explained = explanations(stages, labels)
    for texts, example in _examples(digests, stages):
        item = items.get(texts)
        if item is not None and not item.seen:
            item.seen, item.words = True, _words_of(example)
            item.chunk = chunks.add(json_text(_opened(example, item, explained.get(texts, ()), chunks)))
    styles = {stage.label: stage.style.name for stage in stages}
    models = [{"label": label, "style": styles[label]} for label in labels]
    rows = [_row(item, explained.get(texts, ())) for texts, item in items.items()]
    index = chunks.add(json_text({"models": models, "items": rows, "folder": folder.name}), room=1 << 40)
    assert index is not None, "there is room for it"
    return ItemBrowser(
        index=index,
        chunks=chunks.packed,
        judged=len(rows),
        kept=sum(item.chunk is not None for item in items.values()),
        left_out=sum(item.seen and item.chunk is None for item in items.values()),
        lost=sum(not item.seen and _missed(item) for item in items.values()),
        beside=chunks.beside,
        folder=folder.name,
        unmatched=sum(len(found) for texts, found in explained.items() if texts not in items),
    )


def _examples(
    digests: Mapping[Path, Mapping[str, str]], stages: Sequence[EvaluatedModel]
) -> Iterator[tuple[tuple[str, str], ExampleRecord]]:
    """Comparisons in full, by id and digest: those that evaluations keep, and all that attributions explain."""
    for place, known in digests.items():
        for example in Log(place / EXAMPLES, ExampleRecord):
            yield (example.id, known.get(example.id, str(place))), example
    for place in dict.fromkeys(run.folder for stage in stages for run in stage.attributions):
        for example in Log(place / EXAMPLES, ExampleRecord):
            yield (example.id, text_digest(example.prompt, example.responses, example.tools)), example


def _judged(
    stages: Sequence[EvaluatedModel], labels: Sequence[str], digests: Mapping[Path, Mapping[str, str]]
) -> dict[tuple[str, str], _Item]:
    """The comparisons by id and digest, in the order in which they were first judged."""
    items: dict[tuple[str, str], _Item] = {}
    times: dict[str, int] = {}
    for stage in stages:
        if stage.folder is None:
            continue
        for record in read_judgments(stage.folder):
            place = record.id, digests[stage.folder].get(record.id, str(stage.folder))
            if place not in items:
                times[record.id] = times.get(record.id, 0) + 1
                number = times[record.id]
                items[place] = _Item(record.id if number == 1 else f"{record.id}~{number}", record)
            items[place].judged[labels.index(stage.label)] = record
    return items


def _missed(item: _Item) -> bool:
    return any(verdict(record) not in ("right", "no gold") for record in item.judged.values())


def _row(item: _Item, explained: Sequence[ExplainedItem]) -> dict[str, Any]:
    """What is listed, filtered and sorted."""
    record = item.record
    place = "" if record.depth is None else depth_bin(record.depth)
    return {
        "key": item.key,
        "length": record.length,
        "depth": record.depth,
        "place": place,
        "task": record.task,
        "subtype": record.subtype,
        "size": len(record.order or record.ranks or record.scores),
        "chunk": item.chunk,
        "kept": item.seen,
        "words": item.words,
        "explained": [one.model for one in explained],
        "judged": {
            number: [verdict(one), _named(one.outcome), _margin(one)] for number, one in item.judged.items()
        },
    }


def _margin(record: JudgmentRecord) -> float | None:
    """By how much the scores have a best response lead, where there are scores and a gold order."""
    if not record.scores or verdict(record) in ("no answer", "no gold"):
        return None
    assert record.ranks is not None, "it has a gold order"
    return margin(record.scores, record.ranks)


def _opened(
    example: ExampleRecord, item: _Item, explained: Sequence[ExplainedItem], chunks: Chunks
) -> dict[str, Any]:
    """What is shown of a comparison that is opened; tools stand before its prompt, a schema a line."""
    shown = [attribution_map(one.record, example) for one in explained]
    return {
        "ranks": item.record.ranks,
        "tools": opened_tools(example, chunks),
        "messages": opened_messages(example, [one for found in shown for one in found.strongest], chunks),
        "maps": [written_map(one, found, example) for one, found in zip(explained, shown, strict=True)],
        "responses": [_shortened(_response(response)) for response in example.responses],
        "judged": {number: _judgment(record) for number, record in item.judged.items()},
    }


def _judgment(record: JudgmentRecord) -> dict[str, Any]:
    return {
        "scores": record.scores,
        "ranking": record.ranking,
        "cut": [record.cut.policy, record.cut.tokens] if record.cut is not None else None,
        "check": record.context_check,
        "tokens": record.prompt_tokens,
        "trials": [
            {
                "order": trial.order,
                "outcome": _named(trial.outcome),
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


def _named(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def _words_of(example: ExampleRecord) -> str:
    """Where a search looks, and what the list says of a comparison: its question, then its responses."""
    texts = [_response(response) for response in example.responses]
    if (span := example.question) is not None:
        texts.insert(0, readable(example.prompt[span.message])[span.start : span.end])
    return "\n".join(text[:_SOUGHT] for text in texts)


def _response(response: Sequence[Message]) -> str:
    """A response's text, or its turns under their roles where it has several."""
    if len(response) == 1:
        return readable(response[0])
    named = [" ".join(str(one[key]) for key in ("role", "name") if one.get(key)) for one in response]
    return "\n\n".join(f"{name}:\n{readable(one)}" for name, one in zip(named, response, strict=True))


def _shortened(text: str) -> str:
    if len(text) <= 2 * _KEPT:
        return text
    gap = f"[… {len(text) - 2 * _KEPT:,} characters are not in this file …]"
    return f"{text[:_KEPT]} {gap} {text[-_KEPT:]}"
