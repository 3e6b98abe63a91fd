import json

import pytest
from pydantic import BaseModel, TypeAdapter

from longrm.errors import DataError, RunError
from longrm.reading import FieldError, parse_json, read_json, read_toml, reading, short_name, typed


class Held(BaseModel):
    a: dict[str, list[int]]


@pytest.mark.parametrize(
    "error", [OSError(2, "No such file"), FieldError("id", "empty"), ValueError("broken"), KeyError("a")]
)
def test_reading_adds_the_place_to_every_error(error):
    with pytest.raises(DataError, match=r"^a\.jsonl, row 3[:,] "), reading("a.jsonl, row 3", DataError):
        raise error


def test_errors_of_longrm_pass_as_they_are():
    with pytest.raises(RunError, match="^full$"), reading("a.jsonl", DataError):
        raise RunError("full")


@pytest.mark.parametrize("content", [b"[]", b'{"a": ', b"\xff", b""])
def test_a_file_that_is_not_a_json_object_is_named(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json: "):
        read_json(tmp_path / "a.json", DataError)


def test_a_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"b": 7}')
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfb = 7")
    assert read_json(tmp_path / "a.json", DataError) == {"b": 7} == read_toml(tmp_path / "a.toml", DataError)


def test_lone_surrogates_become_question_marks_and_pairs_stay():
    assert parse_json('{"a\\ud83d": ["\\ude00b", "\\ud83d\\ude00"]}') == {"a?": ["?b", "\U0001f600"]}
    assert parse_json(json.dumps("\\ud83d")) == "\\ud83d"


def test_a_value_of_the_wrong_type_is_named_by_its_field():
    with pytest.raises(DataError, match=r"^F, line 3, field 'a\.b\.1': .*integer") as caught:
        typed(TypeAdapter(Held), {"a": {"b": [1, "x" * 500]}}, "F, line 3", DataError)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/models/tiny/final", "final"),
        ("runs/demo/training/long/model", "long"),
        ("likelihood:runs/demo/long/model#runs/demo/short/model", "likelihood:long#short"),
        ("ensemble:votes:/a/b/one/model+owner/two", "ensemble:votes:one+owner/two"),
        ("judgebench:/data/judgebench/pairs.jsonl", "judgebench:pairs.jsonl"),
        ("openai:http://127.0.0.1:8000/v1#judge", "openai:http://127.0.0.1:8000/v1#judge"),
        ("owner/model@main", "owner/model@main"),
        ("model", "model"),
    ],
)
def test_short_names_are_the_last_part_of_a_path(name, short):
    assert short_name(name) == short


def test_a_relative_folder_is_distinguished_from_a_hub_id_by_whether_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_name("short/model") == "short/model"
    (tmp_path / "short/model").mkdir(parents=True)
    assert short_name("short/model") == "short"
