"""Source locations: the layer's path and the user's own line of an equation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jax
from jax._src import source_info_util

#: Code that the user did not write: its frames are never "their line".
_LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "keras",
    "optax",
    "numpy",
    "jax_frontend",
    "converter.frontends.keras",
    "converter.frontends.torch",
    "converter.training.optim",
)

#: What begins the name of a scope that states its place itself.
_STATED = "pocketune.at."

#: What JAX's own transformations add to a name stack.
_TRANSFORM = re.compile(r"^(jit|pjit|jvp|vmap|transpose|remat|checkpoint|rematted_computation|custom_jvp|custom_vjp)$")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")


@dataclass(frozen=True)
class Site:
    """A place in the user's model: layer path, `file:line`, name of the function. Empty where unknown.

    `is_stated`: whether a `source_scope` says so, not the frames of Python.
    """

    layer: str = ""
    source: str = ""
    function: str = ""
    is_stated: bool = False


NOWHERE = Site()


@contextmanager
def source_scope(layer: str, source: str, function: str) -> Iterator[None]:
    """State where what is traced within from: code that no frame of Python shows.

    Args:
        layer: its path.
        source: `file:line`.
        function: the name of the function.
    """
    with jax.named_scope(_STATED + quote("\n".join((layer, source, function)), safe="")):
        yield


def _stated(stack: Any) -> Site | None:
    """Return the site that `source_scope` states, the innermost one."""
    for part in reversed(str(stack).split("/")):
        if _STATED in part:
            layer, source, function = unquote(part.partition(_STATED)[2].rstrip(")")).split("\n")
            return Site(layer, source, function, is_stated=True)
    return None


def site(eqn: Any, caller: Site) -> Site:
    """Return the site of an equation, inside a call made at `caller`."""
    if stated := _stated(eqn.source_info.name_stack):
        return stated
    if caller.is_stated:
        return caller
    layer = "/".join(part for part in (caller.layer, layer_path(eqn.source_info.name_stack)) if part)
    source, function = _user_frame(eqn.source_info.traceback) or (caller.source, caller.function)
    return Site(layer, source, function)


def layer_path(stack: Any) -> str:
    """Return a name stack as a layer path: the scopes, without what jit, vmap and the like put around them."""
    parts = []
    for part in str(stack).split("/"):
        while wrapped := _WRAPPED.match(part):
            part = wrapped.group(1)
        if part and not _TRANSFORM.match(part) and "->" not in part:  # einsum opens a scope named by its formula
            parts.append(part)
    return "/".join(parts)


@cache
def _library_folders() -> tuple[str, ...]:
    folders = []
    for name in _LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin:
            folders.append(f"{Path(spec.origin).parent}{os.sep}")
    return tuple(folders)


def _user_frame(traceback: Any) -> tuple[str, str] | None:
    """(`file:line`, function) of the innermost frame that is the user's."""
    for frame in source_info_util.user_frames(traceback):
        if not frame.file_name.startswith((*_library_folders(), "<")):
            return f"{_short(frame.file_name)}:{frame.start_line}", frame.function_name
    return None


def _short(path: str) -> str:
    """Return the path as the user would type it: relative where it lies under the working directory."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
