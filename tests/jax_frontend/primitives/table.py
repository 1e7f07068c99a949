"""Applications of jaxpr primitives, in the forms that models and losses use: name -> function and arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    """A function, its arguments, and how close to JAX it must be (relative; absolute, times the largest number)."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    rtol: float = 1e-5
    atol: float = 1e-6
    gradient: bool = True

    @property
    def floats(self) -> list[int]:
        """The arguments that a derivative is taken by."""
        return [k for k, a in enumerate(self.args) if a.dtype.kind == "f"]


CASES: dict[str, Case] = {}


def case(name: str, fn: Callable[..., Any], *args: Any, **how: Any) -> None:
    assert name not in CASES, name
    CASES[name] = Case(fn, tuple(np.asarray(a, np.float32) if _wide(a) else np.asarray(a) for a in args), **how)


def _wide(array: Any) -> bool:
    return np.asarray(array).dtype == np.float64


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def i(*shape: int, low: int = -7, high: int = 8) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def b(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape).astype(bool)


LINE = np.array([-30.5, -7, -2.5, -1.5, -1, -0.5, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.25, 0.5, 1, 1.5, 2.5, 3, 8, 30.5])
UNIT = np.array([-1, -0.999, -0.9, -0.5, -0.1, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1])
INNER = UNIT[1:-1]
POSITIVE = np.array([1e-10, 1e-6, 1e-3, 0.1, 0.5, 0.999, 1, 1.001, 1.5, 2, 3.7, 10, 100, 1e4, 1e8])
HUGE = np.array([-1e30, -1e20, -1e8, -100, 100, 1e8, 1e20, 1e30, np.inf, -np.inf])
NUMBERS = np.array([-(2**31) + 1, -(2**20), -129, -7, -2, -1, 0, 1, 2, 3, 7, 8, 255, 65535, 2**30, 2**31 - 1], np.int32)
OTHERS = np.roll(NUMBERS, 5)
