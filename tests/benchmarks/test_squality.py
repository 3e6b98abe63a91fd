"""Synthetic rows in the layout of the human evaluation, and the published rows where they are at hand."""

import json
from itertools import combinations

import pytest

from longrm.errors import DataError
from longrm.types import message_text
from tests.benchmarks.conftest import REAL

STORY = {
    "metadata": {"passage_id": "77", "uid": "u"},
    "document": "  Ann took the boat.\n\nBen waited on the quay.",
    "questions": [
        {"question_number": 1, "question_text": "What is the plot?", "responses": []},
        {"question_number": 2, "question_text": "Who is Ben?", "responses": []},
    ],
}


def summary(response, **ranks):
    """A summary with its overall rank by annotator; the other properties rank it the other way round."""
    reviews = [
        {"worker_id": worker, "overall-rank": rank, "correctness-rank": 4 - rank, "selection-rank": 4 - rank}
        for worker, rank in ranks.items()
    ]
    return {"response": response, "reviews": reviews, "overall": {"overall-ranking": 1}}


ROW = {
    "passage-id": "77",
    "questions": {
        "0": {
            "bart": summary("A boat.", u=2, v=3, w=2),
            "bart-dpr": summary("A quay.", u=3, v=2, w=3),
            "human": summary("Ann leaves.", u=1, v=1, w=1),
        },
        "1": {
            "bart": summary("A boat.", u=3, v=3, w=3),
            # Annotators are matched by name, not by place.
            "bart-dpr": summary("A man.", w=2, u=2, v=1),
            "human": summary("He waits.", u=1, v=2, w=1),
        },
    },
}


@pytest.fixture
def folder(tmp_path, put):
    def write(*rows, stories=(STORY,)):
        put("squality/stories.jsonl", *stories)
        put("squality/all-responses.jsonl", *rows)
        return tmp_path / "squality"

    return write


def test_every_two_summaries_are_a_pair_that_the_majority_ranks(folder, bench, counts):
    loaded = bench(f"squality:{folder(ROW)}")
    pairs = {pair.id: pair for pair in loaded.comparisons}
    assert {name: pair.ranks for name, pair in pairs.items()} == {
        "77/1/bart+bart-dpr": (1, 2),
        "77/1/bart+human": (2, 1),
        "77/1/bart-dpr+human": (2, 1),
        "77/2/bart+bart-dpr": (2, 1),
        "77/2/bart+human": (2, 1),
        "77/2/bart-dpr+human": (2, 1),
    }
    assert {pair.group for pair in pairs.values()} == {"77"}
    assert [pair.metadata["votes"] for pair in pairs.values()] == [
        [2, 1],
        [0, 3],
        [0, 3],
        [0, 3],
        [0, 3],
        [1, 2],
    ]
    assert pairs["77/1/bart+bart-dpr"].metadata["task"] == "model-model"
    assert pairs["77/1/bart+bart-dpr"].metadata["subtype"] == "model-model, split"
    assert pairs["77/1/bart+human"].metadata["subtype"] == "human-model, unanimous"
    assert pairs["77/2/bart-dpr+human"].metadata["task"] == "human-model"
    assert loaded.rule == ""
    assert counts(loaded) == {}


def test_the_prompt_is_the_story_and_the_question_which_are_marked(folder, bench):
    pair = list(bench(f"squality:{folder(ROW)}").comparisons)[3]
    text = message_text(pair.prompt[0])
    (context,) = pair.context
    assert text[context.start : context.end] == STORY["document"]
    assert text[pair.question.start : pair.question.end] == "Who is Ben?"
    assert [message_text(one[0]) for one in pair.responses] == ["A boat.", "A man."]


def test_tied_votes_are_left_out_and_counted(folder, bench, counts):
    tied = {"bart": summary("A boat.", u=1, v=2), "human": summary("He waits.", u=2, v=1)}
    loaded = bench(f"squality:{folder(ROW, {'passage-id': '78', 'questions': {'1': tied}}, stories=STORIES)}")
    assert len(list(loaded.comparisons)) == 6
    assert counts(loaded) == {"tied_votes": 1}


STORIES = (STORY, {**STORY, "metadata": {"passage_id": 78}})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"passage-id": "79"}, "passage-id"),
        ({"questions": {"2": ROW["questions"]["0"]}}, "passage-id"),
        ({"questions": {"0": {"bart": {"response": "A boat."}}}}, r"questions.0.bart.reviews"),
        ({"questions": []}, "questions"),
    ],
)
def test_an_invalid_field_is_named(change, field, folder, bench):
    with pytest.raises(DataError, match=f"all-responses.jsonl, line 1, field '{field}"):
        bench(f"squality:{folder({**ROW, **change})}")


def test_pairs_of_a_missing_story_are_counted_as_pairs(folder, bench, counts):
    loaded = bench(f"squality:{folder(ROW, {**ROW, 'passage-id': '79'})}", on_bad_row="skip")
    assert len(list(loaded.comparisons)) == 6
    assert counts(loaded) == {"unreadable_rows": 6}
    assert "pairs" in loaded.audit.findings["unreadable_rows"].what


def test_an_invalid_story_is_named(folder, bench):
    with pytest.raises(DataError, match=r"stories.jsonl, line 1, field 'document'"):
        bench(f"squality:{folder(ROW, stories=[{**STORY, 'document': None}])}")


def test_a_folder_without_ratings_is_refused(tmp_path, bench):
    with pytest.raises(DataError, match="all-responses.jsonl"):
        bench(f"squality:{tmp_path}")


def test_the_published_rows_by_an_independent_count(bench, counts):
    folder = REAL / "squality"
    if not folder.is_dir():
        pytest.skip("SQuALITY is not in ../shared/data")
    loaded = bench(f"squality:{folder}")
    pairs = list(loaded.comparisons)
    stories = map(json.loads, (folder / "stories.jsonl").read_text().splitlines())
    written = {
        (story["metadata"]["passage_id"], question["question_text"]): [
            one["response_text"] for one in question["responses"]
        ]
        for story in stories
        for question in story["questions"]
    }
    expected, longest = {}, 0
    for row in map(json.loads, (folder / "all-responses.jsonl").read_text().splitlines()):
        for summaries in row["questions"].values():
            for names in combinations(summaries, 2):
                one, other = (summaries[name] for name in names)
                ahead = sum(
                    a["overall-rank"] < b["overall-rank"]
                    for a, b in zip(one["reviews"], other["reviews"], strict=True)
                )
                expected[row["passage-id"], one["response"], other["response"]] = (
                    (1, 2) if ahead > 1 else (2, 1)
                )
                longest += (len(one["response"]) > len(other["response"])) == (ahead > 1)
    texts = [[message_text(response[0]) for response in pair.responses] for pair in pairs]
    assert {(p.group, *t): p.ranks for p, t in zip(pairs, texts, strict=True)} == expected
    assert (len(pairs), longest, counts(loaded)) == (195, 127, {})
    tasks = [pair.metadata["task"] for pair in pairs]
    assert (tasks.count("model-model"), tasks.count("human-model")) == (65, 130)
    for pair, (_, last) in zip(pairs, texts, strict=True):
        if pair.metadata["task"] == "human-model":
            question = message_text(pair.prompt[0])[pair.question.start : pair.question.end]
            assert pair.ranks == (2, 1), "annotators prefer people's summaries"
            assert last in written[pair.group, question], "the question that this person answered"
    # Negative control: the order of the file alone is not the gold.
    assert set(expected.values()) == {(1, 2), (2, 1)}
