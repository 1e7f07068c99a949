"""Steps of a program in a session of its own, and their comparison with those of another: an oracle, or a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from converter.driver.program import Program
from converter.runtime import TrainingSession


class Stepped(NamedTuple):
    """What steps gave.

    Attributes:
        losses: of each step, before its update.
        parameters: all that trains, behind the last one, by the model's names.
    """

    losses: list[float]
    parameters: dict[str, np.ndarray]


def stepped(program: Program, batches: Iterable[Any], learning_rate: float | None = None, **options: Any) -> Stepped:
    """Run a step on each batch, from the state as built on.

    Args:
        program: that trains.
        batches: (x, y) or (x, y, weight) as `TrainingSession.train` takes them.
        learning_rate: as that takes it, and `options` likewise.
    """
    with TrainingSession(program.data) as session:
        losses = [session.train(x, y, learning_rate, *weight, **options) for x, y, *weight in batches]
        return Stepped(losses, session.parameters())


def assert_alike(found: Mapping[str, Any], wanted: Mapping[str, Any], rtol: float = 1e-7, atol: float = 0) -> None:
    """Compare arrays by name: each that is wanted is found, within the tolerances."""
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], np.asarray(array), rtol=rtol, atol=atol, err_msg=name)
