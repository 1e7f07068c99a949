"""What can be imported, and under which conditions: read from the rules themselves."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from jax_frontend.registry import RULES
from jax_frontend.unsupported import GROUPS, HINTS

#: What a rule calls to refuse a form of its primitive, with the words for it first.
_REFUSALS = {"NotImportable": 0, "known": 1}

#: Where a program computes something else than JAX, and why.
DIFFERENCES = (
    (
        "NaN: XNNPACK's exp, max and min read NaN as a number, and so does what is made of them (cosh, softplus, "
        "relu and its derivative, largest elements of windows and axes); its rsqrt gives NaN at 0 and its logistic "
        "at infinity. To guard them would cost every element another operator. Inputs, weights and losses that are "
        "not finite are refused."
    ),
    (
        "Indices out of range: clamped or filled where the code says so (mode='clip', fill_value=0); where JAX "
        "would read NaN the runtime refuses the call, as a test of each index would make every look-up slower."
    ),
    "Half precision is computed in float32, and integers of 64 bits in 32.",
)


@dataclass(frozen=True)
class Entry:
    """A jaxpr primitive.

    Attributes:
        primitive: its name.
        subject: what its rule is about; `refused` where there is none.
        how: what it becomes, or what to do without it.
        refused: forms of it that cannot be imported.
    """

    primitive: str
    subject: str
    how: str
    refused: tuple[str, ...] = ()


def catalogue() -> list[Entry]:
    """Every primitive that has a rule, by subject, and then those that are known to have none."""
    entries = [_entry(name) for name in RULES]
    without = {**HINTS, **{name: HINTS[group] for name, group in GROUPS.items()}}
    absent = [
        Entry(name, "refused", advice) for name, advice in without.items() if name not in RULES and " " not in name
    ]
    return sorted(entries, key=lambda e: (e.subject, e.primitive)) + sorted(absent, key=lambda e: e.primitive)


def _entry(primitive: str) -> Entry:
    function = inspect.unwrap(RULES[primitive].function)
    module = sys.modules[function.__module__]
    how = (inspect.getdoc(function) or "").partition("\n")[0]
    return Entry(
        primitive, module.__name__.rpartition(".")[2], how, tuple(dict.fromkeys(_refused(module, function.__name__)))
    )


def _refused(module: ModuleType, name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """What a function of a module refuses, and those of the same module that it calls."""
    for called, words in _calls(module).get(name, ()):
        if words is not None:
            yield words
        elif called not in seen:
            yield from _refused(module, called, seen | {called})


@cache
def _calls(module: ModuleType) -> dict[str, list[tuple[str, str | None]]]:
    """By function of a module: the names that it mentions, with the words of a refusal."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                words = node.args[_REFUSALS[name]] if name in _REFUSALS and len(node.args) > _REFUSALS[name] else None
                found.setdefault(function.name, []).append((name, None if words is None else _text(words, module)))
    return found


def _text(words: ast.expr, module: ModuleType) -> str:
    """A string of the source, with the constants of the module in it."""
    if isinstance(words, ast.JoinedStr):
        return "".join(_text(part, module) for part in words.values)
    if isinstance(words, ast.FormattedValue):
        value = getattr(module, getattr(words.value, "id", ""), None)
        return "N" if value is None else str(value)
    return str(words.value) if isinstance(words, ast.Constant) else ast.unparse(words)
