import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from longrm.data import read, token_cache, write
from longrm.data.joining import encode
from longrm.data.token_cache import cache_folder, open_tokenized
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import context_digest
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
def made(monkeypatch):
    """Counts the rows that are tokenized."""
    calls = count()
    real = token_cache.tokenize

    def counted(row, tokenizer):
        next(calls)
        return real(row, tokenizer)

    monkeypatch.setattr(token_cache, "tokenize", counted)
    return lambda: int(repr(calls)[6:-1])


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, seed=3), 5, words_tokenizer()))
    return path


@pytest.fixture
def opened(tmp_path, monkeypatch):
    def open_rows(path, tokenizer=None, cache=tmp_path / "cache", **options):
        monkeypatch.setenv("LONGRM_CACHE", str(cache))
        return open_tokenized(path, tokenizer or words_tokenizer(), **{"kind": "comparison"} | options)

    return open_rows


def test_rows_come_back_as_the_tokenizer_makes_them(pairs, opened):
    rows, tokenizer = opened(pairs), words_tokenizer()
    for held, row in zip(rows, read(pairs), strict=True):
        comparison = row.comparison
        assert held.tokens.prompt == tokenizer.prompt_ids(comparison.prompt)
        assert held.tokens.responses == [
            encode(tokenizer, comparison.prompt, [one]).responses[0] for one in comparison.responses
        ]
        assert (held.row.id, held.row.ranks) == (comparison.id, comparison.ranks)
        assert held.row.digest == context_digest(comparison)
    assert rows.longest == [len(held.tokens.prompt) + max(map(len, held.tokens.responses)) for held in rows]
    assert len({held.row.digest for held in rows}) == 5


def test_tokens_are_made_once(pairs, opened, made, tmp_path):
    first = list(opened(pairs))
    assert list(opened(pairs)) == first
    moved = tmp_path / "elsewhere" / pairs.name
    moved.parent.mkdir()
    shutil.copy(pairs, moved)
    assert list(opened(moved)) == first
    assert made() == 5


def test_a_change_of_data_or_tokenizer_is_tokenized_again(pairs, opened, made, tmp_path):
    tokenizer, larger = words_tokenizer(), words_tokenizer()
    larger.backend.add_tokens(["excess"])
    others = [
        {"tokenizer": replace(tokenizer, chat_template=tokenizer.chat_template + " ")},
        {"tokenizer": replace(tokenizer, special_tokens={**tokenizer.special_tokens, "bos_token": "<unk>"})},
        {"tokenizer": replace(tokenizer, config={"add_bos_token": True})},
        {"tokenizer": larger},
        {"on_bad_row": "skip"},
        {"cache": tmp_path / "other"},
    ]
    opened(pairs)
    for number, change in enumerate(others, start=2):
        opened(pairs, **change)
        assert made() == 5 * number
    text = pairs.read_text()
    pairs.write_text(text.replace("access", "excess", 1))
    opened(pairs)
    assert made() == 5 * 8
    pairs.write_text(text)
    opened(pairs)
    assert made() == 5 * 8


def test_every_shard_counts(put, opened):
    folder = put("shards/a.jsonl", PAIR | {"id": "a"}).parent
    second = put("shards/b.jsonl", PAIR | {"id": "b"})
    assert [row.id for row in opened(folder, simple()).rows] == ["a", "b"]
    second.write_text(second.read_text().replace("Bob", "Eve"))
    large = simple(Ann=3_000_000, Bob=70_000)  # ids of more than 16 bits
    assert opened(folder, large)[1].tokens.responses == [[3_000_000, 1], [8, 1]]


class Stop(BaseException):
    pass


def test_an_entry_appears_when_it_is_complete(pairs, opened, made, monkeypatch, tmp_path):
    def stop(label, done, total, note=""):
        assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} == {".lock", ".partial"}
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        opened(pairs, progress=stop)
    assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} == {".lock"}
    # What a killed process leaves is overwritten.
    (lock,) = (tmp_path / "cache/tokens").iterdir()
    lock.with_suffix(".partial").mkdir()
    (lock.with_suffix(".partial") / "tokens.bin").write_bytes(b"half")
    seen = []
    assert len(opened(pairs, progress=lambda *step: seen.append(step))) == 5
    assert seen == [("tokenizing", number, 0) for number in range(1, 6)]
    assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} == {".lock", ""}


def test_two_processes_at_once_make_one_entry_without_torch(pairs, opened, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGRM_CACHE", str(tmp_path / "cache"))
    program = (
        "import sys\n"
        "from longrm.data.token_cache import open_tokenized\n"
        "from longrm.worlds import words_tokenizer\n"
        "steps = []\n"
        f"rows = open_tokenized({str(pairs)!r}, words_tokenizer(), kind='comparison',\n"
        "    progress=lambda *step: steps.append(step))\n"
        "print(len(steps), sum(map(len, (row.tokens.prompt for row in rows))), 'torch' in sys.modules)\n"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    said = sorted(process.communicate(timeout=60)[0] for process in begun)
    tokens = sum(len(row.tokens.prompt) for row in opened(pairs))
    assert said == [f"0 {tokens} False\n", f"5 {tokens} False\n"]


def test_order_and_bytes_do_not_depend_on_how_many_threads_work(pairs, opened, monkeypatch, tmp_path):
    kept = []
    for number in (1, 7):
        monkeypatch.setattr(token_cache.os, "cpu_count", lambda number=number: number)
        opened(pairs, cache=tmp_path / str(number))
        kept.append({file.name: file.read_bytes() for file in (tmp_path / str(number)).glob("tokens/*/*")})
    assert len(kept[0]) == 3
    assert kept[0] == kept[1]


def test_the_folder_of_the_cache(monkeypatch):
    monkeypatch.setenv("LONGRM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a/tokens")
    monkeypatch.delenv("LONGRM_CACHE")
    assert cache_folder() == Path("/b/longrm/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("~/.cache/longrm/tokens").expanduser()


def test_a_cache_that_cannot_be_written_is_one_line(pairs, opened):
    with pytest.raises(DataError, match="cannot hold the cache of tokenized data .*LONGRM_CACHE") as caught:
        opened(pairs, cache=pairs)
    assert "\n" not in str(caught.value)


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
def test_rejected_judgments_with_another_score_come_first(changes, contrast, order, put, opened):
    tokenizer = simple(c=10, same=11, other=12, none=13, too=14)
    rows = opened(put("rows.jsonl", JUDGED | changes), tokenizer)
    assert rows.rows[0].contrast is contrast
    assert rows[0].tokens.responses == [[*tokenizer.encode(text), 1] for text in order]
    assert rows.rows[0].ranks == (1, 2, 2, 2, 2)


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
def test_rows_that_would_poison_training_stop_or_are_counted(row, problem, put, opened):
    kind, good = "comparison", PAIR
    if "golden" in row:
        kind, good = "demonstration", DEMONSTRATION
    elif "responses" in row:
        good = NATIVE | {"ranks": [1, 2]}
    path = put("rows.jsonl", good | {"id": "a"}, row | {"id": "x"}, good | {"id": "b"})
    with pytest.raises(DataError) as caught:
        opened(path, simple(), kind=kind)
    assert str(caught.value).startswith(f"{path}, line 2{problem}")
    for _ in "ab":  # made, and read back
        rows = opened(path, simple(), kind=kind, on_bad_row="skip")
        assert [row.id for row in rows.rows] == ["a", "b"]
        assert rows.skipped.count == 1
        assert rows.skipped.messages[0].startswith(f"{path}, line 2{problem}")


def test_messages_about_skipped_rows_name_the_file_that_was_opened(put, opened):
    for name in ("first/rows.jsonl", "second/rows.jsonl"):
        path = put(name, PAIR | {"id": "a"}, PAIR | {"id": "x", "rejected": None})
        (message,) = opened(path, simple(), on_bad_row="skip").skipped.messages
        assert message.startswith(str(path))


def test_margin_and_probability_are_kept(put, opened):
    rows = opened(
        put("rows.jsonl", PAIR | {"margin": 2, "probability": 0.75}, PAIR | {"margin": None}), simple()
    )
    assert [(row.margin, row.probability) for row in rows.rows] == [(2.0, 0.75), (None, None)]


def test_a_file_without_a_row_to_train_on(put, opened, tmp_path):
    path = put("rows.jsonl", NATIVE)
    with pytest.raises(DataError, match="no row to train on; the first: .* has no gold order"):
        opened(path, simple(), on_bad_row="skip")
    assert not list((tmp_path / "cache").glob("tokens/*/"))
    with pytest.raises(DataError, match="no row to train on"):
        opened(put("none.jsonl"), simple(), kind="demonstration")


def test_demonstrations(put, opened, made):
    path = put("rows.jsonl", DEMONSTRATION, DEMONSTRATION | {"golden": "Bob Eve"})
    rows = opened(path, simple(), kind="demonstration")
    assert [(row.tokens.prompt, row.tokens.responses) for row in rows] == [
        ([2, 3, 4, 5], [[6, 1]]),
        ([2, 3, 4, 5], [[7, 8, 1]]),
    ]
    assert [(row.id, row.ranks, row.contrast) for row in rows.rows] == [
        ("row-1", (1,), None),
        ("row-2", (1,), None),
    ]
    opened(path, simple(), kind="demonstration")
    assert made() == 2
