import json
import logging

import pytest

from longrm.data import read
from longrm.errors import DataError
from longrm.types import Comparison, Span, message_text

USER = {"role": "user", "content": "The code of Quill is amber.\n\nQuestion: What is the code?"}
GOOD = {"role": "assistant", "content": "It is amber."}
BAD = {"role": "assistant", "content": "It is copper."}
WORSE = {"role": "assistant", "content": "No idea."}


def one(tmp_path, row, **options) -> tuple[str, Comparison]:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    reading = read(path, **options)
    rows = list(reading)
    assert [found.source for found in rows] == [row]  # untouched
    return reading.format, rows[0].comparison


TEXT = USER["content"]
PAIRS = {
    "plain": {"prompt": TEXT, "chosen": GOOD["content"], "rejected": BAD["content"]},
    "conversational": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "implicit": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "repeated": {"prompt": TEXT, "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "listed": {"prompt": TEXT, "chosen": GOOD["content"], "rejected": [BAD["content"]]},
}


@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
def test_trl_rows_mean_the_same_in_every_spelling(row, tmp_path):
    name, comparison = one(tmp_path, row)
    assert name == "trl"
    assert comparison.prompt == (USER,)
    assert comparison.responses == ((GOOD,), (BAD,))
    assert comparison.ranks == (1, 2)
    assert comparison.metadata == {}
    assert comparison.id == "row-1"


@pytest.mark.parametrize("column", ["rejected", "rejects", "rejected_responses"])
@pytest.mark.parametrize("conversational", [False, True])
def test_trl_rows_with_many_rejected(column, conversational, tmp_path):
    rejected = [[BAD], [WORSE]] if conversational else [BAD["content"], WORSE["content"]]
    name, comparison = one(tmp_path, {"prompt": TEXT, "chosen": GOOD["content"], column: rejected})
    assert name == "trl"
    assert comparison.responses == ((GOOD,), (BAD,), (WORSE,))
    assert comparison.ranks == (1, 2, 2)


def test_trl_dialogs_that_share_several_turns(tmp_path):
    turns = [{"role": "system", "content": "Judge."}, USER, WORSE, {"role": "user", "content": "Again?"}]
    _, comparison = one(tmp_path, {"chosen": [*turns, GOOD], "rejected": [*turns, BAD]})
    assert list(comparison.prompt) == turns
    assert comparison.responses == ((GOOD,), (BAD,))


def test_trl_texts_of_human_and_assistant_turns(tmp_path):
    start = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: What is the code?\n\nAssistant: It is"
    _, comparison = one(tmp_path, {"chosen": f"{start} amber.", "rejected": f"{start} copper."})
    assert [(turn["role"], turn["content"]) for turn in comparison.prompt] == [
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "What is the code?"),
    ]
    assert [message_text(response[0]) for response in comparison.responses] == [
        "It is amber.",
        "It is copper.",
    ]


def test_trl_texts_without_turns_are_cut_between_words(tmp_path):
    row = {"question": "Question?", "chosen": "Question? Yes amber", "rejected": "Question? Yes, copper"}
    _, comparison = one(tmp_path, row)
    assert message_text(comparison.prompt[0]) == "Question?"
    assert [message_text(response[0]) for response in comparison.responses] == ["Yes amber", "Yes, copper"]


def test_chat_template_rows_hold_judgments(tmp_path):
    row = {"chat_template": [USER], "chosen": "[Score: 8]", "rejects": ["[Score: 2]", "[Score: 4]"], "hop": 3}
    name, comparison = one(tmp_path, row | {"context": "Quill is amber"})
    assert name == "chat_template"
    assert comparison.role == "judgment"
    assert comparison.ranks == (1, 2, 2)
    assert comparison.metadata["hop"] == 3
    assert comparison.context == ()
    assert [TEXT[span.start : span.end] for span in comparison.evidence] == ["Quill is amber"]


@pytest.mark.parametrize(
    ("extra", "ranks"),
    [
        ({}, (1, 2, 3)),
        ({"candidates_score": [0.9, 0.5, 0.5]}, (1, 2, 2)),
        ({"candidates_score": [0.9, 0.9, 0.5], "ranks": [2, 1, 2]}, (2, 1, 2)),
        ({"scores": [0.1, 0.2, 0.3]}, (1, 2, 3)),  # what a model wrote there is no gold
    ],
)
def test_candidates_come_best_first(extra, ranks, tmp_path):
    texts = [message["content"] for message in (GOOD, BAD, WORSE)]
    name, comparison = one(tmp_path, {"prompt_template": [USER], "candidates": texts, **extra})
    assert name == "candidates"
    assert comparison.ranks == ranks
    assert comparison.responses == ((GOOD,), (BAD,), (WORSE,))


def test_native_rows(tmp_path):
    row = {
        "id": "a",
        "group": "g",
        "prompt": [USER],
        "responses": [[GOOD], [BAD]],
        "context": [{"message": 0, "start": 0, "end": 27}],
        "question": {"message": 0, "start": 29, "end": 56},
        "source": "ours",
    }
    name, comparison = one(tmp_path, row)
    assert name == "longrm"
    assert (comparison.id, comparison.group, comparison.ranks) == ("a", "g", None)
    assert comparison.context == (Span(0, 0, 27),)
    assert comparison.question == Span(0, 29, 56)
    assert comparison.metadata == {"source": "ours"}


def test_columns_that_name_parts_of_the_prompt_become_spans(tmp_path):
    row = {
        **PAIRS["plain"],
        "context": "The code of Quill is amber.",
        "question": "What is the code?",
        "uuid": 7,
    }
    _, comparison = one(tmp_path, row)
    assert comparison.context == (Span(0, 0, 27),)
    assert comparison.question == Span(0, 39, 56)
    assert comparison.id == "7"


def test_rows_about_one_document_share_a_group(tmp_path):
    def group(text: str, **columns) -> str:
        return one(tmp_path, {"prompt": text, "chosen": "yes", "rejected": "no", **columns})[1].group

    assert group("Document.\nWho?", question="Who?") == group("Document.\nWhy?", question="Why?")
    assert group("Document.\nWho?", context="Document.") == group("Why?\nDocument.", context="Document.")
    assert group("Document.\nWho?") != group("Document.\nWhy?")
    assert group("Document.", document_id=12) == "12"


def test_unknown_fields_of_messages_are_kept(tmp_path):
    message = {**USER, "content": [{"type": "text", "text": TEXT}], "name": "Ann", "tool_calls": None}
    _, comparison = one(tmp_path, {"prompt": [message], "chosen": [GOOD], "rejected": [BAD]})
    assert comparison.prompt == (message,)


def test_a_named_format_is_used_and_an_unknown_one_refused(tmp_path):
    row = {"chat_template": [USER], "chosen": "yes", "rejected": "no"}
    assert one(tmp_path, row)[1].role == "judgment"
    assert one(tmp_path, row, format="trl")[1].role == "response"
    with pytest.raises(ValueError, match="'tlr'.*trl"):
        one(tmp_path, row, format="tlr")


ANSWERED = {"prompt": "Who?", "responses": ["Ann", "Bob", "Cy"]}


@pytest.mark.parametrize(
    ("gold", "ranks"),
    [
        ({"scores": [1, 3.5, 1]}, (2, 1, 2)),
        ({"scores": [True, False, False]}, (1, 2, 2)),
        ({"scores": [-1, 0, 1e9], "ranks": [1, 2, 3]}, (1, 2, 3)),
        ({"scores": None}, None),
        ({"scores": [1, 3.5, 1], "scores_outcome": "answered", "scores_by": "a model"}, None),
        ({"scores": None, "scores_outcome": "too_long"}, None),
        ({}, None),
    ],
)
def test_scores_are_a_gold_order_unless_a_model_wrote_them(gold, ranks, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "longrm"):
        format, comparison = one(tmp_path, ANSWERED | gold)
    assert (format, comparison.ranks) == ("longrm", ranks)
    assert comparison.metadata == {name: value for name, value in gold.items() if name != "ranks"}
    said = "the gold order is that of the column 'scores'" in caplog.text
    assert said == (ranks is not None and "ranks" not in gold)


@pytest.mark.parametrize("scores", [[1, 2], "1", [1, None, 2], [1, 2, float("nan")], {"judge": 1}])
def test_scores_that_are_no_order_are_refused(scores, tmp_path):
    with pytest.raises(DataError, match="line 1, field 'scores'"):
        one(tmp_path, ANSWERED | {"scores": scores})


def test_a_column_of_scores_may_have_another_name(tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ANSWERED | {"rating": [1, 2, 5]}))
    with caplog.at_level(logging.INFO, "longrm"):
        (row,) = read(path, columns={"scores": "rating"})
    assert row.comparison.ranks == (3, 2, 1)
    assert "the column 'rating'" in caplog.text
