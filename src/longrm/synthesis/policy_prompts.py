"""Prompts that a policy answers: a document's question, or the prompts of a data set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longrm.data import read, read_demonstrations
from longrm.data.fields import group_of, messages_of, name_of, required, to_json_types
from longrm.data.files import find_files, raw_rows
from longrm.data.formats import recognize
from longrm.errors import DataError
from longrm.reading import FieldError, located
from longrm.synthesis.documents import Document
from longrm.types import Message, Span, message_text

OPENING = "A document comes first, and a question about it after it.\n\n"
CLOSING = "\n\nHere the document ends. Rely on it alone.\n\n"
ASKING = "Question: "


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """A prompt for the policy."""

    id: str  # unique in a run
    group: str  # shared by prompts about one context
    messages: tuple[Message, ...]  # the prompt
    context: tuple[Span, ...] = ()  # where the context is, if known
    question: Span | None = None  # where the question is, if known
    metadata: Mapping[str, Any] = field(default_factory=dict)  # other columns of its row

    @property
    def question_text(self) -> str:
        """The question; empty if it is not known."""
        if self.question is None:
            return ""
        return message_text(self.messages[self.question.message])[self.question.start : self.question.end]

    @property
    def shown_text(self) -> str:
        """The prompt up to the end of the context, which must be known."""
        last = self.context[-1]
        return message_text(self.messages[last.message])[: last.end]


def policy_prompt(document: Document) -> PolicyPrompt:
    """A document's question about the whole text."""
    content = plain_content(document.text, document.question)
    metadata = {"task": document.task, "source": document.metadata.get("source")}
    return PolicyPrompt(
        document.id,
        document.group,
        ({"role": "user", "content": content},),
        (Span(0, len(OPENING), len(OPENING) + len(document.text)),),
        Span(0, len(content) - len(document.question), len(content)),
        {name: value for name, value in metadata.items() if value},
    )


def plain_content(context: str, question: str, hint: str = "") -> str:
    """The context, then the question; only the question without a context."""
    if not context:
        return question
    hint = f"{hint}\n\n" if hint else ""
    return f"{OPENING}{context}{CLOSING}{hint}{ASKING}{question}"


def read_policy_prompts(path: str | Path) -> Iterator[PolicyPrompt]:
    """Reads the prompts of comparisons, of demonstrations, or of rows with only a prompt.

    Raises:
        DataError: There is nothing to read, or a bad row.
    """
    files = find_files(Path(path))
    first = next(raw_rows(files), None)
    columns = set(first.value) if first is not None and first.value is not None else set()
    if columns & {"golden", "completion"} and not columns & {"chosen", "responses", "candidates"}:
        for row in read_demonstrations(path):
            one = row.demonstration
            group = group_of({}, one.prompt, (), None)
            yield PolicyPrompt(one.id, group, one.prompt, metadata=_kept(one.metadata))
    elif recognize(columns):
        for found in read(path):
            two = found.comparison
            yield PolicyPrompt(two.id, two.group, two.prompt, two.context, two.question, _kept(two.metadata))
    else:
        for raw in raw_rows(files):
            value = raw.checked()
            try:
                name, given = required(value, "prompt", "prompt_template", "chat_template")
                prompt = messages_of(given, name, "user")
                identity = name_of(value, "id") if value.get("id") is not None else f"row-{raw.number}"
            except FieldError as error:
                raise DataError(located(raw.place, error)) from error
            yield PolicyPrompt(identity, group_of({}, prompt, (), None), prompt, metadata=_kept(value))


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that its demonstration keeps."""
    names = ("task", "source", "length")
    return {name: to_json_types(metadata[name]) for name in names if metadata.get(name) is not None}
