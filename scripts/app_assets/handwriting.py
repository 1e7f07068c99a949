"""Digits written with a finger, by people who write differently: strokes for the app's tests.

Each digit has skeletons drawn by hand; a user slants, turns and squeezes them, has habits of their own, and never
writes a digit twice the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scripts.app_assets.strokes import Stroke

#: Points that a curve passes through, in a square of side 1; each digit has one way of writing it or more.
SKELETONS: dict[int, list[list[list[tuple[float, float]]]]] = {
    0: [[[(0.5, 0), (0.2, 0.15), (0.1, 0.5), (0.2, 0.85), (0.5, 1), (0.8, 0.85), (0.9, 0.5), (0.8, 0.15), (0.5, 0)]]],
    1: [[[(0.3, 0.22), (0.4, 0.12), (0.52, 0), (0.52, 0), (0.52, 0.35), (0.52, 0.7), (0.52, 1)]]],
    2: [[[(0.15, 0.22), (0.3, 0.03), (0.6, 0.02), (0.78, 0.22), (0.68, 0.48), (0.4, 0.75), (0.12, 0.98),
          (0.12, 0.98), (0.5, 0.96), (0.88, 0.98)]]],
    3: [[[(0.18, 0.1), (0.45, 0), (0.75, 0.1), (0.75, 0.34), (0.42, 0.47), (0.42, 0.47), (0.8, 0.6), (0.82, 0.85),
          (0.5, 1), (0.15, 0.9)]]],
    4: [[[(0.55, 0), (0.4, 0.28), (0.12, 0.6), (0.12, 0.6), (0.5, 0.6), (0.9, 0.58)],
         [(0.66, 0.3), (0.64, 0.65), (0.62, 1)]]],
    5: [[[(0.8, 0.02), (0.5, 0.02), (0.25, 0.03), (0.25, 0.03), (0.2, 0.42), (0.2, 0.42), (0.5, 0.36), (0.8, 0.5),
          (0.8, 0.8), (0.5, 1), (0.15, 0.92)]]],
    6: [[[(0.68, 0.02), (0.4, 0.2), (0.2, 0.55), (0.22, 0.85), (0.5, 1), (0.78, 0.88), (0.78, 0.62), (0.52, 0.5),
          (0.25, 0.68)]]],
    7: [[[(0.15, 0.04), (0.5, 0.03), (0.85, 0.02), (0.85, 0.02), (0.65, 0.35), (0.5, 0.65), (0.4, 1)]]],
    8: [[[(0.72, 0.12), (0.45, 0), (0.22, 0.2), (0.45, 0.42), (0.75, 0.65), (0.75, 0.9), (0.48, 1), (0.22, 0.88),
          (0.25, 0.65), (0.5, 0.45), (0.76, 0.22), (0.7, 0.1)]]],
    9: [[[(0.78, 0.25), (0.6, 0.02), (0.3, 0.08), (0.22, 0.32), (0.42, 0.48), (0.7, 0.36), (0.78, 0.2), (0.78, 0.2),
          (0.76, 0.55), (0.62, 0.98)]]],
}  # fmt: skip

#: Habits that some people have: other ways of writing a digit.
HABITS: dict[int, list[list[tuple[float, float]]]] = {
    1: [[(0.1, 0.5), (0.35, 0.25), (0.55, 0), (0.55, 0), (0.55, 0.5), (0.55, 1)]],
    4: [[(0.2, 0), (0.18, 0.25), (0.22, 0.5), (0.22, 0.5), (0.5, 0.54), (0.8, 0.5)],
        [(0.8, 0), (0.8, 0.3), (0.78, 0.65), (0.78, 1)]],
    7: [[(0.15, 0.04), (0.5, 0.03), (0.85, 0.02), (0.85, 0.02), (0.65, 0.4), (0.5, 0.7), (0.4, 1)],
        [(0.3, 0.5), (0.55, 0.5), (0.8, 0.48)]],
    9: [[(0.75, 0.2), (0.5, 0.02), (0.24, 0.2), (0.35, 0.44), (0.7, 0.4), (0.78, 0.15), (0.78, 0.15), (0.8, 0.6),
         (0.7, 0.92), (0.4, 1), (0.2, 0.88)]],
}  # fmt: skip


@dataclass(frozen=True)
class Writer:
    """Someone who writes with a finger.

    Attributes:
        slant: how far the writing leans to the right per unit upwards.
        turn: radians, clockwise.
        width: of the letters, 1 is usual.
        habits: writes 1, 4, 7 and 9 in the other way.
        unsteady: standard deviation of the points, 0.02 is a steady hand.
        seed: of all that is random.
    """

    slant: float = 0.0
    turn: float = 0.0
    width: float = 1.0
    habits: bool = False
    unsteady: float = 0.025
    seed: int = 0

    def write(self, digits: list[int], side: float = 600.0) -> list[list[Stroke]]:
        """Return one drawing per digit, in a square of `side` units, with a point about every 12 ms."""
        rng = np.random.default_rng(self.seed)
        return [self._write(digit, side, rng) for digit in digits]

    def _write(self, digit: int, side: float, rng: np.random.Generator) -> list[Stroke]:
        skeleton = HABITS[digit] if self.habits and digit in HABITS else SKELETONS[digit][0]
        slant, turn = self.slant + rng.normal(0, 0.06), self.turn + rng.normal(0, 0.05)
        cos, sin = np.cos(turn), np.sin(turn)
        matrix = np.array([[cos, -sin], [sin, cos]]) @ np.array([[self.width, -slant], [0, 1]])
        size = side * rng.uniform(0.45, 0.6)
        corner = side / 2 + rng.normal(0, 0.03, 2) * side
        strokes: list[Stroke] = []
        clock = 0
        for line in skeleton:
            control = (np.array(line) - 0.5 + rng.normal(0, self.unsteady, (len(line), 2))) @ matrix.T
            places = np.clip(_through(control) * size + corner, 0, side)
            strokes.append(
                [(round(float(x), 2), round(float(y), 2), clock + 12 * i) for i, (x, y) in enumerate(places)]
            )
            clock += 12 * len(places) + 150
        return strokes


def _through(points: np.ndarray, steps: int = 5) -> np.ndarray:
    """Return a Catmull-Rom curve through the points [N, 2]; a point given twice is a corner."""
    padded = np.concatenate([points[:1], points, points[-1:]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    pieces = []
    for p0, p1, p2, p3 in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        if not np.allclose(p1, p2, atol=1e-9):
            pieces.append(
                p1 + 0.5 * t * (p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0)))
            )
    return np.concatenate([*pieces, points[-1:]])
