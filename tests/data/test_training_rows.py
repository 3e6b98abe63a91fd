import os
from array import array
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from longrm.data import read, write
from longrm.data.joining import encode
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import context_digest, digest_of, open_rows, tokenize_rows
from longrm.errors import DataError
from longrm.worlds import WorldPlan, generate, words_tokenizer

PAIR = {"prompt": "Who is it?", "chosen": "Ann", "rejected": "Bob"}


UNSEEN = "~"  # which the normalizer removes


def simple(**known: int) -> Tokenizer:
    """A word is a token; unknown words are numbered as they come."""
    words = ("<unk>", "<end>", "Who", "is", "it", "?", "Ann", "Bob", "Eve")
    names = {word: number for number, word in enumerate(words)} | known
    backend = tokenizers.Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.normalizer = normalizers.Replace(UNSEEN, "")
    return Tokenizer.from_backend(backend, eos="<end>")


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, seed=3), 5, words_tokenizer()))
    return path


def examples_of(path, tokenizer, kind="comparison", **options):
    return list(tokenize_rows(open_rows(path, kind, **options), tokenizer))


def listed(example):
    return list(example.tokens.prompt), [list(ids) for ids in example.tokens.responses]


def test_rows_are_what_the_tokenizer_makes_of_them(pairs):
    tokenizer = words_tokenizer()
    examples = examples_of(pairs, tokenizer)
    for example, row in zip(examples, read(pairs), strict=True):
        comparison = row.comparison
        assert listed(example) == (
            tokenizer.prompt_ids(comparison.prompt),
            [encode(tokenizer, comparison.prompt, [one]).responses[0] for one in comparison.responses],
        )
        assert isinstance(example.tokens.prompt, array)
        assert (example.id, example.ranks) == (comparison.id, comparison.ranks)
        assert example.digest == context_digest(comparison)
    assert len({example.digest for example in examples}) == 5


def test_order_does_not_depend_on_how_many_threads_work(pairs, monkeypatch):
    found = []
    for number in (1, 7):
        monkeypatch.setattr(os, "cpu_count", lambda number=number: number)
        found.append(examples_of(pairs, words_tokenizer()))
    assert found[0] == found[1]


def test_the_digest_is_that_of_all_on_which_tokens_depend(pairs, tmp_path):
    tokenizer, larger = words_tokenizer(), words_tokenizer()
    larger.backend.add_tokens(["excess"])
    others = [
        replace(tokenizer, chat_template=tokenizer.chat_template + " "),
        replace(tokenizer, special_tokens={**tokenizer.special_tokens, "bos_token": "<unk>"}),
        replace(tokenizer, config={"add_bos_token": True}),
        larger,
    ]
    rows = open_rows(pairs, "comparison")
    digests = [digest_of(rows, one) for one in (tokenizer, *others)]
    digests.append(digest_of(open_rows(pairs, "comparison", on_bad_row="skip"), tokenizer))
    moved = tmp_path / "elsewhere" / pairs.name
    moved.parent.mkdir()
    moved.write_text(pairs.read_text())
    assert digest_of(open_rows(moved, "comparison"), tokenizer) == digests[0]
    moved.write_text(pairs.read_text().replace("access", "excess", 1))
    digests.append(digest_of(open_rows(moved, "comparison"), tokenizer))
    assert len(set(digests)) == len(digests) == 7


def test_every_shard_is_read_and_counts(put):
    folder = put("shards/a.jsonl", PAIR | {"id": "a"}).parent
    second = put("shards/b.jsonl", PAIR | {"id": "b"})
    large = simple(Ann=3_000_000, Bob=70_000)  # ids of more than 16 bits
    assert [example.id for example in examples_of(folder, large)] == ["a", "b"]
    before = digest_of(open_rows(folder, "comparison"), large)
    second.write_text(second.read_text().replace("Bob", "Eve"))
    assert listed(examples_of(folder, large)[1])[1] == [[3_000_000, 1], [8, 1]]
    assert digest_of(open_rows(folder, "comparison"), large) != before


JUDGED = {
    "chat_template": "Judge it.",
    "chosen": "c",
    "rejects": ["same", "other", "none", "same too"],
    "chosen_model": "C",
    "reject_models": ["R1", "R2", "R3", "R4"],
    "scores": {"C": 8, "R1": 8, "R2": 6, "R3": -1, "R4": 8},
}


@pytest.mark.parametrize(
    ("changes", "contrast", "order"),
    [
        ({}, True, ["c", "other", "none", "same", "same too"]),
        ({"scores": dict.fromkeys(["C", "R1", "R2", "R3", "R4"], 8)}, False, ["c", *JUDGED["rejects"]]),
        ({"scores": {"C": 8, "R1": 8, "R2": 6, "R3": -1}}, None, ["c", *JUDGED["rejects"]]),
        ({"scores": None}, None, ["c", *JUDGED["rejects"]]),
        ({"reject_models": ["R1"]}, None, ["c", *JUDGED["rejects"]]),
        ({"chosen_model": None}, None, ["c", *JUDGED["rejects"]]),
    ],
)
def test_rejected_judgments_with_another_score_come_first(changes, contrast, order, put):
    tokenizer = simple(c=10, same=11, other=12, none=13, too=14)
    (example,) = examples_of(put("rows.jsonl", JUDGED | changes), tokenizer)
    assert example.contrast is contrast
    assert listed(example)[1] == [[*tokenizer.encode(text), 1] for text in order]
    assert example.ranks == (1, 2, 2, 2, 2)


NATIVE = {
    "prompt": [{"role": "user", "content": "Who?"}],
    "responses": [[{"role": "assistant", "content": name}] for name in ("Ann", "Bob")],
}
DEMONSTRATION = {"chat_template": "Who is it?", "golden": "Ann"}
TURNS = [{"role": role, "content": "Ann"} for role in ("assistant", "user", "assistant")]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (NATIVE, ": 'x' has no gold order"),
        (
            PAIR | {"chosen": "Ann Zoe", "rejected": "Ann Tom"},
            ": two responses of 'x' have the same tokens but different ranks; use a tokenizer",
        ),
        (PAIR | {"rejected": "Zoe Tom"}, ": every word of response 2 of 'x' is unknown"),
        (PAIR | {"rejected": UNSEEN}, ": response 2 of 'x' has no token but the end"),
        (PAIR | {"prompt": UNSEEN}, ": the prompt has no token"),
        (PAIR | {"margin": [1.0]}, ", field 'margin'"),
        (PAIR | {"margin": -1}, ", field 'margin'"),
        (PAIR | {"margin": float("inf")}, ", field 'margin'"),
        (PAIR | {"metadata": {"margin": 1e30}}, ", field 'margin'"),
        (PAIR | {"probability": 0.4}, ", field 'probability'"),
        (PAIR | {"probability": float("nan")}, ", field 'probability'"),
        (PAIR | {"rejected": None}, ", field 'rejected'"),
        (DEMONSTRATION | {"golden": ""}, ", field 'golden'"),
        (DEMONSTRATION | {"golden": UNSEEN}, ": response 1 of 'x' has no token but the end"),
        (
            DEMONSTRATION | {"golden": TURNS},
            ": a response of several turns needs a tokenizer with a chat template",
        ),
    ],
)
def test_rows_that_would_poison_training_stop_or_are_counted(row, problem, put):
    kind, good = "comparison", PAIR
    if "golden" in row:
        kind, good = "demonstration", DEMONSTRATION
    elif "responses" in row:
        good = NATIVE | {"ranks": [1, 2]}
    path = put("rows.jsonl", good | {"id": "a"}, row | {"id": "x"}, good | {"id": "b"})
    with pytest.raises(DataError) as caught:
        examples_of(path, simple(), kind)
    assert str(caught.value).startswith(f"{path}, line 2{problem}")
    rows = open_rows(path, kind, on_bad_row="skip")
    assert [example.id for example in tokenize_rows(rows, simple())] == ["a", "b"]
    assert rows.skipped.count == 1
    assert rows.skipped.messages[0].startswith(f"{path}, line 2{problem}")


def test_margin_and_probability_are_kept(put):
    path = put("rows.jsonl", PAIR | {"margin": 2, "probability": 0.75}, PAIR | {"margin": None})
    found = [(example.margin, example.probability) for example in examples_of(path, simple())]
    assert found == [(2.0, 0.75), (None, None)]


def test_a_file_without_a_row_to_train_on(put):
    path = put("rows.jsonl", NATIVE)
    with pytest.raises(DataError, match="no row to train on; the first: .* has no gold order"):
        examples_of(path, simple(), on_bad_row="skip")
    with pytest.raises(DataError, match="no row to train on"):
        examples_of(put("none.jsonl"), simple(), "demonstration")


def test_demonstrations(put):
    path = put("rows.jsonl", DEMONSTRATION, DEMONSTRATION | {"golden": "Bob Eve"})
    examples = examples_of(path, simple(), "demonstration")
    assert [listed(one) for one in examples] == [([2, 3, 4, 5], [[6, 1]]), ([2, 3, 4, 5], [[7, 8, 1]])]
    assert [(one.id, one.ranks, one.contrast) for one in examples] == [
        ("row-1", (1,), None),
        ("row-2", (1,), None),
    ]
