"""Rows to search with for nets that others have trained: `pocketune search examples.imu:build --data imu.npz ...`.

    scripts/pretrained
    .venv/bin/python scripts/bench/search_rows.py imu imu.npz
    .venv/bin/python scripts/bench/search_rows.py efficientnet-lite digits.npz
    .venv/bin/python scripts/bench/search_rows.py efficientnet-lite-calibration calibration.npz
    .venv/bin/python scripts/bench/search_rows.py minilm texts.npz

What the nets see is what `scripts/bench/accuracy` shows them. The watch is worn by 24 people, each with it turned
about the arm in a way of their own, and `group` says whose each row is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples import efficientnet_lite, imu, minilm
from examples.data import mnist, motions, sentiment
from scripts.arguments import parser, writable

#: Those who wear the watch.
WEARERS = 24
#: Of the images and of the sentences, the first ones, which stand in random order.
IMAGES, SENTENCES, SIZE, LENGTH = 1600, 600, 96, 32
#: Images for the ranges of int8, of none that a search learns from or judges by.
CALIBRATION = 64


def worn() -> dict[str, np.ndarray]:
    """Return the recordings that the net has not learned from, in windows that do not overlap, once for each wearer."""
    x, y = motions.windows(motions.load()[1], imu.LENGTH, imu.LENGTH)
    turns = [_turn(np.random.default_rng(seed)) for seed in range(WEARERS)]
    rows = np.concatenate([motions.worn(x, turn) for turn in turns])
    return {"x": rows, "y": np.tile(y, WEARERS), "group": np.repeat(np.arange(WEARERS), len(y))}


def _turn(rng: np.random.Generator) -> np.ndarray:
    """Return any rotation, all alike likely: of four normal numbers as a quaternion."""
    a, b, c, d = (q := rng.standard_normal(4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)],
        ]
    )


def photographed(rows: slice = slice(IMAGES)) -> dict[str, np.ndarray]:
    """Handwritten digits of MNIST."""
    images = mnist.load()
    pixels = mnist.photographs(images.pixels[rows], SIZE)
    return {"x": efficientnet_lite.from_pixels(pixels), "y": images.y[rows]}


def rated() -> dict[str, np.ndarray]:
    """Sentences of film reviews, friendly or unfriendly."""
    texts = sentiment.load()
    return {"x": minilm.tokenizer().encode(texts.texts[:SENTENCES], LENGTH), "y": texts.y[:SENTENCES]}


ROWS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "imu": worn,
    "efficientnet-lite": photographed,
    # The next ones, for int8.
    "efficientnet-lite-calibration": lambda: photographed(slice(IMAGES, IMAGES + CALIBRATION)),
    "minilm": rated,
}


def main() -> None:
    """Writes the file."""
    options = parser(__doc__)
    options.add_argument("what", choices=ROWS, help="whose rows")
    options.add_argument("rows", type=writable, metavar="ROWS.npz", help="the file to write")
    given = options.parse_args()
    np.savez(given.rows, **ROWS[given.what]())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
