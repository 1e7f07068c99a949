"""Words for a step that was refused: its loss, or something that it wrote, is not finite."""

from __future__ import annotations

from math import isfinite

from converter.program.manifest import Manifest
from converter.support.errors import NumericError

#: How many operations are named.
_NAMED = 3
_KEPT = "The state is that from before the step."
_LOST = "The weights in memory are not to be trusted: restore() a saved state or reset()."


def refusal(manifest: Manifest, loss: float, rate: float, kept: bool) -> NumericError:
    """Return what is raised: operations that can be infinite are named before the learning rate is.

    Args:
        manifest: of the program.
        loss: of the step.
        rate: its learning rate.
        kept: whether the state is that from before the step.
    """
    what = f"the loss is {loss}"
    if isfinite(loss):
        what = f"the step makes weights or slots NaN or infinite, though its loss is {loss:g}"
    return NumericError(f"{what}: {_why(manifest, f' ({rate:g})')} {_KEPT if kept else _LOST}")


def spoilt(manifest: Manifest) -> NumericError:
    """Return what is raised where steps have left something behind that is not finite."""
    return NumericError(f"the training has left weights or slots NaN or infinite: {_why(manifest)} {_LOST}")


def operations(manifest: Manifest) -> str:
    """Return which operations can be infinite, and what to do about it; empty where there are none."""
    if not manifest.poles:
        return ""
    named = " or ".join(manifest.poles[:_NAMED]) + (" or others" if manifest.poles[_NAMED:] else "")
    return (
        f"{named} can be infinite, or have an infinite slope, at finite numbers, as a root or a logarithm at 0. Keep "
        "what it takes away from these, for example by adding a small number"
    )


def _why(manifest: Manifest, rate: str = "") -> str:
    diverged = f"the training has diverged, often because the learning rate{rate} is too high."
    said = operations(manifest)
    return f"{said}; else {diverged}" if said else diverged
