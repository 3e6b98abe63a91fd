"""Documents of a generated world with known answers, and scripted models, which several test files share."""

import asyncio
from pathlib import Path

from longrm.clients import Completion
from longrm.synthesis.documents import Candidate, Document
from longrm.types import Outcome, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

LEVAL = Path(__file__).parents[3] / "shared" / "data" / "leval"


def world_documents(count=6, length=600, seed=5):
    """Documents with a right candidate of the model m and a wrong one of n."""
    for comparison in generate(WorldPlan("records", length, seed=seed), count, words_tokenizer()):
        text = message_text(comparison.prompt[0])
        context, question = comparison.context[0], comparison.question
        best, worst = (message_text(comparison.responses[at][0]) for at in comparison.best_first())
        yield Document(
            comparison.id,
            text[context.start : context.end],
            text[question.start : question.end],
            best,
            metadata={"evidence": [[span.start, span.end] for span in comparison.evidence]},
            candidates=(Candidate(comparison.id, "m", best), Candidate(comparison.id, "n", worst, "cut")),
        )


def all_outcomes(make_rows, inputs):
    """Makes the rows of all inputs together."""

    async def gather():
        return await asyncio.gather(*map(make_rows, inputs))

    return asyncio.run(gather())


def completion_of(text):
    return text if isinstance(text, Completion) else Completion(Outcome.ANSWERED, text)
