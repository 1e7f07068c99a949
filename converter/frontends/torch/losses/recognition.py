"""Recognition of PyTorch's losses: modules, functions of torch, and functions of a user's that call these."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from functools import partial
from types import CellType, CodeType, ModuleType
from typing import Any

import torch

from converter.support.libraries import is_defined_in, loaded

#: Libraries whose arrays are JAX's: what names one of them is traced by JAX.
_OF_JAX = ("jax", "optax", "flax", "equinox", "chex")


def is_loss(candidate: Any, of_module: bool = False) -> bool:
    """Return whether something is a loss of PyTorch: a module, a function of torch, or one that calls these.

    Args:
        candidate: anything.
        of_module: whether it is for a module of PyTorch: a function that names no library is one of tensors then.
    """
    if isinstance(candidate, torch.nn.Module) or is_defined_in(candidate, torch):
        return True
    named = list(_named(candidate, set()))
    if any(_is_of_torch(value) for value in named):
        return True
    if not of_module or not (inspect.isroutine(candidate) or isinstance(candidate, partial) or _called(candidate)):
        return False
    of_jax = [library for name in _OF_JAX if (library := loaded(name)) is not None]
    return not any(_is_of(value, library) for value in named for library in of_jax)


def _named(function: Any, seen: set[Any]) -> Iterator[Any]:
    """All that the code of a function names, and that of the functions that it names."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)  # of a method
    if not inspect.isfunction(function):
        function = _called(function)
    if function is None or function in seen:
        return
    seen.add(function)
    known = function.__globals__
    closed = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    for value in [*(known[name] for name in _names(function.__code__) if name in known), *closed]:
        yield value
        yield from _named(value, seen)


def _called(candidate: Any) -> Any:
    """The function that an object of a class of the user's own is called by; None for any other."""
    made = None if isinstance(candidate, type) else inspect.getattr_static(type(candidate), "__call__", None)
    return made if inspect.isfunction(made) else None


def _names(code: CodeType) -> Iterator[str]:
    """Names of variables in a piece of code, and in the functions and comprehensions inside of it."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_of_torch(value: Any) -> bool:
    kind = getattr(value, "__self__", value)  # of the method `apply` of one
    if isinstance(kind, type) and issubclass(kind, torch.autograd.Function | torch.nn.Module):
        return True
    return _is_of(value, torch)


def _is_of(value: Any, library: ModuleType) -> bool:
    """Whether a value is a library or a part of it, is defined in it, or is of a class that is."""
    if inspect.ismodule(value):
        return loaded(value.__name__.partition(".")[0]) is library
    return is_defined_in(value if getattr(value, "__module__", None) else type(value), library)
