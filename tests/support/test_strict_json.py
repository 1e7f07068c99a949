"""JSON of files that are not trusted; the vectors of tests/manifest hold manifests to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.support.strict_json import MAX_DEPTH, MAX_VALUES, parse_json

WHOLE = st.integers(-(1 << 53), 1 << 53)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
def test_what_json_writes_is_read(value: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=True).encode()) == value


@given(WHOLE)
def test_whole_numbers_are_integers_however_they_are_written(number: int) -> None:
    for text in (f"{number}", f"{number}.0", f"{number}e0", f"{number}.00E+0"):
        found = parse_json(text.encode())
        assert found == number
        assert type(found) is int


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "01", "1.", ".5", "+1", "[1,]", "\ufeff1", "'a'", '"\n"']
)
def test_what_is_no_finite_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text.encode())


def test_depth_and_number_of_values_are_bounded() -> None:
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(ValueError, match="too deeply"):
        parse_json(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    parse_json(json.dumps(['[{,\\"' * 9] * (MAX_VALUES - 1)).encode())
    with pytest.raises(ValueError, match="values"):
        parse_json(json.dumps([0] * (MAX_VALUES + 1)).encode())
