"""CSV files: the rows that Python's csv module and pandas read, with lists and numbers where columns hold such."""

import csv
import gzip
import io
import json

import pandas
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longrm.data import read
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError

ROWS = [
    {"id": f"a{n}", "prompt": f"Who?\n{n}", "chosen": f'"A", {n}', "rejected": f"B\r\n{n}", "length": 128, "depth": 0.5}
    for n in range(5)
]  # fmt: skip


def written(rows, **how):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def put(folder, content, name="rows.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def values(path):
    return [raw.checked() for raw in raw_rows(find_files(path))]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("how", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
def test_a_csv_file_gives_the_rows_that_were_written(name, mark, how, tmp_path):
    path = put(tmp_path, mark + written(ROWS, **how), name)
    reading = read(path)
    assert reading.format == "trl"
    assert [row.source for row in reading] == ROWS
    assert [row.number for row in reading] == [1, 2, 3, 4, 5]
    metadata = next(iter(reading)).comparison.metadata
    assert (metadata["length"], metadata["depth"]) == (128, 0.5)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8) | st.sampled_from(
    ["", '"', ",", "\n", "\r\n", 'a"b', " x ", "1", "[1]", "ü"]
)


@settings(max_examples=200)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS).filter(any), min_size=1, max_size=5),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\r\n", "\n"]),
)
def test_cells_are_those_of_the_csv_module_and_of_pandas(rows, quoting, end, tmp_path_factory):
    # Python's writer quotes a carriage return only where lines end by one, and its reader ends a row at others.
    assume(quoting == csv.QUOTE_ALL or "\r" in end or not any("\r" in cell for row in rows for cell in row))
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows([("a", "b", "c"), *rows])
    path = put(tmp_path_factory.mktemp("csv"), text.getvalue().encode())
    found = values(path)
    expected = [{name: cell or None for name, cell in zip("abc", row, strict=True)} for row in rows]
    assert found == expected
    if not any("\r" in cell for row in rows for cell in row):  # pandas makes line feeds of these
        frame = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", engine="python")
        assert found == [
            {name: cell or None for name, cell in row.items()} for row in frame.to_dict("records")
        ]


def test_what_pandas_writes_is_read_and_its_index_left_out(tmp_path):
    frame = pandas.DataFrame(
        [{"prompt": "q", "chosen": "a", "rejected": None}, {"prompt": "p", "chosen": "NA", "rejected": "b"}]
    )
    frame.to_csv(tmp_path / "rows.csv")
    assert values(tmp_path / "rows.csv") == [
        {"prompt": "q", "chosen": "a", "rejected": None},
        {"prompt": "p", "chosen": "NA", "rejected": "b"},
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "candidates": ["a", "b, c", "d"], "ranks": [2, 1, 3], "task": "QA"},
        {"prompt": "q", "candidates": ["a", "b"], "candidates_score": [0.5, 0.25]},
        {"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": "a", "rejects": ["b", "c"]},
        {"prompt": "ab q", "responses": ["a", "b"], "ranks": [1, 1], "metadata": {"task": "x", "length": 64}},
        {"chat_template": "Judge.", "chosen": "So. [[8]]", "rejects": ["No."], "scores": {"a": 8}, "chosen_model": "a"},
    ],
)  # fmt: skip
def test_a_row_is_what_it_is_in_jsonl(row, tmp_path):
    cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    ours = next(iter(read(put(tmp_path, written([cells])))))
    theirs = next(iter(read(tmp_path / "rows.jsonl")))
    assert ours.comparison == theirs.comparison
    assert ours.source == row


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', "[INST] hi", "12", "null", '[{"a": 1}]', " 0.5"])
def test_texts_stay_texts(text, tmp_path):
    row = {"prompt": text, "chosen": text + "!", "rejected": text, "other": text, "id": text}
    assert values(put(tmp_path, written([row]))) == [row]


@pytest.mark.parametrize(
    ("cell", "number"),
    [("512", 512), ("512.0", 512.0), (" 7 ", 7), ("1e3", 1000.0), (".5", 0.5), ("nan", "nan")],
)
def test_numbers_where_numbers_are_read(cell, number, tmp_path):
    (row,) = values(put(tmp_path, written([{"length": cell, "count": cell}])))
    assert row == {"length": number, "count": cell}
    assert type(row["length"]) is type(number)


def test_blank_rows_are_passed_over_and_count_as_pandas_counts_them(tmp_path):
    path = put(tmp_path, b"id,prompt\n\n1,a\n,\n\n2,b\n,\n")
    rows = list(raw_rows(find_files(path)))
    assert [(raw.number, raw.value["id"]) for raw in rows] == [(1, "1"), (3, "2")]
    frame = pandas.read_csv(path, dtype=str)
    assert [n + 1 for n in frame.dropna(how="all").index] == [1, 3]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"prompt,chosen,rejected\nq,a,b\nq,a,b,c\n", "row 2: 4 cells"),
        (b"prompt,chosen,prompt\nq,a,b\n", "field 'prompt'"),
        (b'prompt,chosen,rejected\nq,a,b\n\nq,"a,b\n', "line 4"),
        (b'prompt,chosen,rejected\nq,"a"x,b\n', "line 2"),
        ("prompt,chosen,rejected\nq,ä,b\n".encode("latin-1"), "UTF-8"),
        (b"prompt;chosen;rejected\nq;a;b\n", "commas"),
        (b"prompt,candidates\nq,\"['a', 'b']\"\n", "row 1, field 'candidates'"),
        (b"prompt,chosen,rejected\n\"[{'role': 'user', 'content': 'q'}]\",a,b\n", "row 1, field 'prompt'"),
        (b"prompt,chosen,rejected\nq,a,\n", "row 1, field 'rejected'"),
        (b"", "no row in it"),
        (b"a,b\n1,2\n", "--columns prompt="),
    ],
)
def test_an_error_names_file_row_and_field(content, named, tmp_path):
    with pytest.raises(DataError, match=rf"rows\.csv.*{named}"):
        list(read(put(tmp_path, content)))


def test_an_unclosed_quotation_mark_cannot_be_skipped(tmp_path):
    path = put(tmp_path, b'prompt,chosen,rejected\nq,a\nq,a,b\nq,"a\n')
    reading = read(path, on_bad_row="skip")
    rows = iter(reading)
    assert next(rows).number == 2
    with pytest.raises(DataError, match="line 4"):  # the rest of the file would be lost
        next(rows)
    assert reading.skipped.count == 1
