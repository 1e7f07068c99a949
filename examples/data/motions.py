"""What a smart watch measured while four students stood, ran, walked and played badminton (BasicMotions)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from examples.weights.packages import resource

ACTIVITIES = ("Standing", "Running", "Walking", "Badminton")
#: Ten seconds at 10 Hz: three axes of the accelerometer, three of the gyroscope.
STEPS, CHANNELS = 100, 6


class Motions(NamedTuple):
    """Recordings or windows of them float32 [N, steps, 6], and the activity of each, int32 [N]."""

    x: np.ndarray
    y: np.ndarray


@cache
def load() -> tuple[Motions, Motions]:
    """40 recordings to pretrain on, and 40 others; ten of each activity, in random order, always the same.

    Raises:
        UsageError: they are not here yet.
    """
    first, second = (_read(part) for part in ("TRAIN", "TEST"))
    return first, second


def _read(part: str) -> Motions:
    text = resource("aeon==1.6.0", f"aeon/datasets/data/BasicMotions/BasicMotions_{part}.ts").read_text()
    rows = [line.split(":") for line in text.splitlines() if line and line[0] not in "#@"]
    x = np.array([[axis.split(",") for axis in row[:CHANNELS]] for row in rows], np.float32).transpose(0, 2, 1)
    y = np.array([ACTIVITIES.index(row[CHANNELS]) for row in rows], np.int32)
    order = np.random.default_rng(0).permutation(len(y))
    # One of each activity after the other, so that any first part of them has all.
    places = np.stack([order[y[order] == activity] for activity in range(len(ACTIVITIES))], 1).reshape(-1)
    return Motions(x[places], y[places])


def windows(motions: Motions, length: int, every: int) -> Motions:
    """Windows that begin at every so many steps of each recording, those of one after those of the other."""
    starts = range(0, motions.x.shape[1] - length + 1, every)
    x = np.stack([motions.x[:, start : start + length] for start in starts], 1).reshape(-1, length, CHANNELS)
    return Motions(x, np.repeat(motions.y, len(starts)))


def worn(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """What a watch would have measured that is turned against the arm: `turn` is a rotation, [3, 3]."""
    both = np.kron(np.eye(2, dtype=np.float32), turn.astype(np.float32))
    return x @ both.T
