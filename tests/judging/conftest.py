import pytest

from longrm.types import Query, Span


@pytest.fixture(scope="session")
def query():
    """Makes queries from texts: a context and a question in one message, and responses."""

    def make(*responses, context="Marlow has the copper key.", question="Who has the key?"):
        text = f"{context}\n\n{question}"
        return Query(
            "c1",
            ({"role": "user", "content": text},),
            tuple(({"role": "assistant", "content": response},) for response in responses),
            (Span(0, 0, len(context)),),
            Span(0, len(text) - len(question), len(text)),
        )

    return make
