"""Inference engines that programs are certified on, one a file; other distributions add theirs by entry points."""

from __future__ import annotations

import re

from converter.runtime.engines.android import Android
from converter.runtime.engines.engine import Engine, engines_folder
from converter.runtime.engines.gpu import Gpu
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.engines.tflm import Tflm
from converter.runtime.engines.web import Web
from converter.support.errors import UsageError, nearest
from converter.support.plugins import load, plugins, said_of

__all__ = ["ENGINES", "Engine", "engine", "engines_folder", "names"]

#: Entry points of other distributions: classes of `Engine`.
GROUP = "pocketune.engines"
#: What those are called, for certificates that runtimes read: with a dash, as no engine of ours is.
_NAME = r"[a-z0-9]+(-[a-z0-9]+)+"

#: By what a user calls them.
ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (Gpu, Hexagon, Web, Android, Tflm)}


def names() -> list[str]:
    """Return the names of all engines, those of other distributions last."""
    return [*ENGINES, *plugins(GROUP)]


def engine(on: str) -> Engine:
    """Return the engine that a user asks for: `gpu`, `hexagon:SM8650`, `web`, `android`, `tflm`, or another's.

    Raises:
        UsageError: there is no such engine, or that of another distribution cannot be loaded.
    """
    name, _, processor = on.partition(":")
    if name in ENGINES:
        return ENGINES[name](processor)
    if (point := plugins(GROUP).get(name)) is None:
        known = names()
        raise UsageError(
            f"on: there is no engine {on!r}, but {', '.join(known)}.{nearest(name, known)}", page="engines"
        )
    kind: type[Engine] = load(point, Engine)
    if not re.fullmatch(_NAME, name) or getattr(kind, "name", None) != name:
        raise UsageError(
            f"{said_of(point)} needs that for its `name`, in lower case and with a dash, as vendor-npu", page="engines"
        )
    return kind(processor)
