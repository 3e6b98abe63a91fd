import pytest

from longrm.errors import RunError
from longrm.jsonl import compact_line, cut_unfinished_line, json_line, json_text, whole_lines, writable


def test_a_line_keeps_what_is_no_ascii_and_escapes_half_of_a_surrogate_pair():
    assert json_line({"a": "ü"}) == '{"a": "ü"}\n'.encode()
    assert json_line({"a": "ü\ud800"}) == b'{"a": "\\u00fc\\ud800"}\n'


def test_a_compact_line_has_no_spaces_and_no_half_of_a_surrogate_pair():
    assert compact_line({"a": [1, 2]}) == b'{"a":[1,2]}\n'
    with pytest.raises(UnicodeEncodeError):
        compact_line({"a": "\ud800"})


def test_a_value_that_json_does_not_have_is_refused_unless_it_is_allowed():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(float("nan"))
    assert json_text([float("nan"), {1}], allow_nan=True, default=str) == '[NaN, "{1}"]'


@pytest.mark.parametrize("content", [b"", b"1\n22\n", b"1\n22\n333", b"333", b"1\n" + b"x" * 200_000])
def test_a_file_is_cut_to_the_lines_that_are_read_of_it(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    lines = [*whole_lines(path)]
    cut_unfinished_line(path)
    assert path.read_bytes() == b"".join(line for _, line in lines) == content[: content.rfind(b"\n") + 1]
    assert all(content[start:].startswith(line) for start, line in lines)


def test_a_file_that_is_not_there_has_no_line(tmp_path):
    cut_unfinished_line(tmp_path / "a.jsonl")
    assert [*whole_lines(tmp_path / "a.jsonl")] == []


def test_a_fault_of_writing_is_one_line(tmp_path):
    path = tmp_path / "none" / "a.jsonl"
    with pytest.raises(RunError, match="cannot write .*a.jsonl: No such file or directory"), writable(path):
        path.open("ab")
