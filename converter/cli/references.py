"""References to Python objects, `package.module:name`, on the command line or in a recipe."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from converter.support.errors import UsageError, nearest

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: Before the name of a net of keras.applications, which is no code of the user's.
APPLICATION = "keras:"


def is_reference(text: str) -> bool:
    """Return whether a text names an object of the user's (`package.module:name`).

    Raises UsageError for a malformed one.
    """
    if ":" not in text or text.startswith(APPLICATION):
        return False
    if not _REFERENCE.fullmatch(text):
        raise UsageError(f"{text!r} is not of the form package.module:name", page="command-line")
    return True


def find(reference: str) -> Callable[..., Any]:
    """Return the function that a reference names; modules of the current directory are found.

    Raises:
        UsageError: there is no such module or name in it, or it is not a function.
        Exception: whatever importing the module raises.
    """
    module_name, _, name = reference.partition(":")
    module = _import(module_name)
    try:
        function = getattr(module, name)
    except AttributeError:
        names = [n for n in vars(module) if not n.startswith("_")]
        raise UsageError(
            f"the module {module_name!r} has no {name!r}.{nearest(name, names)}", page="command-line"
        ) from None
    if not callable(function):
        raise UsageError(f"{reference} is not a function, it is of type {type(function).__name__}", page="command-line")
    return function


def call(reference: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return what the function that a reference names returns.

    Raises:
        UsageError: as `find`, or the function does not take these options, or needs others.
        Exception: whatever the function raises.
    """
    function, options = find(reference), dict(options or {})
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables of C have no signature; then the call itself tells
        parameters = None
    if parameters is not None:
        _check_options(reference, parameters, options)
    with _no_exit(reference):
        return function(**options)


def _check_options(reference: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    kinds = {name: p.kind for name, p in parameters.items()}
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        for name in options:
            if name not in parameters:
                raise UsageError(f"{reference} has no option {name!r}.{nearest(name, parameters)}", page="command-line")
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in variadic and n not in options]
    if needed:
        raise UsageError(
            f"{reference} needs the argument {needed[0]!r}: name a function that can be called without it",
            page="command-line",
        )


def _import(name: str) -> ModuleType:
    # Keras reads it when it is first imported, which the module may do.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        with _no_exit(name):
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        modules = [p.stem for p in Path.cwd().iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
        raise UsageError(
            f"there is no module {error.name!r}, neither installed nor in {here}.{nearest(error.name, modules)}",
            page="command-line",
        ) from None
    except SyntaxError as error:
        place = f"{os.path.relpath(error.filename)}:{error.lineno}" if error.filename else name
        raise UsageError(f"{place}: {type(error).__name__}: {error.msg}", page="command-line") from None


@contextmanager
def _no_exit(reference: str) -> Iterator[None]:
    """A script that ends the process when it is imported or called must not pass for a success."""
    try:
        yield
    except SystemExit as error:
        raise UsageError(
            f'{reference} ended with sys.exit({error.code!r}): guard its script with if __name__ == "__main__"',
            page="command-line",
        ) from None
