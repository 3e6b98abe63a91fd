"""What a policy is asked: a question about a document, the document first."""

from dataclasses import dataclass

from longrm.synthesis.inputs.documents import Document
from longrm.types import Message, Span

OPENING = "A document comes first, and a question about it after it.\n\n"
CLOSING = "\n\nHere the document ends. Rely on it alone.\n\n"
ASKING = "Question: "


@dataclass(frozen=True, slots=True)
class QuestionPrompt:
    """A question about a whole document: its prompt, and where the document and the question stand in it."""

    messages: tuple[Message, ...]
    context: Span
    question: Span


def question_prompt(document: Document) -> QuestionPrompt:
    """A document's question, asked about the whole text."""
    content = plain_content(document.text, document.question)
    return QuestionPrompt(
        ({"role": "user", "content": content},),
        Span(0, len(OPENING), len(OPENING) + len(document.text)),
        Span(0, len(content) - len(document.question), len(content)),
    )


def plain_content(context: str, question: str, about: str = "") -> str:
    """The context first, then the question; the question alone where there is no context."""
    if not context:
        return question
    hint = f"{about}\n\n" if about else ""
    return f"{OPENING}{context}{CLOSING}{hint}{ASKING}{question}"
