"""Errors for people. Each says what is wrong, where (layer, the person's source line), and what to do next.

Behind the message is the page of docs/errors/ about refusals of its kind, a note of the exception.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from converter.invocation import command

#: Which page of docs/errors/ is about what a module refuses; of several that hold, the longest name counts.
PAGES = {
    "converter.account": "program-files",
    "converter.autodiff": "gradients",
    "converter.batch_norm": "batch-normalization",
    "converter.budget": "memory-budget",
    "converter.certification": "engines",
    "converter.cli": "command-line",
    "converter.defaults": "arguments",
    "converter.dropout": "dropout",
    "converter.engines": "engines",
    "converter.estimating": "estimates",
    "converter.extras": "arguments",
    "converter.fisher": "adapters",
    "converter.functions": "functions",
    "converter.inference": "program-files",
    "converter.layers": "program-files",
    "converter.links": "losses",
    "converter.losses": "losses",
    "converter.merge": "adapters",
    "converter.mixing": "mixing",
    "converter.models": "models",
    "converter.optim": "optimizers",
    "converter.order": "targets",
    "converter.own_loss": "losses",
    "converter.origins": "program-files",
    "converter.pipeline": "arguments",
    "converter.pricing": "targets",
    "converter.profile": "program-files",
    "converter.program": "program-files",
    "converter.quantize": "quantization",
    "converter.reporting": "reports",
    "converter.requests": "arguments",
    "converter.row_losses": "losses",
    "converter.runtime": "sessions",
    "converter.runtime.engine": "engines",
    "converter.runtime.parameters": "program-files",
    "converter.runtime.saved": "state-files",
    "converter.runtime.state_file": "state-files",
    "converter.searching": "search",
    "converter.sparse.adapt": "adapters",
    "converter.sparse.channels": "adapters",
    "converter.sparse.lora": "adapters",
    "converter.sparse.scheme": "update-rules",
    "converter.sparse.select": "update-rules",
    "converter.stages": "arguments",
    "converter.targets": "targets",
    "converter.tflite.emit": "file-size",
    "converter.tflite.lower": "kernels",
    "converter.tflite.metadata": "program-files",
    "jax_frontend.augmentation": "augmentation",
    "jax_frontend.dropout": "dropout",
    "jax_frontend.model": "models",
    "jax_frontend.modules.linen": "models",
    "jax_frontend.tracing": "models",
    "jax_frontend.unsupported": "operations",
    "keras_frontend": "keras-files",
    "keras_frontend.applications": "models",
    "keras_frontend.augmentation": "augmentation",
    "keras_frontend.constraints": "operations",
    "keras_frontend.importer": "models",
    "keras_frontend.preprocessing": "operations",
}


#: Our packages, as they are imported.
_OURS = ("converter", "jax_frontend", "keras_frontend", "pocketune")


def is_ours(module: str) -> bool:
    """Return whether a module is one of Pocketune's."""
    return any(f"{module}.".startswith(f"{package}.") for package in _OURS)


def pages_folder() -> Path:
    """Return the folder of the pages: in a wheel they lie in the package, in a clone in docs/."""
    root = Path(__file__).resolve().parents[__name__.count(".")]
    inside = root / "pocketune/errors"
    return inside if inside.is_dir() else root / "docs/errors"


def page_of(module: str) -> str:
    """The page about what a module refuses; empty for modules that are not ours."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((PAGES[name] for name in names if name in PAGES), "")


class PocketuneError(Exception):
    """Base of all errors that are the input's and not ours. `exit_code` is what the command line returns.

    Attributes:
        page: the page of docs/errors/ that says more, if there is one.
    """

    exit_code = 1
    page = ""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.page = self.page or page_of(_raiser(sys._getframe(1)))
        if self.page:
            self.add_note(f"more: {command(f'explain {self.page}')}")


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
    page = "numbers"


class DeviceError(PocketuneError):
    """A device failed or went away."""

    exit_code = 5
    page = "devices"


def _raiser(frame: FrameType | None) -> str:
    """The module that made an error: the nearest that is not this one."""
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def nearest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean ...?` with the closest candidates, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
