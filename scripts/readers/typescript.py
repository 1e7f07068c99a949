"""The schema in words of TypeScript: decoders, from which the types follow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = {"string": "string", "boolean": "bool", "object": "object", "any": "anything", "loss": "loss"}


def words(schema: Any) -> dict[str, Any]:
    """Return what the template calls."""
    return {
        "decoder": _Decoders(schema).decoder,
        "wrapped": wrapped,
        "is_optional": is_optional,
        "name": name,
        "literal": json.dumps,
    }


def name(kind: str) -> str:
    """Return the decoder of a record or an enumeration."""
    return kind[0].lower() + kind[1:]


def is_optional(limits: Mapping[str, Any]) -> bool:
    """Return whether a field may be left out."""
    return "default" in limits or "optional" in limits


def wrapped(record: Mapping[str, Any], read: str) -> str:
    """Return the decoder of a record, with the defaults of its fields and the rule of its shape."""
    fields = record["fields"]
    if defaults := ", ".join(f"{field}: {_default(it)}" for field, it in fields.items() if is_optional(it)):
        read = f"filled({read}, {{ {defaults} }})"
    for it in fields.values():
        if (element := it.get("element")) in fields:
            read = f"checked({read}, (it, where) => sized(it.shape, ELEMENT_BYTES[it.{element}], `${{where}}.shape`))"
    return read


def _default(limits: Mapping[str, Any]) -> str:
    if "default" in limits:
        return json.dumps(limits["default"])
    kind = limits["type"]
    return "null" if kind.endswith("?") else "[]" if kind.endswith("[]") else "new Map()"


def _bounds(limits: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}: {limits[key]}" for key in ("least", "most") if key in limits)
    return f"{{ {given} }}" if given else ""


class _Decoders:
    def __init__(self, schema: Any) -> None:
        self.bytes: Mapping[str, int] = schema["enums"]["Dtype"]["values"]

    def decoder(self, limits: Mapping[str, Any]) -> str:
        """Return the expression that reads a field."""
        return self._of(limits["type"], limits)

    def _of(self, kind: str, limits: Mapping[str, Any]) -> str:
        if kind.endswith("?"):
            return f"nullable({self._of(kind[:-1], limits)})"
        if kind.endswith("{}"):
            return f"mapOf({self._of(kind[:-2], limits)})"
        if kind.endswith("[]"):
            return self._list(f"list({self._of(kind[:-2], {})})", limits)
        if kind == "shape":
            return f"shape({limits['rank']}, {self.bytes.get(limits['element'], 1)})"
        if kind == "string" and "pattern" in limits:
            return f"matching(/^(?:{re.sub('/', chr(92) + '/', limits['pattern'])})$/)"
        if kind in ("integer", "number"):
            made = "int32" if kind == "integer" else "number"
            return f"within({made}, {bounds})" if (bounds := _bounds(limits)) else made
        return _PLAIN.get(kind) or name(kind)

    @staticmethod
    def _list(made: str, limits: Mapping[str, Any]) -> str:
        if bounds := _bounds(limits):
            made = f"counted({made}, {bounds})"
        fields = limits.get("unique", [])
        fields = [fields] if isinstance(fields, str) else fields
        return f"unique({made}, {', '.join(map(json.dumps, fields))})" if fields else made
