"""The schema is what the readers know: Python's records are compared with it, the others are written from it."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from converter.program import manifest as package
from converter.program.manifest import records
from converter.program.manifest.schema import RECORDS, ROLES, SCHEMA, SIGNATURES
from scripts.readers.__main__ import WRITTEN, rendered, stale

ENUMS = {**{kind: enum["values"] for kind, enum in SCHEMA["enums"].items()}, "Role": ROLES}
PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool, "any": Any}


def _class(kind: str) -> Any:
    return getattr(records, kind, None) or getattr(package, kind)


def _matches(kind: str, hint: Any) -> bool:
    """Whether Python's type of a field is the schema's."""
    origin, arguments = get_origin(hint), get_args(hint)
    if kind.endswith("?"):
        others = [a for a in arguments if a is not type(None)]
        return origin in (Union, types.UnionType) and len(others) < len(arguments) and _matches(kind[:-1], others[0])
    if kind.endswith("[]"):
        return origin is tuple and arguments[1:] == (...,) and _matches(kind[:-2], arguments[0])
    if kind.endswith("{}"):
        return origin is dict and arguments[0] is str and _matches(kind[:-2], arguments[1])
    if kind in ENUMS:
        return origin is Literal and set(arguments) == set(ENUMS[kind])
    if kind == "shape":
        return hint == tuple[int, ...]
    if kind == "object":
        return hint == dict[str, Any]
    if kind == "loss":
        return hint == str | dict[str, str]
    return hint == (_class(kind) if kind in RECORDS else PLAIN[kind])


def _has_default(field: Field) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_python_are_the_schema(kind: str) -> None:
    cls, said = _class(kind), RECORDS[kind]["fields"]
    hints, known = get_type_hints(cls), {field.name: field for field in fields(cls)}
    assert list(known) == list(said)
    for name, limits in said.items():
        if (kind, name) == ("Manifest", "format"):
            assert get_args(hints[name]) == (SCHEMA["format"],) == (limits["pattern"],)
            continue
        assert _matches(limits["type"], hints[name]), (name, hints[name])
        assert _has_default(known[name]) == bool({"default", "optional"} & limits.keys()), name
        if "default" in limits:
            assert known[name].default == limits["default"]


def test_the_schema_says_nothing_that_no_reader_knows() -> None:
    known = {"type", "doc", "default", "optional", "least", "most", "pattern", "rank", "element", "unique"}
    for record in RECORDS.values():
        for limits in record["fields"].values():
            assert limits.keys() <= known
            bare = limits["type"].rstrip("?[]{}")
            assert bare in {*RECORDS, *ENUMS, *PLAIN, "shape", "object", "loss"}
    for rule in SIGNATURES.values():
        assert {*rule.get("one", ()), *rule.get("some", ()), *rule.get("same", ())} <= ROLES.keys()


def test_what_is_written_from_the_schema_is_not_stale() -> None:
    """`scripts/manifest` writes it."""
    assert stale() == []


def test_a_field_of_the_schema_comes_to_all_readers() -> None:
    """What was written before is stale then, and Python's records no longer are the schema."""
    schema: Any = copy.deepcopy(SCHEMA)
    schema["records"]["UpdateRow"]["fields"]["rank_of_it"] = {"type": "integer?", "optional": True, "most": 7}
    schema["records"]["Manifest"]["fields"]["tried_here"] = {"type": "string", "pattern": "[a-z]+"}
    assert set(stale(schema)) == {
        path for path in WRITTEN if "Fields" in path or "ecords" in path or "Manifest.kt" in path
    }
    text = "\n".join(text for _, text in rendered(schema))
    for said in (
        '@SerialName("rank_of_it") val rankOfIt: Int? = null,',
        'it.rankOfIt?.let { set -> checkNumber("$where.rank_of_it", set, most = 7.0) }',
        '@SerialName("tried_here") val triedHere: String,',
        'checkPattern("$where.tried_here", it.triedHere, "[a-z]+")',
        "rank_of_it: nullable(within(int32, { most: 7 })),",
        "tried_here: matching(/^(?:[a-z]+)$/),",
    ):
        assert said in text
    known: Mapping[str, Any] = {field.name: field for field in fields(records.Manifest)}
    assert list(known) != list(schema["records"]["Manifest"]["fields"])
