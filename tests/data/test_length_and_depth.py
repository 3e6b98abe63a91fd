import math

import pytest

from longrm.data.fields import LengthAndDepth, length_and_depth, length_and_depth_of
from longrm.errors import DataError
from longrm.reading import FieldError
from longrm.types import Comparison


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ({}, LengthAndDepth(None, None)),
        ({"length": None, "depth": None}, LengthAndDepth(None, None)),
        ({"length": 4096, "depth": 0.5}, LengthAndDepth(4096, 0.5)),
        ({"length": 4096.0, "depth": 0}, LengthAndDepth(4096, 0.0)),
        ({"length": 1, "depth": 1}, LengthAndDepth(1, 1.0)),
    ],
)
def test_whole_lengths_and_fractions_of_depth_are_read_as_they_are(metadata, place):
    found = length_and_depth_of(metadata)
    assert found == place
    assert type(found.length) in (int, type(None))
    assert type(found.depth) in (float, type(None))


@pytest.mark.parametrize(
    "length", [True, False, 0, -1, 4096.5, 1e30, 10**400, math.nan, math.inf, "4k", "4096", [4096], {}]
)
def test_any_other_length_is_refused(length):
    with pytest.raises(FieldError, match="field 'length'"):
        length_and_depth_of({"length": length})


@pytest.mark.parametrize("depth", [True, 50, -0.1, 1.0001, 10**400, math.nan, math.inf, "0.5", [0.5]])
def test_any_other_depth_is_refused(depth):
    with pytest.raises(FieldError, match=r"field 'depth'"):
        length_and_depth_of({"depth": depth})


def test_a_value_that_is_refused_is_shown_in_one_short_line():
    with pytest.raises(FieldError) as error:
        length_and_depth_of({"length": "4k\n" * 10_000})
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 250


def test_a_comparison_without_a_file_is_named_itself():
    row = Comparison("c1", "g", ({"role": "user", "content": "?"},), ((), ()), metadata={"depth": 50})
    with pytest.raises(DataError, match=r"comparison 'c1', field 'depth': .* got 50"):
        length_and_depth(row)
