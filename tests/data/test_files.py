import datetime
import decimal
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longrm.data import read, read_demonstrations
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError

ROWS = [{"prompt": f"Question {n}?", "chosen": f"yes {n}", "rejected": f"no {n}", "n": n} for n in range(20)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
SAMPLE = Path(__file__).parents[3] / "shared/data/longrm-sample"

PAIR = {"prompt": "Who?", "chosen": "Ann", "rejected": "Bob"}


def content(name: str, content: bytes):
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def parquet(folder: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet", row_group_size=3)
    return folder / "rows.parquet"


def shards(folder: Path) -> Path:
    for start in (0, 10):
        pq.write_table(pa.Table.from_pylist(ROWS[start : start + 10]), folder / f"part-{start:02}.parquet")
    return folder


def saved(folder: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved", num_shards=2)
    return folder / "saved"


CONTAINERS = {
    "jsonl": content("rows.jsonl", b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode()),
    "compressed": content("rows.jsonl.gz", gzip.compress(LINES.encode())),
    "array": content("rows.json", json.dumps(ROWS, indent=2).encode()),
    "json lines": content("rows.json", LINES.encode()),
    "parquet": parquet,
    "shards": shards,
    "saved": saved,
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_gives_the_same_rows_twice(make, tmp_path):
    reading = read(make(tmp_path))
    assert reading.format == "trl"
    for _ in range(2):
        rows = list(reading)
        assert [row.source for row in rows] == ROWS
        assert [row.number for row in rows] == list(range(1, 21))
        assert [row.comparison.id for row in rows] == [f"row-{n}" for n in range(1, 21)]


def test_an_error_in_a_later_shard_names_the_shard_and_its_row(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[0]) + "\n{\n")
    with pytest.raises(DataError, match=r"b\.jsonl, line 2"):
        list(read(tmp_path))


def test_several_splits_are_named(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": split, "eval": split}).save_to_disk(tmp_path / "all")
    with pytest.raises(DataError, match="all/eval"):
        read(tmp_path / "all")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.jsonl", None),
        ("a.tsv", b"a,b"),
        ("a.parquet", b"PAR1 and nothing more"),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-20]),
        ("a.json", b'[{"prompt":'),
        ("", None),  # an empty folder
    ],
)
def test_a_path_without_readable_rows_is_named(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=str(tmp_path / name)) as caught:
        list(read(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_demonstrations(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"chat_template": "Judge.", "golden": "[Score: 8]", "hop": 2}) + "\n{}\n")
    rows = iter(read_demonstrations(path))
    first = next(rows).demonstration
    assert first.prompt == ({"role": "user", "content": "Judge."},)
    assert first.completion == ({"role": "assistant", "content": "[Score: 8]"},)
    assert (first.id, first.metadata) == ("row-1", {"hop": 2})
    with pytest.raises(DataError, match="line 2, field 'chat_template'"):
        next(rows)


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no LongRM sample next to the checkout")
@pytest.mark.parametrize(("split", "count"), [("simpo/train", 16), ("simpo/eval", 2)])
def test_the_longrm_sample(split, count):
    reading = read(SAMPLE / split)
    comparisons = [row.comparison for row in reading]
    assert reading.format == "chat_template"
    assert len(comparisons) == count == len({comparison.group for comparison in comparisons})
    for row, comparison in zip(reading, comparisons, strict=True):
        assert comparison.role == "judgment"
        assert comparison.ranks == (1, 2, 2, 2, 2)
        assert list(comparison.prompt) == row.source["chat_template"]
        assert comparison.evidence
        assert comparison.question is not None


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no LongRM sample next to the checkout")
def test_the_longrm_sample_of_demonstrations():
    assert len(list(read_demonstrations(SAMPLE / "sft/eval"))) == 2
    with pytest.raises(DataError, match="row 1, field 'golden'"):
        read(SAMPLE / "sft/eval")


def test_the_folder_of_a_run_is_read_from_its_rows(tmp_path, caplog):
    (tmp_path / "rows").mkdir()
    (tmp_path / "ledger.jsonl").write_text('{"id": "no row"}\n')
    with pytest.raises(DataError, match=r"manifest\.json"):
        find_files(tmp_path)
    (tmp_path / "rows" / "rows-00000.jsonl").write_text("{}\n")
    assert find_files(tmp_path) == [tmp_path / "rows" / "rows-00000.jsonl"]
    assert not caplog.records
    (tmp_path / "manifest.json").write_text('{"kind": "synthesis of rubrics"}')
    for path in (tmp_path, tmp_path / "rows", tmp_path / "rows" / "rows-00000.jsonl"):
        caplog.clear()
        find_files(path)
        find_files(path)
        assert [record.getMessage().startswith(f"{path}: ") for record in caplog.records] == [True]
        assert "not finished" in caplog.text


def test_a_json_or_csv_file_in_a_folder(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([PAIR]))
    with pytest.raises(DataError, match=r".*rows\.json"):
        read(tmp_path)
    (tmp_path / "rows.csv").write_text("prompt,chosen,rejected\nWho?,Ann,Bob\n")
    assert find_files(tmp_path) == [tmp_path / "rows.csv"]
    (tmp_path / "rows.jsonl").write_text(LINES)
    assert find_files(tmp_path) == [tmp_path / "rows.jsonl"]


# --- Parquet and Arrow: values of every type are read, and an invalid JSON value is an error of its row only ---

TEXTS = {"prompt": ["Who?", "When?"], "chosen": ["Ann", "Now"], "rejected": ["Bob", "Then"]}


BOTH = pytest.mark.parametrize("suffix", [".parquet", ".arrow"])


@pytest.fixture
def stored(tmp_path):
    """Writes columns next to those of two comparisons, and returns the file."""

    def write(suffix, table=None, **columns):
        table = pa.table(TEXTS | columns) if table is None else table
        path = tmp_path / f"rows{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return path

    return write


VALUES = [
    (pa.array([decimal.Decimal("1.50"), None]), [decimal.Decimal("1.50"), None]),
    (pa.array([datetime.date(2024, 2, 29), None]), [datetime.date(2024, 2, 29), None]),
    (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
    (pa.array([{"a": [1, None]}, None]), [{"a": [1, None]}, None]),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
    (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', None])), [{"a": [1]}, None]),
]


@BOTH
@pytest.mark.parametrize(("column", "expected"), VALUES, ids=[str(column.type) for column, _ in VALUES])
def test_values_of_every_type_are_read(column, expected, suffix, stored):
    path = stored(suffix, extra=column)
    assert [raw.checked()["extra"] for raw in raw_rows([path])] == expected


@BOTH
def test_an_invalid_json_value_is_an_error_of_its_row(suffix, stored):
    path = stored(suffix, extra=pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]", "[1"])))
    with pytest.raises(DataError, match="row 2, field 'extra'"):
        list(read(path))
    reading = read(path, on_bad_row="skip")
    assert [row.number for row in reading] == [1]
    assert reading.skipped.count == 1


@BOTH
def test_rows_are_numbered_over_batches(suffix, stored):
    table = pa.table({name: texts * 20 for name, texts in TEXTS.items()})
    assert [raw.number for raw in raw_rows([stored(suffix, table)])] == [*range(1, 41)]


def test_a_duplicate_column_is_an_error(stored):
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["prompt", "prompt"])
    with pytest.raises(DataError, match=r"rows\.parquet, field 'prompt'"):
        list(raw_rows([stored(".parquet", table)]))
