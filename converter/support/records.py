"""Typed records from untrusted JSON or TOML: the dataclass is the schema, and every error names the place."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from converter.support.errors import UsageError, nearest

T = TypeVar("T")

NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def decode(kind: Any, data: Any, where: str) -> Any:
    """Checks parsed JSON against a type and builds the records in it.

    Args:
        kind: str, int, float, bool, Any, a Literal, `tuple[T, ...]`, `dict[str, T]`, a union, or a dataclass of these.
        data: what `json.loads` or `tomllib.loads` returned.
        where: what the data is, for errors: `manifest`.

    Raises:
        UsageError: a field is missing, unknown (nearest names suggested) or of another type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _record(kind, data, where)
    if origin is Literal:
        if data not in arguments or type(data) not in map(type, arguments):
            raise UsageError(
                f"{where}: expected one of {', '.join(map(repr, arguments))}, got {data!r}", page="program-files"
            )
        return data
    if origin in (Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        kinds = [a for a in arguments if a is not type(None)]
        fits = (a for a in kinds[1:] if isinstance(data, list if get_origin(a) is tuple else get_origin(a) or a))
        return decode(next(fits, kinds[0]), data, where)
    if origin is tuple:
        _expect(list, data, where)
        return tuple(decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is dict:
        _expect(dict, data, where)
        return {key: decode(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    _expect(kind, data, where)
    try:
        return float(data) if kind is float else data
    except OverflowError:
        raise UsageError(f"{where}: a number too large", page="program-files") from None


def _expect(kind: type, data: Any, where: str) -> None:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):
        raise UsageError(f"{where}: expected {NAMES[kind]}, got {_short(data)}", page="program-files")
    if isinstance(data, float) and not isfinite(data):
        raise UsageError(f"{where}: expected a finite number, got {data}", page="program-files")


def _record(kind: Any, data: Any, where: str) -> Any:
    _expect(dict, data, where)
    hints, known, needed = _schema(kind)
    for name in data:
        if name not in known:
            raise UsageError(f"{where}: unknown field {name!r}.{nearest(name, known)}", page="program-files")
    missing = next((name for name in needed if name not in data), None)
    if missing is not None:
        raise UsageError(f"{where}: missing field {missing!r}", page="program-files")
    return kind(**{name: decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})


@cache
def _schema(kind: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the types of a record's fields, their names, and the names of those without a default.

    To read them of the annotations takes longer than all else of a small manifest.
    """
    known = fields(kind)
    needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
    return get_type_hints(kind), [f.name for f in known], needed


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
