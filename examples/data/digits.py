"""scikit-learn's real handwritten digits, and people who write them differently."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

#: Images to pretrain on; the rest, 697 images, no model has seen before it meets a person.
PRETRAINING = 1100


class Digits(NamedTuple):
    """Images float32 [N, 8, 8, 1], ink 1 on paper 0, and their labels int32 [N]."""

    x: np.ndarray
    y: np.ndarray


@cache
def load() -> tuple[Digits, Digits]:
    """The images to pretrain on, and the held-out ones; always the same split."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.images[order, :, :, None] / 16).astype(np.float32), data.target[order].astype(np.int32)
    return Digits(x[:PRETRAINING], y[:PRETRAINING]), Digits(x[PRETRAINING:], y[PRETRAINING:])


def augmented(digits: Digits, copies: int, negatives: float, seed: int) -> Digits:
    """The digits, and copies of them that are a little turned, slanted, scaled and shifted, all in random order.

    Args:
        digits: what to start from.
        copies: altered copies of each image.
        negatives: the share of images that become white ink on black paper.
        seed: of all that is random.
    """
    rng = np.random.default_rng(seed)
    x, y = np.tile(digits.x, (copies, 1, 1, 1)), np.tile(digits.y, copies + 1)
    turn, slant = rng.uniform(-0.15, 0.15, (2, len(x)))
    scale, shift = rng.uniform(0.9, 1.1, len(x)), rng.uniform(-0.7, 0.7, (len(x), 2))
    matrices = np.stack([np.stack([scale, turn], -1), np.stack([slant - turn, scale], -1)], -2)
    x = np.concatenate([digits.x, resampled(x, matrices, shift)])
    x = np.where(rng.random((len(x), 1, 1, 1)) < negatives, 1 - x, x)
    order = rng.permutation(len(x))
    return Digits(x[order], y[order])


def resampled(x: np.ndarray, matrices: np.ndarray, shifts: np.ndarray | float = 0.0) -> np.ndarray:
    """Images read, bilinearly, at other places: pixel p of the result shows `matrix @ p + shift`, from the centre.

    Args:
        x: float32 [N, H, W, 1].
        matrices: [N, 2, 2] or [2, 2], rows before columns.
        shifts: [N, 2], in pixels.

    Returns:
        float32 [N, H, W, 1]; outside of the image is paper, 0.
    """
    count, height, width, _ = x.shape
    centre = np.array([height - 1, width - 1]) / 2
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1).reshape(-1, 2) - centre
    places = grid @ np.broadcast_to(matrices, (count, 2, 2)).swapaxes(1, 2) + centre
    places = np.clip(places + np.broadcast_to(shifts, (count, 2))[:, None], -1, [height, width])
    # A frame of paper around the image makes every neighbour exist.
    framed = np.pad(x[..., 0], ((0, 0), (1, 2), (1, 2)))
    low = np.floor(places).astype(int)
    image, (row, column) = np.arange(count)[:, None], np.moveaxis(low + 1, -1, 0)
    down, right = np.moveaxis(places - low, -1, 0)
    upper = (1 - right) * framed[image, row, column] + right * framed[image, row, column + 1]
    lower = (1 - right) * framed[image, row + 1, column] + right * framed[image, row + 1, column + 1]
    return ((1 - down) * upper + down * lower).reshape(x.shape).astype(np.float32)


@dataclass(frozen=True)
class Person:
    """Someone whose handwriting differs: it leans, the pen is thick, the ink is light on dark paper.

    Attributes:
        slant: columns that the writing leans to the left per row downwards.
        thickness: 0 for the pen as it is, 1 for strokes that fill the four neighbours of each pixel.
        seed: chooses which samples are theirs to learn from.
    """

    slant: float
    thickness: float
    seed: int

    def write(self, x: np.ndarray) -> np.ndarray:
        """Images [N, 8, 8, 1] as this person would have written them."""
        leaning = resampled(x, np.array([[1.0, 0.0], [self.slant, 1.0]]))
        padded = np.pad(leaning, ((0, 0), (1, 1), (1, 1), (0, 0)))
        neighbours = [padded[:, 1:-1, :-2], padded[:, 1:-1, 2:], padded[:, :-2, 1:-1], padded[:, 2:, 1:-1]]
        thick = np.maximum.reduce([leaning, *neighbours])
        return (1 - (1 - self.thickness) * leaning - self.thickness * thick).astype(np.float32)

    def samples(self, of_each: int) -> tuple[Digits, Digits]:
        """`of_each` samples of every digit to learn from, and all their others, to be judged on."""
        held_out = load()[1]
        order = np.random.default_rng(self.seed).permutation(len(held_out.y))
        x, y = self.write(held_out.x[order]), held_out.y[order]
        chosen = np.zeros(len(y), bool)
        for digit in range(10):
            chosen[np.flatnonzero(y == digit)[:of_each]] = True
        return Digits(x[chosen], y[chosen]), Digits(x[~chosen], y[~chosen])


#: The people of the demo. Scheme, learning rate and epochs were chosen on six others (seeds 20 to 25), not on these.
PEOPLE = (
    Person(slant=0.28, thickness=0.35, seed=0),
    Person(slant=-0.22, thickness=0.45, seed=1),
    Person(slant=0.22, thickness=0.35, seed=2),
    Person(slant=-0.28, thickness=0.35, seed=3),
    Person(slant=0.18, thickness=0.45, seed=4),
    Person(slant=-0.18, thickness=0.5, seed=5),
)
