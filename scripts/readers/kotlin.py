"""The schema in words of Kotlin: data classes, and checks of their fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PLAIN = {
    "string": "String",
    "integer": "Int",
    "number": "Double",
    "boolean": "Boolean",
    "object": "JsonObject",
    "any": "JsonElement",
    "loss": "JsonElement",
    "shape": "List<Int>",
}


def words(schema: Any) -> dict[str, Any]:
    """Return what the templates call."""
    made = _Kotlin(schema)
    return {
        "parameter": made.parameter,
        "checks": made.checks,
        "constant": _constant,
        "camel": camel,
        "literal": _string,
        "role_rule": _role_rule,
        "signature_rule": _signature_rule,
    }


def _constant(value: str) -> str:
    return value.upper().replace("-", "_")


def camel(name: str) -> str:
    """Return the name of a field as Kotlin writes it."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _role_rule(rule: Mapping[str, Any]) -> str:
    said = {"in": "isInput", "out": "isOutput", "row": "isRows", "named": "isNamed", "state": "isState"}
    arguments = [f"{name} = true" for key, name in said.items() if key in rule]
    arguments += [f"dtype = Dtype.{rule['dtype'].upper()}"] if "dtype" in rule else []
    arguments += [f"{key} = {_string(rule[key])}" for key in ("size", "prefix") if key in rule]
    return ", ".join(arguments)


def _signature_rule(rule: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} = {_string(said) if isinstance(said, str) else _roles(said)}" for key, said in rule.items()
    )


def _roles(names: Iterable[str]) -> str:
    return f"setOf({', '.join(f'Role.{name.upper()}' for name in names)})"


def _string(text: str) -> str:
    return json.dumps(text).replace("$", "\\$")


class _Kotlin:
    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.bytes: Mapping[str, int] = schema["enums"]["Dtype"]["values"]

    def type(self, kind: str) -> str:
        """Return the type of a field; a part of an enumeration is of the type of the whole."""
        if kind.endswith("?"):
            return f"{self.type(kind[:-1])}?"
        if kind.endswith("{}"):
            return f"Map<String, {self.type(kind[:-2])}>"
        if kind.endswith("[]"):
            return f"List<{self.type(kind[:-2])}>"
        return _PLAIN.get(kind) or self.schema["enums"].get(kind, {}).get("of", kind)

    def parameter(self, name: str, limits: Mapping[str, Any]) -> str:
        """Return a parameter of a record's constructor."""
        serial = f"@SerialName({_string(name)}) " if camel(name) != name else ""
        return f"{serial}val {camel(name)}: {self.type(limits['type'])}{self._default(limits)},"

    def _default(self, limits: Mapping[str, Any]) -> str:
        kind = limits["type"]
        if "default" in limits:
            is_enum = kind in self.schema["enums"]
            value = limits["default"]
            return f" = {f'{self.type(kind)}.{value.upper()}' if is_enum else json.dumps(value)}"
        if "optional" not in limits:
            return ""
        return " = null" if kind.endswith("?") else " = emptyList()" if kind.endswith("[]") else " = emptyMap()"

    def checks(self, fields: Mapping[str, Any]) -> Iterator[str]:
        """Yield the statements that check the fields of `it`, which is `where`."""
        for name, limits in fields.items():
            yield from self._check(f'"$where.{name}"', f"it.{camel(name)}", limits["type"], limits, fields)

    def _check(
        self, where: str, value: str, kind: str, limits: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Iterator[str]:
        if kind.endswith("?"):
            inner = list(self._check(where, "set", kind[:-1], limits, fields))
            if inner:
                yield f"{value}?.let {{ set -> {'; '.join(inner)} }}"
        elif kind.endswith("{}"):
            place = f'{where[:-1]}.$name"'
            if inner := list(self._check(place, "each", kind[:-2], limits, fields)):
                yield f"for ((name, each) in {value}) {'; '.join(inner)}"
        elif kind.endswith("[]"):
            if "least" in limits or "most" in limits:
                yield f"checkCount({where}, {value}.size{_bounds(limits)})"
            unique = limits.get("unique", [])
            for field in [unique] if isinstance(unique, str) else unique:
                yield f"checkUnique({where}, {value}.map {{ each -> each.{camel(field)} }})"
            if inner := list(self._check(f'{where[:-1]}[$i]"', "each", kind[:-2], {}, fields)):
                yield f"{value}.forEachIndexed {{ i, each -> {'; '.join(inner)} }}"
        elif (record := self.schema["records"].get(kind)) is not None:
            if any(self.checks(record["fields"])):
                yield f"check({where}, {value})"
        elif kind == "shape":
            element = limits["element"]
            size = f"it.{camel(element)}.bytes" if element in fields else str(self.bytes[element])
            yield f"checkShape({where}, {value}, rank = {limits['rank']}, elementBytes = {size})"
        elif kind == "loss":
            yield f"checkLoss({where}, {value})"
        elif kind == "string" and "pattern" in limits:
            yield f"checkPattern({where}, {value}, {_string(limits['pattern'])})"
        elif kind == "integer" or (kind == "number" and _bounds(limits)):
            yield f"checkNumber({where}, {value}{_bounds(limits)})"
        elif "of" in self.schema["enums"].get(kind, {}):
            enum = self.schema["enums"][kind]
            values = ", ".join(f"{enum['of']}.{v.upper()}" for v in enum["values"])
            yield f"checkOneOf({where}, {value}, setOf({values}))"


def _bounds(limits: Mapping[str, Any]) -> str:
    return "".join(f", {key} = {float(limits[key])!r}" for key in ("least", "most") if key in limits)
