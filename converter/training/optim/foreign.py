"""Optimizer of another framework, as its front end reads it."""

from __future__ import annotations

from typing import NamedTuple

import optax


class ForeignOptimizer(NamedTuple):
    """An optimizer of Keras or PyTorch as a transformation of optax.

    Attributes:
        optimizer: for a learning rate of 1; at its own rate where that runs in the program.
        name: what it is called.
        learning_rate: its own, that of its first group where it has several; None where it runs in the program: a
            schedule, or what is no factor of the updates.
        left_out: what of it is not used.
        kept: its settings that are used, in words.
    """

    optimizer: optax.GradientTransformation
    name: str
    learning_rate: float | None
    left_out: list[str]
    kept: list[str]
