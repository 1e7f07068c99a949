"""Introspection of optax optimizers: what one is made of, read off what its functions have closed over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import optax

#: Parts that do something else to some parameters than to others.
TELLING_APART = ("partition", "masked", "selective_transform")


@dataclass(frozen=True)
class Transformation:
    """A function that an optimizer calls.

    Attributes:
        name: of the outermost function that made it, as `scale_by_adam`.
        module: where that is.
        closed_over: what it knows by name.
    """

    name: str
    module: str
    closed_over: Mapping[str, Any]

    @property
    def is_of_optax(self) -> bool:
        return self.module.partition(".")[0] == optax.__name__


def parts(optimizer: Any) -> list[Transformation]:
    """Return the functions that an optimizer's update calls, as far as they can be seen, each once."""
    return [_part(function) for function in _functions(getattr(optimizer, "update", optimizer), set())]


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called, or what made it, as `cosine_decay_schedule`."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).split(".<locals>")[0]


def _part(function: Any) -> Transformation:
    return Transformation(name_of(function), function.__module__ or "", _closed_over(function))


def _closed_over(function: Any) -> dict[str, Any]:
    names = function.__code__.co_freevars
    found = {}
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    return found


def _functions(found: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the Python functions that are reached from one, each once, outer ones first."""
    if id(found) in seen or isinstance(found, type | str | bytes):
        return
    seen.add(id(found))
    inner: list[Any] = []
    if isinstance(found, functools.partial):
        inner = [found.func, *found.args, *found.keywords.values()]
    elif hasattr(found, "__self__") and hasattr(found, "__func__"):
        inner = [found.__func__, *getattr(found.__self__, "__dict__", {}).values()]
    elif hasattr(found, "__code__"):
        yield found
        inner = [*_closed_over(found).values(), getattr(found, "__wrapped__", None)]
    elif isinstance(found, Mapping):
        inner = list(found.values())
    elif isinstance(found, tuple | list):
        inner = list(found)
    elif callable(found):
        inner = list(getattr(found, "__dict__", {}).values())
    for each in inner:
        yield from _functions(each, seen)
