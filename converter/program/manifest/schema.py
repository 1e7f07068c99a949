"""Manifest schema: the limits of its fields, from schema.toml, of which readers in other languages are written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from converter.support.errors import UsageError

SCHEMA: Mapping[str, Any] = tomllib.loads(files(__package__).joinpath("schema.toml").read_text())
RECORDS, ROLES, SIGNATURES, LIMITS = (SCHEMA[part] for part in ("records", "roles", "signatures", "limits"))
#: Bytes of one element.
ELEMENT_BYTES: Mapping[str, int] = SCHEMA["enums"]["Dtype"]["values"]
#: No integer is further from 0: one of 32 bits.
MAX_INTEGER = (1 << 31) - 1


def fail(problem: str) -> Any:
    """Raise UsageError for a manifest."""
    raise UsageError(f"manifest: {problem}", page="program-files")


def check_fields(record: Any, where: str = "", kind: str | None = None) -> None:
    """Raise UsageError where a field of a record, or of one in it, is beyond its limits.

    Args:
        record: whose fields have the right types.
        where: what it is, for errors; empty for the manifest itself.
        kind: its name in the schema; None where that is the name of its class.
    """
    for name, limits in RECORDS[kind or type(record).__name__]["fields"].items():
        _check(f"{where}.{name}" if where else name, limits["type"], limits, getattr(record, name), record)


def _check(where: str, kind: str, limits: Mapping[str, Any], value: Any, record: Any) -> None:
    if kind.endswith("?"):
        if value is not None:
            _check(where, kind[:-1], limits, value, record)
    elif kind.endswith("{}"):
        for name, item in value.items():
            _check(f"{where}.{name}", kind[:-2], limits, item, record)
    elif kind.endswith("[]"):
        _check_list(where, kind[:-2], limits, value)
    elif kind in RECORDS:
        check_fields(value, where, kind)
    elif kind == "shape":
        element = getattr(record, limits["element"], limits["element"])
        check_shape(where, value, limits["rank"], element)
    elif kind == "loss":
        if not value:
            fail(f"{where}: there is none")
    elif kind == "string":
        if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
            fail(f"{where}: expected {limits['pattern']}, got {value!r}")
    elif kind in ("integer", "number"):
        bounds = (-MAX_INTEGER, MAX_INTEGER) if kind == "integer" else (None, None)
        least, most = limits.get("least", bounds[0]), limits.get("most", bounds[1])
        if (least is not None and value < least) or (most is not None and value > most):
            fail(f"{where}: {value} is not from {least} to {most}")


def _check_list(where: str, kind: str, limits: Mapping[str, Any], items: Any) -> None:
    if not limits.get("least", 0) <= len(items) <= limits.get("most", len(items)):
        fail(f"{where}: there are {len(items)}")
    unique = limits.get("unique", [])
    for name in [unique] if isinstance(unique, str) else unique:
        check_unique(where, (getattr(item, name) for item in items))
    for i, item in enumerate(items):
        _check(f"{where}[{i}]", kind, {}, item, None)


def check_unique(where: str, names: Iterable[str]) -> None:
    """Raise UsageError where a name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            fail(f"{where}: {name!r} stands there twice")
        seen.add(name)


def check_shape(where: str, shape: tuple[int, ...], rank: int = 1, element: str = "bool") -> None:
    """Raise UsageError for a shape that no tensor of a program has.

    Args:
        where: what it is, for errors.
        shape: the lengths of its axes.
        rank: the fewest axes.
        element: the type of its elements.
    """
    # Not their product, which of many long axes is no number to wait for.
    left = LIMITS["tensor_bytes"] // ELEMENT_BYTES[element]
    for length in shape:
        left = left // length if length >= 1 else 0
    if len(shape) < rank or left < 1:
        fail(f"{where}: bad shape {list(shape[:9])}")
