import pytest

from longrm.data import read, read_demonstrations
from longrm.data.training_rows import tokenize
from longrm.errors import DataError
from longrm.synthesis.inputs.candidates import (
    CandidateAnswer,
    SynthesisInput,
    join_candidates,
    read_candidates,
)
from longrm.synthesis.inputs.documents import Document
from longrm.worlds import words_tokenizer

USER = ({"role": "user", "content": "The access code of Alora is anchor. Score :"},)


def judgment(**changed):
    given = {
        "id": "d/1",
        "chat_template": USER,
        "chosen": "It holds. [[8]]",
        "rejects": ("It does not. [[2]]", "[[8]]"),
        "chosen_model": "a",
        "reject_models": ("b", "c"),
        "scores": {"a": 8, "b": 2, "c": 8},
        "conf": (2, 1),
        "insert_index": 0,
    }
    return given | changed


def test_candidates_come_back_as_they_were(put):
    given = [
        CandidateAnswer("d1", "m", "yes", "cut", 0.5, {"share": 0.2}),
        CandidateAnswer("d1", "n", "no"),
    ]
    assert list(read_candidates(put("c.jsonl", *(one.to_row() for one in given)))) == given


@pytest.mark.parametrize("change", [{"text": " "}, {"document": 3}, {"score": "high"}])
def test_a_bad_candidate_is_named_by_file_row_and_field(put, change):
    row = CandidateAnswer("d1", "m", "yes").to_row() | change
    with pytest.raises(DataError, match=rf"c\.jsonl, line 1, field '{next(iter(change))}'"):
        list(read_candidates(put("c.jsonl", row)))


def test_demonstrations_are_read_by_the_door_that_training_uses(put):
    row = {
        "id": "d/1#0",
        "prompt": USER,
        "completion": "Score : [[ 10 ]]",
        "document": "d/1",
        "evidence": [{"message": 0, "start": 0, "end": 5}],
    }
    (found,) = read_demonstrations(put("rows.jsonl", row))
    assert found.demonstration.id == "d/1#0"
    assert found.demonstration.prompt == USER
    assert found.demonstration.completion == ({"role": "assistant", "content": "Score : [[ 10 ]]"},)
    assert found.demonstration.metadata["evidence"] == [{"message": 0, "start": 0, "end": 5}]
    tokenized = tokenize(found, words_tokenizer(verdicts=True))
    assert tokenized.row.ranks == (1,)
    assert tokenized.tokens.responses[0]


def test_judgment_rows_are_read_as_the_authors_rows_are(put):
    reading = read(put("rows.jsonl", judgment()))
    assert reading.format == "chat_template"
    (row,) = reading
    comparison = row.comparison
    assert (comparison.role, comparison.ranks) == ("judgment", (1, 2, 2))
    assert [response[0]["content"] for response in comparison.responses] == [
        "It holds. [[8]]",
        "It does not. [[2]]",
        "[[8]]",
    ]
    # The reject with the chosen score carries no contrast, and training puts it last.
    assert tokenize(row, words_tokenizer(verdicts=True)).row.contrast is True
    alike = judgment(scores={"a": 8, "b": 8, "c": 8})
    (row,) = read(put("alike.jsonl", alike))
    assert tokenize(row, words_tokenizer(verdicts=True)).row.contrast is False


def test_documents_and_candidates_are_joined_in_order():
    documents = [Document(name, "text", "?", "a") for name in "abc"]
    answers = [CandidateAnswer("a", "m", "1"), CandidateAnswer("a", "n", "2"), CandidateAnswer("c", "m", "3")]
    found = list(join_candidates(documents, answers))
    assert [len(source.candidates) for source in found] == [2, 0, 1]
    assert found[0] == SynthesisInput(documents[0], tuple(answers[:2]))
    with pytest.raises(DataError, match="field 'document': 'b' is missing or comes earlier"):
        list(join_candidates(documents, [CandidateAnswer("c", "m", "3"), CandidateAnswer("b", "m", "1")]))
