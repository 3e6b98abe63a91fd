import pytest

from longrm.types import Query, Span

NAMES = ("amber", "birch", "cedar", "daisy", "elder", "fern", "gorse", "hazel", "iris", "juniper")


@pytest.fixture
def asked():
    """Makes a query about a context of so many different sentences, and lists these."""

    def make(count):
        sentences = [
            f"The {NAMES[at % 10]} of row {at} is near the {NAMES[(at * 7 + 3) % 10]} gate. "
            for at in range(count)
        ]
        context, question = "".join(sentences), "Which one is where?"
        message = {"role": "user", "content": context + question}
        place = Span(0, len(context), len(context) + len(question))
        responses = tuple(({"role": "assistant", "content": text},) for text in ("Yes.", "No."))
        query = Query(f"of {count}", (message,), responses, (Span(0, 0, len(context)),), place)
        return query, sentences

    return make
