"""Objects of other people's libraries, recognised by the libraries' own classes; none is imported for that."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def loaded(name: str) -> Any:
    """Return a module if this process has imported it, else None."""
    return sys.modules.get(name)


def is_instance(candidate: Any, module: str, *classes: str) -> bool:
    """Return whether an object is an instance of classes of a module; False if the module has not been imported.

    Args:
        candidate: anything.
        module: the module's name, as `keras.losses`.
        classes: names of classes in it.
    """
    home = loaded(module)
    known = [getattr(home, name, None) for name in classes]
    return any(isinstance(kind, type) and isinstance(candidate, kind) for kind in known)


def is_defined_in(definition: Any, library: ModuleType | None) -> bool:
    """Return whether a class or function was defined by a module of a library, not derived from it elsewhere."""
    home = getattr(definition, "__module__", None)
    return library is not None and isinstance(home, str) and loaded(home.partition(".")[0]) is library
