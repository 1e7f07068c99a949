"""Quantization-aware scaling by its definition, in JAX: what `train_as="int8"` is compared with.

A weight is s q, q whole numbers from -128 to 127, s = max|w| / 96 of each output channel, q = w / s to nearest. A step
of descent is q <- clip(q + floor(-rate s G_q / s^2 + u)) where G_q = s G_w is the gradient by q: Lin et al. 2022 with
stochastic rounding. The noise of a matrix [rows, columns] is u = frac(a_row + b_column).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEAST, LARGEST = -128, 127


@dataclass(frozen=True)
class Weight:
    """How a weight is stored: which elements of the model's, in which shape; `axis`: of that, of its scales."""

    places: np.ndarray
    shape: tuple[int, ...]
    axis: int

    def stored(self, array: Any) -> Any:
        """Return the part of a weight that trains, as it is stored."""
        return jnp.reshape(jnp.reshape(array, -1)[self.places], self.shape)

    def of_model(self, stored: Any, whole: np.ndarray) -> Any:
        """Return the weight with that part of it."""
        return jnp.asarray(whole).reshape(-1).at[self.places].set(stored.reshape(-1)).reshape(whole.shape)

    def against(self, scales: Any) -> Any:
        """Return scales in the shape that multiplies what is stored."""
        return scales.reshape([-1 if i == self.axis else 1 for i in range(len(self.shape))])


def stored_as(manifest: Mapping[str, Any]) -> dict[str, Weight]:
    """Return how the weights of a program in int8 are stored, by name."""
    shapes = {tensor["tensor"]: tuple(tensor["shape"]) for tensor in manifest["state_tensors"]}
    found = {}
    for parameter in manifest["parameters"]:
        (piece,) = parameter["pieces"]
        if piece["scales"] is not None:
            places = np.arange(prod(parameter["shape"])).reshape(parameter["shape"])
            for kind, *how in piece["view"]:
                if kind == "slice":
                    places = np.take(places, range(how[1], how[2]), how[0])
                else:
                    places = {"transpose": np.transpose, "reshape": np.reshape}[kind](places, how[0])
            found[parameter["name"]] = Weight(places.reshape(-1), shapes[piece["tensor"]], piece["scales"]["axis"])
    return found


def mixed(x: np.ndarray) -> np.ndarray:
    """Return two rounds of lowbias32's mixing, with arithmetic shifts."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x.view(np.int32) >> shift).view(np.uint32)) * np.uint32(factor)
    return x


def drawn(step: int, count: int) -> np.ndarray:
    """Return the numbers that a step draws, in 0..1 with 23 bits: of places 0 to `count`."""
    golden, site = np.uint32(0x9E3779B1), np.uint32((1 << 20) * 0x7FEB352D & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        key = mixed(np.array([step], np.uint32) * golden + site)
        bits = mixed(key + golden * np.arange(count, dtype=np.uint32))
    return ((bits.view(np.int32) >> 9).astype(np.float32) * np.float32(2.0**-23) + np.float32(0.5)).astype(np.float32)


def halves(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return rows and columns of the matrices that a tensor can be taken for."""
    return [(prod(shape[:cut]), prod(shape[cut:])) for cut in range(1, len(shape))]


def noises(step: int, weights: Mapping[str, Weight]) -> dict[str, np.ndarray]:
    """Return the noise of a step for each weight, in the order of their names."""
    sizes = {name: min(halves(w.shape), key=sum) for name, w in weights.items()}
    numbers, at, made = drawn(step, sum(map(sum, sizes.values()))), 0, dict[str, np.ndarray]()
    for name in sorted(weights):
        rows, columns = sizes[name]
        a, b = numbers[at : at + rows], numbers[at + rows : at + rows + columns]
        at += rows + columns
        total = a[:, None] + b
        made[name] = (total - np.floor(total)).reshape(weights[name].shape)
    return made


def trained(
    loss: Callable[..., Any],
    params: Mapping[str, np.ndarray],
    weights: Mapping[str, Weight],
    batches: Sequence[Any],
    rate: float,
) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the losses of steps, and after them the numbers of all weights and the integers of those in int8.

    Args:
        loss: (params, x, y) -> a number.
        params: float32, in the model's layout.
        weights: which of them are in int8, and how.
        batches: (x, y).
        rate: of learning.
    """
    state = {name: jnp.asarray(array) for name, array in params.items()}
    scales, integers = {}, {}
    for name, weight in weights.items():
        stored = np.asarray(weight.stored(params[name]))
        others = tuple(i for i in range(stored.ndim) if i != weight.axis)
        scales[name] = jnp.asarray(np.abs(stored).max(others) / np.float32(96))
        integers[name] = jnp.clip(jnp.round(stored / weight.against(scales[name])), LEAST, LARGEST)

    def of(integers: Any, state: Any) -> Any:
        real = {n: w.of_model(w.against(scales[n]) * integers[n], params[n]) for n, w in weights.items()}
        return {**state, **real}

    step = jax.jit(jax.value_and_grad(lambda q, state, x, y: loss(of(q, state), x, y), (0, 1)))
    losses = []
    for number, (x, y) in enumerate(batches):
        value, (by_integers, by_rest) = step(integers, state, x, y)
        losses.append(float(value))
        noise = noises(number, weights)
        for name, weight in weights.items():
            scaled = by_integers[name] / weight.against(scales[name]) ** 2
            moved = jnp.floor(-rate * scaled + noise[name])
            integers[name] = jnp.clip(integers[name] + moved, LEAST, LARGEST)
        state = {name: array if name in weights else array - rate * by_rest[name] for name, array in state.items()}
    numbers = {name: np.asarray(array) for name, array in of(integers, state).items()}
    return losses, numbers, {name: np.asarray(array) for name, array in integers.items()}
