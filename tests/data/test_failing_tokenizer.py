"""A tokenizer that fails on a text ends that row."""

import dataclasses

import pytest
import tokenizers
from tokenizers import models

from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.modeling.loading import new_scorer
from longrm.modeling.shapes import ModelShape
from longrm.reward_models.packed import DiscriminativeRewardModel
from longrm.types import Outcome, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


class Backend:
    """A backend of tokenizers that raises an error where a text has a word."""

    def __init__(self, backend, word, error):
        self._backend, self._word, self._error = backend, word, error

    def encode_batch_fast(self, texts, **options):
        if any(self._word in text for text in texts):
            raise self._error
        return self._backend.encode_batch_fast(texts, **options)

    def __getattr__(self, name):
        return getattr(self._backend, name)


@pytest.mark.parametrize("error", [PanicException("index out of bounds"), Exception("no unk token")])
def test_a_failure_of_the_library_ends_its_row_alone(error):
    queries = [query_of(one, (0, 1)) for one in generate(WorldPlan("records", 128), 2, words_tokenizer())]
    loaded = new_scorer(ModelShape(layers=1), words_tokenizer(), seed=0)
    message = dict(queries[1].prompt[0])
    message["content"] = f"panics {message['content']}"
    queries[1] = dataclasses.replace(queries[1], prompt=(message,))
    backend = Backend(loaded.tokenizer.backend, "panics", error)
    loaded = dataclasses.replace(loaded, tokenizer=dataclasses.replace(loaded.tokenizer, backend=backend))
    judged = DiscriminativeRewardModel(loaded, "model").judge(queries)
    assert [one.outcome for one in judged] == [Outcome.ANSWERED, Outcome.ERROR]
    assert str(error) in judged[1].detail


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_what_is_no_failure_of_the_library_passes(error):
    tokenizer = words_tokenizer()
    broken = dataclasses.replace(tokenizer, backend=Backend(tokenizer.backend, "x", error))
    with pytest.raises(type(error)):
        broken.encode("x")


def test_a_model_that_names_no_unknown_token_fails_on_the_text(tmp_path):
    """Unigram may do without one as long as it knows every text."""
    backend = tokenizers.Tokenizer(models.Unigram([("a", 0.0)], unk_id=None))
    tokenizer = Tokenizer.from_backend(backend)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(DataError):
        tokenizer.encode("b")
