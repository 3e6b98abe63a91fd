import fcntl
import json
import logging
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


UNSEEN = "~"  # which the tokenizer takes for nothing


def simple(**known: int) -> Tokenizer:
    """A word is a token; unknown words are numbered as they come."""
    names = {
        "<unk>": 0,
        "<end>": 1,
        "Who": 2,
        "is": 3,
        "it": 4,
        "?": 5,
        "Ann": 6,
        "Bob": 7,
        "Eve": 8,
        **known,
    }
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
def opened(tmp_path):
    def open_rows(path, tokenizer=None, **told):
        told = {"kind": "comparison", "cache": tmp_path / "cache", **told}
        return open_tokenized(path, tokenizer or words_tokenizer(), **told)

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


def test_what_was_tokenized_once_is_not_tokenized_again(pairs, opened, made, tmp_path):
    first = list(opened(pairs))
    assert list(opened(pairs)) == first
    moved = tmp_path / "elsewhere" / pairs.name
    moved.parent.mkdir()
    shutil.copy(pairs, moved)
    assert list(opened(moved)) == first
    assert made() == 5


def test_whatever_changes_tokens_is_tokenized_anew(pairs, opened, made, tmp_path):
    told, larger = words_tokenizer(), words_tokenizer()
    larger.backend.add_tokens(["excess"])
    others = [
        {"tokenizer": replace(told, chat_template=told.chat_template + " ")},
        {"tokenizer": replace(told, special_tokens={**told.special_tokens, "bos_token": "<unk>"})},
        {"tokenizer": replace(told, config={"add_bos_token": True})},
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


def test_every_shard_counts(put, opened, made):
    folder = put("shards/a.jsonl", PAIR | {"id": "a"}).parent
    second = put("shards/b.jsonl", PAIR | {"id": "b"})
    assert [row.id for row in opened(folder, simple()).rows] == ["a", "b"]
    second.write_text(second.read_text().replace("Bob", "Eve"))
    assert opened(folder, simple())[1].tokens.responses == [[6, 1], [8, 1]]
    assert made() == 4


@pytest.mark.parametrize("name", ["tokens.bin", "lengths.npy", "rows.jsonl", "entry.json"])
@pytest.mark.parametrize("fault", ["changed", "cut", "gone"])
def test_a_damaged_entry_is_never_used(name, fault, pairs, opened, made, tmp_path, caplog):
    first = list(opened(pairs))
    (file,) = (tmp_path / "cache").glob(f"tokens/*/{name}")
    content = file.read_bytes()
    if fault == "gone":
        file.unlink()
    else:
        at = len(content) // 2
        file.write_bytes(content[:at] + (bytes([content[at] ^ 1]) + content[at + 1 :]) * (fault == "changed"))
    with caplog.at_level(logging.WARNING, "longrm"):
        assert list(opened(pairs)) == first
    assert made() == 10
    assert caplog.text.count("a damaged entry") == 1
    assert list(opened(pairs)) == first
    assert made() == 10


class Stop(BaseException):
    pass


def test_an_entry_appears_when_it_is_whole(pairs, opened, made, monkeypatch, tmp_path):
    def stop(label, done, total, note=""):
        assert not list((tmp_path / "cache").glob("tokens/*/entry.json"))
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
    assert len(opened(pairs, progress=lambda *told: seen.append(told))) == 5
    assert seen == [("tokenizing", number, 0) for number in range(1, 6)]
    assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} == {".lock", ""}


def test_what_a_killed_process_began_goes_and_what_a_living_one_makes_stays(pairs, opened, tmp_path):
    root = tmp_path / "cache" / "tokens"
    for name in ("killed", "alive"):
        (root / f"{name}.partial").mkdir(parents=True)
        (root / f"{name}.partial" / "tokens.bin").write_bytes(b"half")
    with (root / "alive.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened(pairs)
    assert [left.stem for left in root.glob("*.partial")] == ["alive"]


def test_two_processes_at_once_make_one_entry_without_torch(pairs, opened, tmp_path):
    program = (
        "import sys\n"
        "from longrm.data.token_cache import open_tokenized\n"
        "from longrm.worlds import words_tokenizer\n"
        "told = []\n"
        f"rows = open_tokenized({str(pairs)!r}, words_tokenizer(), kind='comparison',\n"
        f"    cache={str(tmp_path / 'cache')!r},\n"
        "    progress=lambda *one: told.append(one))\n"
        "print(len(told), sum(map(len, (row.tokens.prompt for row in rows))), 'torch' in sys.modules)\n"
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
    assert len(kept[0]) == 4
    assert kept[0] == kept[1]


def test_ids_of_more_than_16_bits_are_kept(put, opened):
    rows = opened(put("rows.jsonl", PAIR), simple(Ann=3_000_000, Bob=70_000))
    assert rows[0].tokens.responses == [[3_000_000, 1], [70_000, 1]]


def test_where_entries_lie(monkeypatch):
    monkeypatch.setenv("LONGRM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder("~/c") == Path("~/c/tokens").expanduser()
    assert cache_folder() == Path("/a/tokens")
    monkeypatch.delenv("LONGRM_CACHE")
    assert cache_folder() == Path("/b/longrm/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("~/.cache/longrm/tokens").expanduser()


def test_a_cache_that_cannot_be_written_is_one_line(pairs, opened):
    with pytest.raises(DataError, match="cannot hold the cache of tokenized data .*data.cache") as caught:
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
FAULTS = [
    (NATIVE, "line 2: 'x' has no gold order to train on: its ranks are unknown"),
    (
        PAIR | {"chosen": "Ann Zoe", "rejected": "Ann Tom"},
        "line 2: two responses of 'x' have the same tokens but",
    ),
    (PAIR | {"rejected": UNSEEN}, "line 2: response 2 of 'x' has no token but the end"),
    (PAIR | {"prompt": UNSEEN}, "line 2: the prompt has no token"),
    (PAIR | {"margin": [1.0]}, "line 2, field 'margin'"),
    (
        PAIR | {"margin": -1},
        "line 2, field 'margin': by how much the better response is better, from 0 to 1,000",
    ),
    (PAIR | {"margin": True}, "line 2, field 'margin'"),
    (PAIR | {"probability": 0.4}, "line 2, field 'probability': how sure the gold order is, from 0.5 to 1"),
    (PAIR | {"probability": "high"}, "line 2, field 'probability'"),
    (PAIR | {"rejected": None}, "line 2, field 'rejected'"),
    (PAIR | {"chosen": ["Ann"]}, "line 2, field 'chosen[0]'"),
    (PAIR | {"chosen": " "}, "line 2, field 'chosen': empty"),
    (PAIR | {"rejected": "Ann"}, "line 2, field 'rejected': responses 1 and 2 are identical"),
]


@pytest.mark.parametrize(("row", "problem"), FAULTS, ids=[problem[8:30] for _, problem in FAULTS])
def test_what_must_not_be_trained_on_stops_or_is_counted(row, problem, put, opened):
    good = NATIVE | {"ranks": [1, 2]} if "responses" in row else PAIR
    path = put("rows.jsonl", good | {"id": "a"}, row | {"id": "x"}, good | {"id": "b"})
    with pytest.raises(DataError) as caught:
        opened(path, simple())
    assert str(caught.value).startswith(f"{path}, {problem}")
    assert "\n" not in str(caught.value)
    for _ in "ab":  # made, and read back
        rows = opened(path, simple(), on_bad_row="skip")
        assert [row.id for row in rows.rows] == ["a", "b"]
        assert rows.skipped.count == 1
        assert rows.skipped.messages[0].startswith(f"{path}, {problem}")


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


DEMONSTRATION = {"chat_template": "Who is it?", "golden": "Ann"}


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


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (DEMONSTRATION | {"golden": None}, "line 2, field 'golden'"),
        (DEMONSTRATION | {"golden": ["Ann"]}, "line 2, field 'golden[0]'"),
        (DEMONSTRATION | {"golden": ""}, "line 2, field 'golden': empty"),
        (DEMONSTRATION | {"chat_template": 3}, "line 2, field 'chat_template'"),
        (DEMONSTRATION | {"golden": UNSEEN}, "line 2: response 1 of 'row-2' has no token but the end"),
        (
            DEMONSTRATION
            | {"golden": [{"role": role, "content": "Ann"} for role in ("assistant", "user", "assistant")]},
            "line 2: a response of several turns needs a tokenizer with a chat template",
        ),
        (DEMONSTRATION | {"id": "row-1"}, "line 2, field 'id': 'row-1' is also at"),
        ([], "line 2: not a JSON object"),
    ],
)
def test_bad_demonstrations_stop_or_are_counted(row, problem, put, opened):
    path = put("rows.jsonl", DEMONSTRATION, row)
    with pytest.raises(DataError) as caught:
        opened(path, simple(), kind="demonstration")
    assert str(caught.value).startswith(f"{path}, {problem}")
    rows = opened(path, simple(), kind="demonstration", on_bad_row="skip")
    assert (len(rows), rows.skipped.count) == (1, 1)
    assert json.loads(json.dumps(rows.skipped.messages[0])).startswith(f"{path}, {problem}")


def test_text_that_the_tokenizer_does_not_know_is_refused(put, opened):
    path = put("rows.jsonl", PAIR)
    with pytest.raises(
        DataError, match="response 1 of 'row-1' is unknown to the tokenizer, every word of it"
    ):
        opened(path, words_tokenizer())
    with pytest.raises(DataError, match="line 1, field 'chosen'"):
        opened(put("null.jsonl", PAIR | {"chosen": None}), simple())
