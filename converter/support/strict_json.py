"""JSON of untrusted files: only the subset that the readers in all languages accept."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

#: Brackets within brackets, and brackets and commas in all: a parser calls itself at each, and keeps every value.
MAX_DEPTH, MAX_VALUES = 64, 300_000
#: Above these not every whole number is a float64.
_EXACT = 1 << 53
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def parse_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8; a number without a fraction is an int, however it is written (8, 8.0, 8e0).

    Raises:
        ValueError: it is no such JSON, a number is not finite, or it is nested too deeply or holds too many values.
    """
    text = data.decode()
    _check_bounds(text)
    return json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=_refuse)


def _check_bounds(text: str) -> None:
    depth = values = 0
    for sign in re.findall(r"[][{},]", _STRING.sub("", text)):
        depth += (sign in "[{") - (sign in "]}")
        values += sign not in "]}"
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")


def _number(text: str) -> int | float:
    number = float(text)
    if not isfinite(number):
        _refuse(text)
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number


def _integer(text: str) -> int:
    if not isfinite(float(text)):
        _refuse(text)
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:60]} is no finite number")
