"""Gradient range checks: whether those of a split step stayed in the range of the engine that computed them.

An engine that rounds to float16 has no infinity: what is above 65504 goes on to 131008 and stays there, and what is
below 6e-8 is zero. Neither shows in the loss.
"""

from __future__ import annotations

import warnings

import numpy as np

from converter.program.manifest import GRADIENT, Manifest
from converter.runtime.interpreters.entry import SignatureEntry
from converter.runtime.session.diverged import operations
from converter.support.errors import NumericError

#: The largest number of float16, from which on a gradient is not to be believed.
LARGEST = 65504.0
#: Below such a loss a gradient may well be zero.
_LEAST_LOSS = 1e-3


class UnderflowWarning(UserWarning):
    """An engine that rounds to float16 gave nothing but zeros for a gradient."""


class GradientRange:
    """Looks at the gradients of each call; a tensor whose gradient vanishes is spoken of once."""

    def __init__(self, manifest: Manifest) -> None:
        self._scale, self._operations = manifest.loss_scale, operations(manifest)
        self._noted: set[str] = set()

    def check(self, entry: SignatureEntry) -> None:
        """Looks at what `gradients` gave.

        Raises:
            NumericError: a gradient is not finite, or beyond what its engine can count.
        """
        vanished = []
        for spec in entry.signature.giving("gradient"):
            name, largest = spec.name.removeprefix(GRADIENT), float(np.abs(entry.output(spec.name)).max())
            if not largest < (LARGEST if entry.rounds_to_float16 else np.inf):
                raise NumericError(self._too_large(name, largest, entry.rounds_to_float16))
            if not largest:
                vanished.append(name)
        if entry.rounds_to_float16 and float(entry.output("loss")[0]) > _LEAST_LOSS:
            self._note([name for name in vanished if name not in self._noted])

    def _too_large(self, name: str, largest: float, float16: bool) -> str:
        built = "" if self._scale == 1 else f" (it was built with {self._scale:g})"
        advice = (
            f"build with a smaller loss_scale, for example 0.125{built}, or scale the model's inputs down"
            if float16
            else self._operations or "its loss is finite and its slope is not, as that of sqrt at 0"
        )
        said = f"the gradient of {name} overflows, its largest number is {largest:g}"
        return f"{said}: {advice}. The weights are as they were"

    def _note(self, vanished: list[str]) -> None:
        if vanished:
            self._noted.update(vanished)
            warnings.warn(
                f"every number of the gradient of {', '.join(vanished)} is zero in float16. Where the weights should "
                f"move, build with a larger loss_scale than {self._scale:g}, for example {1024 * self._scale:g}",
                UnderflowWarning,
                stacklevel=7,
            )
