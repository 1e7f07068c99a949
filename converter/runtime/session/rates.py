"""Learning rate of a training: whose it is, and whether it moves anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np

from converter.program.manifest import Manifest
from converter.runtime.data.examples import finite_number
from converter.support.errors import UsageError

#: One number for every step, or its value from the number of the step.
Rate = float | Callable[[int], float] | None


class RateWarning(UserWarning):
    """A training that changes nothing, as its learning rate is 0."""


def rate_of_steps(given: Rate, scale: float, manifest: Manifest) -> Callable[[int], float]:
    """Return what a step's input `learning_rate` is, by the number of the step.

    Args:
        given: the learning rate; None is the one that the optimizer was built with.
        scale: what multiplies it, be it given, the optimizer's, or one that runs in the program.
        manifest: of the program.

    Raises:
        UsageError: no rate, or one beside that which runs in the program.
    """
    running = manifest.running_rate
    if running is not None and given is not None:
        raise UsageError(
            f"learning_rate: the rate of this program runs in it ({running.description}): leave it out. rate_scale= "
            "multiplies that rate; for rates of your own build with a constant one, as optimizer=optax.adam(1e-3)",
            page="sessions",
        )
    factor = _checked("rate_scale", scale)
    if callable(given):
        return _Changing(given, factor)
    own = 1.0 if running is not None else manifest.learning_rate
    constant = _scaled(own if given is None else given, factor)
    if constant == 0:
        warnings.warn("the learning rate is 0: training changes no weight", RateWarning, stacklevel=3)
    return lambda step: constant


class _Changing:
    """A rate by the number of the step, times a factor; it warns of two in a row that are 0."""

    def __init__(self, rate: Callable[[int], float], factor: float) -> None:
        self._rate, self._factor = rate, factor
        self._zeros = 0

    def __call__(self, step: int) -> float:
        rate = _scaled(self._rate(step), self._factor)
        self._zeros = self._zeros + 1 if rate == 0 else 0
        if self._zeros == 2:  # one alone may be the first of a warm-up
            warnings.warn(f"the learning rate is 0 in steps {step - 1} and {step}", RateWarning, stacklevel=2)
        return rate


def _scaled(given: float | None, factor: float) -> float:
    """Return a rate times a factor, in float32, as phones and pages multiply them."""
    with np.errstate(over="ignore"):  # which `_checked` tells
        product = np.float32(_checked("learning_rate", given)) * np.float32(factor)
    return _checked("learning_rate", float(product))


def _checked(name: str, given: float | None) -> float:
    if (rate := finite_number(name, given)) < 0:
        raise UsageError(f"{name} is below zero: {rate:g}", page="sessions")
    if rate > float(np.finfo(np.float32).max):
        raise UsageError(f"{name} is larger than float32 can hold: {rate:g}", page="sessions")
    return rate


class RateWatch:
    """Warns once when a training changes nothing any more, for the rate that runs in the program has come to 0.

    The steps that are left until a schedule has run out are counted down here: to read the counter of the state copies
    all of it. A step may count less than 1, so it is read again before anything is said.
    """

    def __init__(self, manifest: Manifest, state: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Watches a session's steps.

        Args:
            manifest: of the program.
            state: reads the state tensors.
        """
        self._running, self._state = manifest.running_rate, state
        self._left: int | None = None
        self._warned = False

    def forget(self) -> None:
        """Begin again: the state is another."""
        self._left = None

    def step(self) -> None:
        """Take note of a step that is about to be made."""
        running = self._running
        if self._warned or running is None or running.zero_from is None:
            return
        left = 0 if self._left is None else self._left - 1
        if left <= 0:
            done = running.zero_from if running.counter is None else int(self._state()[running.counter][0])
            left = running.zero_from - done
            self._warned = left <= 0
            if self._warned:
                warnings.warn(
                    f"the learning rate is 0: it runs in the program ({running.description}), and that has ended: no "
                    "step changes anything any more. Build with a constant rate, or reset()",
                    RateWarning,
                    stacklevel=2,
                )
        self._left = left
