import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longrm.config import Config
from longrm.data import read, read_demonstrations
from longrm.data.files import find_files
from longrm.errors import DataError
from longrm.runs.folder import RunFolder

ROWS = [{"prompt": f"Question {n}?", "chosen": f"yes {n}", "rejected": f"no {n}", "n": n} for n in range(20)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
SAMPLE = Path(__file__).parents[3] / "shared/data/longrm-sample"

PAIR = {"prompt": "Who?", "chosen": "Ann", "rejected": "Bob"}


def jsonl(folder: Path) -> Path:
    (folder / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode())
    return folder / "rows.jsonl"


def compressed(folder: Path) -> Path:
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    return folder / "rows.jsonl.gz"


def array(folder: Path) -> Path:
    (folder / "rows.json").write_text(json.dumps(ROWS, indent=2))
    return folder / "rows.json"


def json_lines(folder: Path) -> Path:
    (folder / "rows.json").write_text(LINES)
    return folder / "rows.json"


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


@pytest.mark.parametrize("make", [jsonl, compressed, array, json_lines, parquet, shards, saved])
def test_every_container_gives_the_same_rows_twice(make, tmp_path):
    reading = read(make(tmp_path))
    assert reading.format == "trl"
    for _ in range(2):
        rows = list(reading)
        assert [row.source for row in rows] == ROWS
        assert [row.number for row in rows] == list(range(1, 21))
        assert [row.comparison.id for row in rows] == [f"row-{n}" for n in range(1, 21)]


def test_a_fault_in_a_later_shard_names_the_shard_and_its_own_row(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[0]) + "\n{\n")
    with pytest.raises(DataError, match=r"b\.jsonl, line 2: not valid JSON"):
        list(read(tmp_path))


def test_json_lines_are_read_one_by_one(tmp_path):
    path = jsonl(tmp_path)
    with path.open("ab") as file:
        file.write(b"{")  # a fault that only a reader ahead of its time would meet
    rows = iter(read(path))
    assert [next(rows).number for _ in ROWS] == list(range(1, 21))
    with pytest.raises(DataError, match="line 21"):
        next(rows)


def test_several_splits_are_named(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    split = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": split, "eval": split}).save_to_disk(tmp_path / "all")
    with pytest.raises(DataError, match=r"several data sets \(eval, train\); name one: .*all/eval"):
        read(tmp_path / "all")


def test_what_is_no_data_is_one_line(tmp_path):
    (tmp_path / "a.tsv").write_text("a,b")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode())[:-20])
    (tmp_path / "a.json").write_text('[{"prompt":')
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half/state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    for name, problem in [
        ("none.jsonl", "there is no such file"),
        ("a.tsv", "unknown kind of file"),
        ("a.parquet", "cannot be read"),
        ("a.jsonl.gz", "cannot be read"),
        ("a.json", "not valid JSON"),
        ("empty", "no saved data set|saved data set"),
        ("half", "gone.arrow: missing"),
    ]:
        with pytest.raises(DataError, match=problem) as caught:
            list(read(tmp_path / name))
        assert str(tmp_path / name) in str(caught.value)
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


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the LongRM sample does not lie beside the checkout")
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


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the LongRM sample does not lie beside the checkout")
def test_the_longrm_sample_of_demonstrations():
    assert len(list(read_demonstrations(SAMPLE / "sft/eval"))) == 2
    with pytest.raises(DataError, match="row 1, field 'golden': a demonstration"):
        read(SAMPLE / "sft/eval")


def test_the_folder_of_a_run_is_read_from_its_rows(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "ledger.jsonl").write_text('{"id": "no row"}\n')
    with pytest.raises(DataError, match=r"manifest\.json"):
        find_files(tmp_path)
    (tmp_path / "rows" / "rows-00000.jsonl").write_text("{}\n")
    assert find_files(tmp_path) == [tmp_path / "rows" / "rows-00000.jsonl"]


def test_a_json_file_in_a_folder_is_named(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([PAIR]))
    with pytest.raises(DataError, match=r".*rows\.json"):
        read(tmp_path)
    assert len(list(read(tmp_path / "rows.json"))) == 1


@pytest.mark.parametrize("place", ["", "rows"])
def test_rows_of_a_run_that_was_stopped_are_read_with_a_warning(tmp_path, caplog, place):
    with RunFolder(tmp_path, "synthesis of rubrics", Config()):
        (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(json.dumps(PAIR) + "\n")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert len(list(read(tmp_path / place))) == 1
    assert "has not finished" in caplog.text
    caplog.clear()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"counts": {"rows": 1}}))
    assert len(list(read(tmp_path / place))) == 1
    (tmp_path / "manifest.json").write_text("{}")  # another program's
    assert len(list(read(tmp_path / place))) == 1
    assert "not finished" not in caplog.text
