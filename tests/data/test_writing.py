import json

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrm.data import read, write, write_rows
from longrm.errors import DataError
from longrm.types import Comparison, Span

SOME = st.text(min_size=1).filter(str.strip)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
ROLES = st.sampled_from(["user", "assistant", "system", "tool"])
CONTENT = SOME | SOME.map(lambda text: [{"type": "text", "text": text}])
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text(), "arguments": JSON})})
)
EXTRA = st.dictionaries(st.sampled_from(["name", "reasoning"]), JSON) | CALLS.map(
    lambda calls: {"tool_calls": calls}
)
MESSAGES = st.builds(
    lambda extra, role, content: extra | {"role": role, "content": content}, EXTRA, ROLES, CONTENT
)


@st.composite
def comparisons(draw, identity: str):
    prompt = draw(st.lists(MESSAGES, min_size=1, max_size=3))
    texts = st.lists(st.lists(MESSAGES, min_size=1, max_size=2).map(tuple), min_size=2, max_size=4)
    responses = draw(texts.filter(lambda found: all(found.count(one) == 1 for one in found)))
    whole = [
        Span(index, 0, len(message["content"]))
        for index, message in enumerate(prompt)
        if isinstance(message["content"], str)
    ]
    spans = st.lists(st.sampled_from(whole), max_size=2).map(tuple) if whole else st.just(())
    count = len(responses)
    return Comparison(
        id=identity,
        group=draw(st.text()),
        prompt=tuple(prompt),
        responses=tuple(responses),
        ranks=draw(st.none() | st.lists(st.integers(1, 9), min_size=count, max_size=count).map(tuple)),
        metadata=draw(st.dictionaries(st.text(), JSON)),
        context=draw(spans),
        question=draw(st.none() | st.sampled_from(whole)) if whole else None,
        evidence=draw(spans),
        role=draw(st.sampled_from(["response", "judgment"])),
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_comparisons_come_back_as_they_were(suffix, data, tmp_path):
    given_rows = [data.draw(comparisons(f"id {n}")) for n in range(data.draw(st.integers(1, 3)))]
    path = tmp_path / f"rows{suffix}"
    assert write(path, iter(given_rows)) == len(given_rows)
    reading = read(path)
    assert reading.format == "longrm"
    assert [row.comparison for row in reading] == given_rows
    assert [file.name for file in tmp_path.iterdir() if file.suffix == suffix] == [path.name]


def row(n: int) -> dict[str, object]:
    return {"id": f"r{n}", "prompt": "Who?", "chosen": f"yes {n}", "rejected": "no", "tags": {"n": n}}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_rows_with_scores_come_back_in_any_number(suffix, tmp_path):
    path = tmp_path / "new" / f"rows{suffix}"
    rows = [{**row(n), "scores": [n / 7, -1.0]} for n in range(1000)]
    assert write_rows(path, rows) == 1000
    assert [found.source for found in read(path)] == rows


def test_parquet_has_types_that_others_read(tmp_path):
    import datasets

    datasets.disable_progress_bars()
    path = tmp_path / "rows.parquet"
    write_rows(path, [{**row(0), "scores": [0.5, 1]}])
    types = {field.name: str(field.type) for field in pq.read_schema(path)}
    assert types == {
        "id": "string",
        "prompt": "string",
        "chosen": "string",
        "rejected": "string",
        "tags": "extension<arrow.json>",
        "scores": "list<element: double>",
    }
    loaded = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["tags"] == {"n": 0}


def test_parquet_rows_that_change_their_columns_are_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    for late in ({**row(1), "new": 1}, {**row(1), "chosen": 3}):
        with pytest.raises(DataError, match=r"rows 1 to 201, field '(new|chosen)'"):
            write_rows(path, [*[row(0)] * 200, late])
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / "rows.jsonl", [row(0), {**row(1), "new": 1}])


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row(0)])
    before = path.read_bytes()

    def broken():
        yield row(1)
        raise DataError("the source is broken")

    with pytest.raises(DataError, match="the source is broken"):
        write_rows(path, broken())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("file/rows.jsonl", "folder.jsonl", "rows.csv"):
        with pytest.raises(DataError, match=name):
            write_rows(tmp_path / name, [row(0)])
    with pytest.raises(DataError, match=r"rows\.parquet"):
        write_rows(tmp_path / "rows.parquet", [])


def test_json_never_has_infinity_or_nan(tmp_path):
    row = {"scores": [float("inf"), 1.0], "metadata": {"a": float("nan")}, "margin": float("-inf")}
    write_rows(tmp_path / "rows.jsonl", [row, {"scores": [1.0]}])
    first, second = (tmp_path / "rows.jsonl").read_text().splitlines()

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(first, parse_constant=refuse) == {
        "scores": [None, 1.0],
        "metadata": {"a": None},
        "margin": None,
    }
    assert json.loads(second) == {"scores": [1.0]}
