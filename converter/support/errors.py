"""Errors for people. Each says what is wrong, where (layer, the user's source line), and what to do next.

Behind the message is the page of docs/errors/ about refusals of its kind, a note of the exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from converter.support.invocation import command

#: Our packages, as they are imported.
_OURS = ("converter", "jax_frontend", "pocketune")


def is_ours(module: str) -> bool:
    """Return whether a module is one of Pocketune's."""
    return any(f"{module}.".startswith(f"{package}.") for package in _OURS)


def pages_folder() -> Path:
    """Return the folder of the pages: in a wheel they lie in the package, in a clone in docs/."""
    root = Path(__file__).resolve().parents[__name__.count(".")]
    inside = root / "pocketune/errors"
    return inside if inside.is_dir() else root / "docs/errors"


class PocketuneError(Exception):
    """Base of all errors that are the input's and not ours. `exit_code` is what the command line returns.

    Args:
        message: what is wrong, where, and what to do next.
        page: the page of docs/errors/ that says more; a note of the exception names it. Where it is not given, that
            of the class.
    """

    exit_code = 1
    page = ""

    def __init__(self, message: str, *, page: str = "") -> None:
        super().__init__(message)
        self.page = page or self.page
        if self.page:
            self.add_note(f"more: {command(f'explain {self.page}')}")


class UsageError(PocketuneError):
    """A wrong argument, file or shape."""

    exit_code = 2


class NotImportable(Exception):
    """A place of a model that has no import rule, or that its rule cannot express. Front ends collect and report all.

    Args:
        what: the operation or the form of it, as the report calls it.
        advice: what the user can do; empty for what the front end says of the operation.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.what, self.advice = what, advice


@dataclass(frozen=True)
class UnsupportedSite:
    """One place in a model that cannot be compiled.

    Attributes:
        primitive: the operation: JAX's name of the primitive, or the compiler's name of its op.
        layer: path of the layer, empty outside of any.
        source: the user's `file:line`, empty where unknown.
        reason: what about it is not supported.
        advice: what to do instead.
    """

    primitive: str
    layer: str = ""
    source: str = ""
    reason: str = ""
    advice: str = ""


class UnsupportedError(PocketuneError):
    """The model holds something that cannot be compiled. `sites` lists each place, where an operation is the cause."""

    exit_code = 3

    def __init__(self, message: str, sites: Iterable[UnsupportedSite] = (), *, page: str = "") -> None:
        super().__init__(message, page=page)
        self.sites = tuple(sites)


class NumericError(PocketuneError):
    """A number is not finite, a gradient is missing, a weight does not move, or a comparison failed."""

    exit_code = 4
    page = "numbers"


class DeviceError(PocketuneError):
    """A device failed or went away."""

    exit_code = 5
    page = "devices"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean ...?` with the closest candidates, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
