import pytest

from longrm.errors import RunError
from longrm.jsonl import compact_line, cut_unfinished_line, json_line, whole_lines, writable


def test_a_line_keeps_unicode_and_escapes_a_lone_surrogate():
    assert json_line({"a": "ü"}) == '{"a": "ü"}\n'.encode()
    assert json_line({"a": "ü\ud800"}) == b'{"a": "\\u00fc\\ud800"}\n'


def test_a_compact_line_has_no_spaces_and_no_lone_surrogate():
    assert compact_line({"a": [1, 2]}) == b'{"a":[1,2]}\n'
    with pytest.raises(UnicodeEncodeError):
        compact_line({"a": "\ud800"})


@pytest.mark.parametrize("content", [b"", b"1\n22\n", b"1\n22\n333", b"333", b"1\n" + b"x" * 200_000])
def test_an_unfinished_line_is_cut_and_not_read(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    lines = [*whole_lines(path)]
    cut_unfinished_line(path)
    assert path.read_bytes() == b"".join(line for _, line in lines) == content[: content.rfind(b"\n") + 1]
    assert all(content[start:].startswith(line) for start, line in lines)


def test_an_error_of_writing_names_the_file(tmp_path):
    path = tmp_path / "none" / "a.jsonl"
    with pytest.raises(RunError, match="cannot write .*a.jsonl: No such file or directory"), writable(path):
        path.open("ab")
