"""Inference engines that programs are certified on, one a file."""

from __future__ import annotations

from converter.runtime.engines.android import Android
from converter.runtime.engines.engine import Engine, engines_folder
from converter.runtime.engines.gpu import Gpu
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.engines.tflm import Tflm
from converter.runtime.engines.web import Web
from converter.support.errors import UsageError, nearest

__all__ = ["ENGINES", "Engine", "engine", "engines_folder"]

#: By what a person calls them.
ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (Gpu, Hexagon, Web, Android, Tflm)}


def engine(on: str) -> Engine:
    """Return the engine that a person asks for: `gpu`, `hexagon:SM8650`, `web`, `android`, `tflm`.

    Raises:
        UsageError: there is no such engine.
    """
    name, _, processor = on.partition(":")
    if name not in ENGINES:
        raise UsageError(
            f"on: there is no engine {on!r}, but {', '.join(ENGINES)}.{nearest(name, ENGINES)}", page="engines"
        )
    return ENGINES[name](processor)
