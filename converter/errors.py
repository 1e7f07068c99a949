"""Errors for people. Each says what is wrong, where (layer, the person's source line), and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class PocketuneError(Exception):
    """Base of all errors that are the input's and not ours. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(PocketuneError):
    """A wrong argument, file or shape."""

    exit_code = 2


@dataclass(frozen=True)
class UnsupportedSite:
    """One place in a model that cannot be compiled.

    Attributes:
        primitive: the operation: JAX's name of the primitive, or the compiler's name of its op.
        layer: path of the layer, empty outside of any.
        source: the person's `file:line`, empty where unknown.
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

    def __init__(self, message: str, sites: Iterable[UnsupportedSite] = ()) -> None:
        super().__init__(message)
        self.sites = tuple(sites)


class NumericError(PocketuneError):
    """A number is not finite, a gradient is missing, a weight does not move, or a comparison failed."""

    exit_code = 4


class DeviceError(PocketuneError):
    """A device failed or went away."""

    exit_code = 5


def nearest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean ...?` with the closest candidates, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
