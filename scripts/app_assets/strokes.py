"""From the strokes of a finger to the image that the model knows; `Preprocessing.kt` in the app does the same.

Both follow the description that travels with the program, in the same float64 operations in the same order, so they
agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: A point of a stroke: x to the right, y downwards, in any unit, and milliseconds since the first point.
Point = tuple[float, float, int]
Stroke = Sequence[Point]


@dataclass(frozen=True)
class Preprocessing:
    """How strokes become an image.

    The drawing is scaled, its shape kept, until its larger side fills a square of `size * cells` fine cells but for the
    pen's width, and centred. A cell is inked when its centre lies within `pen` of a line between two points that follow
    each other. A pixel of the image is the share of its `cells * cells` cells that are inked: ink 1 on paper 0.

    Attributes:
        kind: names this description; an app refuses one that it does not know.
        size: pixels of a side of the image.
        cells: fine cells of a side of a pixel.
        pen: half the width of the pen, in fine cells.
    """

    kind: str = "strokes/1"
    size: int = 8
    cells: int = 4
    pen: float = 2.5

    def image(self, strokes: Sequence[Stroke]) -> np.ndarray:
        """float32 [size, size, 1] of a drawing of at least one point.

        Raises:
            ValueError: no points, or one that is not finite.
        """
        points = np.array([point[:2] for stroke in strokes for point in stroke], np.float64).reshape(-1, 2)
        if not len(points) or not np.isfinite(points).all():
            raise ValueError("a drawing has at least one point, and all of them are finite")
        low, high = points.min(0), points.max(0)
        side, larger = self.size * self.cells, max(high - low)
        scale = (side - 1 - 2 * self.pen) / larger if larger > 0 else 0.0
        middle, centre = (low + high) / 2, (side - 1) / 2
        rows, columns = np.mgrid[:side, :side].astype(np.float64)
        inked = np.zeros((side, side), bool)
        for stroke in strokes:
            placed = [(np.array(point[:2], np.float64) - middle) * scale + centre for point in stroke]
            for a, b in zip(placed[:1] + placed, placed, strict=False):
                inked |= _squared_distance(columns, rows, a, b) <= self.pen * self.pen
        shares = inked.reshape(self.size, self.cells, self.size, self.cells).sum((1, 3)) / (self.cells * self.cells)
        return shares.astype(np.float32)[..., None]

    def to_json(self) -> dict[str, Any]:
        """Return what the app reads."""
        return asdict(self)


def _squared_distance(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the points (x, y) from the line between a and b."""
    (ax, ay), (dx, dy) = a, b - a
    length = dx * dx + dy * dy
    along = np.clip(((x - ax) * dx + (y - ay) * dy) / length, 0.0, 1.0) if length > 0 else np.zeros_like(x)
    ex, ey = x - (ax + along * dx), y - (ay + along * dy)
    return ex * ex + ey * ey
