"""Sampling by a bandit over chunks compared with perturbed contexts, at equal numbers of requests, on L-Eval.

Three samplings answer the same questions as often as each other: the plans of the recipe `data/responses`, chunks at
random, and the bandit with its defaults. Answers are scored by the question's own metric, relative to the gold answer.
Writers: `reader`, which knows no answer and quotes the sentences shown that have most of the question's words; a
`simulated:` one, which knows the answer and gives it if its words are shown; or a language model.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from recording import circumstances

import longrm
from longrm.clients import Completion
from longrm.data.chunking import approximate_tokens, words_of
from longrm.evaluation.estimates import ratio
from longrm.evaluation.table import codes_of
from longrm.reading import read_toml
from longrm.rng import Rng
from longrm.synthesis.bandit import ChunkBandit
from longrm.synthesis.documents import Document, read_documents, sentences
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest
from longrm.synthesis.pipeline import open_models
from longrm.synthesis.recipes import responses
from longrm.synthesis.simulated import GoldAnswers
from longrm.types import Outcome, text_of

TASKS = ("natural_question", "financial_qa", "legal_contract_qa")  # short answers, rated by token F1
RECIPE = Path(longrm.__file__).parent / "recipes/data/responses.toml"


class Reader:
    """Quotes one of the three sentences shown that share the rarest words with the question."""

    name = "reader"

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """Answers every request on its own."""
        return [Completion(Outcome.ANSWERED, self._quote(request)) for request in requests]

    def _quote(self, request: TaskRequest) -> str:
        shown, found = _split(request.parts["shown"])
        asked = {*words_of(request.parts["question"])}
        weights = {word: 1 / (1 + sum(word in words for words in found)) for word in sorted(asked)}
        best = sorted(range(len(shown)), key=lambda at: -sum(weights[word] for word in found[at] & asked))
        return shown[Rng("reader", request.seed).choice(best[:3])]


@lru_cache(maxsize=256)  # some plans show the same context again
def _split(text: str) -> tuple[list[str], list[set[str]]]:
    found = sentences(text)
    return found, [{*words_of(sentence)} for sentence in found]


class Counting:
    """Passes requests on, and counts the tokens of their prompts."""

    def __init__(self, model: AsyncModel) -> None:
        self.name, self.tokens, self._model = model.name, 0, model

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """What the other model answers."""
        self.tokens += sum(approximate_tokens(text_of(request.messages)) for request in requests)
        return await self._model.ask(requests)


class RandomChunks(ChunkBandit):
    """Shows as many chunks, drawn evenly: the control for the choice of chunks."""

    def select(self, count: int) -> list[int]:
        """Begins a round: chunks that no reward has a say in."""
        self._round += 1
        order = Rng("random chunks", len(self.values), self.values, self._round).order(
            range(len(self.values))
        )
        return sorted(next(order) for _ in range(min(count, len(self.values))))


def questions(folder: Path, count: int) -> list[Document]:
    """The first questions of each task, spread over the texts."""
    by_task: dict[str, list[Document]] = {task: [] for task in TASKS}
    texts: dict[str, int] = {}
    for document in read_documents(folder, "leval"):
        own = by_task.get(document.task)
        if (
            own is not None
            and document.metric
            and len(own) < count // len(TASKS)
            and texts.get(document.group, 0) < 2
        ):
            texts[document.group] = texts.get(document.group, 0) + 1
            own.append(document)
    return [document for own in by_task.values() for document in own]


def measure(
    sampling: str, documents: Sequence[Document], model: AsyncModel, options: argparse.Namespace
) -> Any:
    counting, rate = Counting(model), responses.rater(None)
    plans = [plan | {"temperature": 1.0} for plan in read_toml(RECIPE, ValueError)["plans"]]
    settings: dict[str, Any] = {
        "documents": {"path": "leval"},
        "writers": [{"model": "simulated:0"}],
        "max_tokens": options.max_tokens,
        "seed": options.seed,
    }
    if sampling == "plans":
        settings["plans"] = [plans[number % len(plans)] for number in range(options.rounds)]
    else:
        settings["sampling"] = "bandit"
        settings["bandit"] = {
            "rounds": options.rounds,
            "chunks": options.chunks,
            "chunk_size": options.chunk_size,
        }
    recipe = responses.RECIPE.resolve(None, settings)
    responses.ChunkBandit = RandomChunks if sampling == "random chunks" else ChunkBandit  # type: ignore[misc]
    pool, _ = responses.gather_passages(documents, options.seed)
    make = (
        partial(responses.make_rows, recipe, [counting], pool)
        if recipe.sampling == "plans"
        else partial(responses.make_rows_by_bandit, recipe, recipe.bandit, [counting], rate)
    )

    async def scores_of(document: Document) -> list[float]:
        made = await make(document)
        found = [await rate[0](document, row["text"]) for row in made.rows]
        return [score for score in found if score is not None]

    async def all_scores() -> list[list[float]]:
        return await asyncio.gather(*map(scores_of, documents))

    scores = asyncio.run(all_scores())
    return {
        "sampling": sampling,
        "writer": model.name,
        "questions": len(documents),
        "requests_per_question": options.rounds,
        "prompt_tokens_per_request": round(counting.tokens / len(documents) / options.rounds),
        "best": interval([max(own, default=0.0) for own in scores], documents),
        "spread": interval([max(own, default=0.0) - min(own, default=0.0) for own in scores], documents),
        "with_a_pair": statistics.fmean(len({*own}) > 1 for own in scores),
    }


def interval(values: Sequence[float], documents: Sequence[Document]) -> list[float | None]:
    """The mean with its 95% interval over the texts."""
    groups = codes_of(document.group for document in documents)
    found = ratio(np.array(values), np.ones(len(values)), groups, seed=0, resamples=2000)
    return [
        found.value and round(found.value, 4),
        found.low and round(found.low, 4),
        found.high and round(found.high, 4),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="L-Eval's folder")
    parser.add_argument(
        "--writer", default="reader", help="reader, simulated:RATES, or a causal language model"
    )
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--chunk-size", type=int, default=1500)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--samplings", nargs="+", default=["plans", "random chunks", "bandit"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    documents, answers = questions(options.folder, options.questions), GoldAnswers()
    [*answers.watching(documents)]
    for sampling in options.samplings:
        if options.writer == "reader":
            found = measure(sampling, documents, Reader(), options)
        else:
            settings = ModelSettings(model=options.writer, name=Path(options.writer).name)
            with open_models([settings], Path("/tmp"), options.seed, answers) as ((model,), _):
                found = measure(sampling, documents, model, options)
        print(json.dumps(found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
